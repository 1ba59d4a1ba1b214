"""
`python -m tests.mutants`: mutation tests. Each mistake of `planted.toml` is planted in a copy of the repository,
where the tests have to notice it.

A mistake is noticed when a test of its package fails, or when the tests hang for so long that a developer would look. The
arguments are parts of names or files of mistakes, and choose which are planted. Without arguments, all are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
PLANTED = tomllib.loads(Path(__file__).with_name("planted.toml").read_text())
AT_ONCE = 2
LIMIT_SECONDS = 300.0
RELAYS = ("tests/unit/relay", "tests/unit/parking", "tests/simulation/test_relay.py")
CONSUMERS = ("tests/unit/sessions", "tests/unit/consumer", "tests/simulation/test_consumers.py")
LATER = "tests/unit/test_events_for_later.py"
TESTS = {
    "adapters": ("tests/unit/adapters",),
    "domain": ("tests/unit/domain", "tests/unit/write/test_stored_values.py", LATER),
    "stored_documents.py": ("tests/unit/test_stored_documents.py", LATER),
    "message_format.py": ("tests/unit/relay/test_message.py", LATER),
    "write": ("tests/unit/test_wrong_usages.py", "tests/unit/write", "tests/faults"),
    "changefeed": ("tests/unit/changefeed", "tests/simulation/test_changefeed.py"),
    "relay": RELAYS,
    "parking": (*RELAYS, *CONSUMERS, "tests/cli/test_replay.py"),
    "sessions": CONSUMERS,
    "consumer": CONSUMERS,
    "testing": ("tests/unit/test_harness_consumers.py", "tests/unit/test_crash_points.py"),
    "worker": (
        *(
            f"tests/service/test_{name}.py"
            for name in (
                "conventions",
                "shared_health",
                "consumer_health",
                "backlog_polls",
                "settings",
                "checks",
                "causes",
                "fleet_differences",
                "status_page",
            )
        ),
        *(f"tests/service/test_{name}.py" for name in ("contract", "heartbeats", "http_server", "lifecycle")),
        "tests/cli/test_many_parked_keys.py",
        "tests/cli/test_doctor.py",
        "tests/cli/test_leases.py",
        "tests/cli/test_where.py",
        "tests/cli/test_plan.py",
    ),
}


def tests_of(file: str) -> Sequence[str]:
    """Return the paths of the tests that have to notice a mistake in a file."""
    return TESTS[file.partition("/")[0]]


def path_of(file: str) -> Path:
    """
    Return the path of a file of `planted.toml`.

    A name that begins with `worker/` or `testing/` is a file of this distribution. Any other name is a file of the library.
    """
    package, _, rest = file.partition("/")
    if package in ("worker", "testing"):
        return Path(package, f"cosmos_outbox_{package}", rest)
    return Path("cosmos_outbox", file)


def planted(file: str, old: str, new: str) -> str:
    """
    Return the text of a file with a mistake in it.

    Raises:
        ValueError: the text that the mistake replaces is not exactly once in the file.
    """
    text = (ROOT / path_of(file)).read_text()
    if text.count(old) != 1:
        raise ValueError(f"{file} has the text to replace {text.count(old)} times, not once: {old!r}")
    return text.replace(old, new)


def survives(copy: Path, file: str, old: str, new: str) -> bool:
    """
    Plant a mistake in a copy of the repository, and say whether all tests pass there. The copy is restored afterwards.
    """
    mutated = copy / path_of(file)
    original = mutated.read_text()
    mutated.write_text(planted(file, old, new))
    try:
        # Run the tests with few examples of each property first, because that is faster and finds most
        # mistakes.
        return all(_pass(copy, tests_of(file), quick=quick) for quick in (True, False))
    finally:
        mutated.write_text(original)


def _pass(copy: Path, tests: Sequence[str], *, quick: bool) -> bool:
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / folder) for folder in ("", "worker", "testing")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OUTBOX_TEST_PLANTED": "1",
    }
    if quick:
        environment["OUTBOX_TEST_QUICK"] = "1"
    try:
        done = subprocess.run(  # noqa: S603 - ours
            command, cwd=copy, env=environment, capture_output=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):
        said = (done.stdout + done.stderr).decode()[-2000:]  # pytest says on stderr why it could not start
        raise RuntimeError(f"pytest ended with {done.returncode} in {' '.join(tests)}: {said}")
    return done.returncode == 0


def main(wanted: Sequence[str]) -> int:
    """Plant the chosen mistakes. Return 1 if the tests do not notice one of them, else 0."""
    names = [
        name
        for name, mistake in PLANTED.items()
        if not wanted or any(part in name or part in mistake["file"] for part in wanted)
    ]
    survived: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(_copied(Path(scratch) / str(number)))

        def plant(name: str) -> None:
            copy, began = copies.get(), time.monotonic()
            try:
                survives_here = survives(copy, **PLANTED[name])
            finally:
                copies.put(copy)
            survived.extend([name] if survives_here else [])
            outcome = "SURVIVED" if survives_here else "noticed"
            sys.stdout.write(
                f"{outcome:9} {time.monotonic() - began:5.0f} s  {PLANTED[name]['file']}: {name}\n"
            )
            sys.stdout.flush()

        # First run the tests without a mistake: if they fail, every mistake would count as noticed.
        used = {tests_of(PLANTED[name]["file"]) for name in names}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            if not all(pool.map(lambda tests: _pass(Path(scratch) / "0", tests, quick=True), used)):
                sys.stdout.write("The tests fail without a mistake.\n")
                return 1
            list(pool.map(plant, names))
    sys.stdout.write(f"{len(names)} mistakes, {len(survived)} survived\n")
    return 1 if survived else 0


def _copied(copy: Path) -> Path:
    copy.mkdir()
    git = shutil.which("git") or "git"
    listing = (git, "ls-files", "-z")
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S603 - ours
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
