"""Find and run TLC, the model checker of TLA+."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

# Options of Java for a run of seconds, which ends before Java's slower but better compiler would save time.
SHORT_RUN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LONG_RUN = ("-XX:+UseParallelGC",)
_NO_FILES = "-noGenerateSpecTE"  # keep TLC from writing files about a counterexample beside the modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Tlc:
    """
    The programs that check a model: Java, and the jar of TLC.

    options: options that this version of TLC gets at each run
    """

    java: str
    jar: str
    options: Sequence[str] = ()

    def run(
        self, *words: str, tuned: Sequence[str], folder: Path, temporary: str
    ) -> subprocess.CompletedProcess[str]:
        """Run TLC in the folder of the TLA+ modules, on one core. `tuned` has options of Java."""
        command = [self.java, *tuned, f"-Djava.io.tmpdir={temporary}", "-cp", self.jar, "tlc2.TLC"]
        return subprocess.run(  # noqa: S603 - its words are ours
            [*command, "-workers", "1", *self.options, *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )


def find_tlc() -> Tlc | None:
    """Return the TLC that this machine has; None if Java is missing, or TLA2TOOLS names no file."""
    java, jar = shutil.which("java"), os.environ.get("TLA2TOOLS", "")
    if java is None or not Path(jar).is_file():
        return None
    # TLC 1.7 refuses the option _NO_FILES, and writes no files without it. Later versions need the option.
    with ZipFile(jar) as tlc:
        knows = _NO_FILES.encode() in tlc.read("tlc2/TLC.class")
    return Tlc(java=java, jar=str(Path(jar).absolute()), options=[_NO_FILES] if knows else [])


def why_missing() -> str:
    """Return a sentence that says why `find_tlc` found no TLC."""
    missing = "java is not in PATH" if shutil.which("java") is None else "TLA2TOOLS names no jar of TLC"
    return f"models: nothing was checked, because {missing}"


def say(text: str) -> None:
    """Print a line and flush it, so that a reader of a pipe sees it before the next check ends."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
