"""
Run the model checker TLC on the models. Each guarantee has to hold, and TLC has to find each mistake that is
planted in a model.

    python -m models                   run all checks of checks.toml, two at a time
    python -m models Relay "a probe"   run the checks whose module or sentence contains "Relay" or "a probe"
    python -m models --show "a probe"  also print what TLC said, with the counterexample

The environment variable TLA2TOOLS names the jar of TLC. If the jar or Java is missing, the program checks
nothing, and prints a line that says so.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from models.tlc import LONG_RUN, SHORT_RUN, Tlc, find_tlc, say, why_missing

FOLDER = Path(__file__).parent
CHECKS = FOLDER / "checks.toml"
_AT_ONCE = 2
_FIGURES = re.compile(r"^([\d,]+) states generated, ([\d,]+) distinct states found", re.MULTILINE)
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_BROKEN = re.compile(r"(?:Invariant|Action property|Temporal property) (\w+) (?:is|was) violated")
_STATE = re.compile(r"^State (\d+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """
    A check of a model: what TLC runs, and the result that it has to have.

    module: the module whose configuration file, MC<module>.cfg, the check uses
    set: the constants that differ from those of the configuration file
    properties: liveness properties to check in place of the invariants
    breaks: the invariant or property that TLC has to find broken; None if all have to hold
    """

    sentence: str
    module: str
    set: Mapping[str, object] = field(default_factory=dict)
    properties: Sequence[str] = ()
    breaks: str | None = None

    def configuration(self) -> str:
        """Return the module's configuration for TLC, with the constants and properties of this check."""
        text = (FOLDER / f"MC{self.module}.cfg").read_text()
        for name, value in self.set.items():
            constant = re.search(rf"^    {name} (=|<-) .*$", text, re.MULTILINE)
            if constant is None:
                raise SystemExit(f"{self.sentence}: MC{self.module}.cfg has no constant {name}.")
            written = value if constant[1] == "<-" else _written(value)
            text = text.replace(constant[0], f"    {name} {constant[1]} {written}")
        if self.breaks is None and not self.properties:
            return text
        if self.properties:  # with SYMMETRY or VIEW, TLC might overlook a cycle that breaks a property
            text = re.sub(r"^(SYMMETRY|VIEW).*\n", "", text, flags=re.MULTILINE)
        as_steps = re.search(rf"^PROPERTIES.*\b{self.breaks}\b", text, re.MULTILINE)
        text = re.sub(r"^(INVARIANTS|PROPERTIES).*\n", "", text, flags=re.MULTILINE)
        kind = "PROPERTIES" if self.properties or as_steps else "INVARIANTS"
        return f"{text}{kind} {self.breaks or ' '.join(self.properties)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a check: what TLC found broken, and how many states it visited."""

    check: Check
    broken: str | None
    finished: bool
    generated: int
    states: int
    depth: int
    seconds: float
    output: str

    @property
    def as_expected(self) -> bool:
        if self.check.breaks is not None:
            return self.broken == self.check.breaks
        return self.finished and self.broken is None

    def line(self) -> str:
        said = "as expected" if self.as_expected else "NOT AS EXPECTED"
        broken = "all hold" if self.broken is None else f"breaks {self.broken}"
        if not self.finished and self.broken is None:
            broken = "TLC failed"
        return (
            f"{said:15}  {self.states:>9,} states  depth {self.depth:>2}  {self.seconds:>5.0f} s  "
            f"{self.check.module}: {self.check.sentence}: {broken}"
        )


def checks() -> list[Check]:
    """Return the checks of the models that `checks.toml` lists."""
    listed = tomllib.loads(CHECKS.read_text())
    return [
        Check(sentence=sentence, **entry)
        for entries in listed.values()
        for sentence, entry in entries.items()
    ]


def run(check: Check, tlc: Tlc) -> Outcome:
    """Run TLC on a check, and return what it found."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "checked.cfg")
        configuration.write_text(check.configuration())
        words = ["-metadir", folder, "-config", str(configuration), f"MC{check.module}"]
        tuned = LONG_RUN if check.breaks is None else SHORT_RUN  # TLC finds a counterexample in seconds
        output = tlc.run(*words, tuned=(*tuned, "-Xmx2g"), folder=FOLDER, temporary=folder).stdout
    figures, depth = _FIGURES.findall(output), _DEPTH.search(output)
    generated, states = (int(number.replace(",", "")) for number in figures[-1]) if figures else (0, 0)
    found = _BROKEN.search(output)
    broken = found[1] if found else None
    if broken is None and "Temporal properties were violated" in output:
        broken = check.breaks or "liveness"  # TLC does not name the broken property
    return Outcome(
        check=check,
        broken=broken,
        finished="Model checking completed. No error has been found." in output,
        generated=generated,
        states=states,
        depth=int(depth[1]) if depth else len(_STATE.findall(output)),
        seconds=time.monotonic() - began,
        output=output,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m models")
    parser.add_argument("words", nargs="*", help="run only checks whose module or sentence has one of these")
    parser.add_argument("--show", action="store_true", help="print what TLC said, with the counterexample")
    arguments = parser.parse_args()
    tlc = find_tlc()
    if tlc is None:
        say(why_missing())
        return 0
    chosen = [check for check in checks() if _is_chosen(check, arguments.words)]
    began, failed = time.monotonic(), 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for outcome in pool.map(lambda check: run(check, tlc), chosen):
            say(outcome.line())
            failed += not outcome.as_expected
            if arguments.show or not outcome.as_expected:
                say(outcome.output)
    say(f"{len(chosen)} checks, {failed} not as expected, {time.monotonic() - began:.0f} s")
    return 1 if failed or not chosen else 0


def _is_chosen(check: Check, words: Sequence[str]) -> bool:
    return not words or any(word in check.module or word in check.sentence for word in words)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return f'"{value}"' if isinstance(value, str) and not value.startswith("{") else str(value)


if __name__ == "__main__":
    sys.exit(main())
