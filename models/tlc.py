"""TLC, the model checker: where it is, and how it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

# For a run of seconds: it ends before Java's better compiler has paid for itself.
SHORT_RUN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LONG_RUN = ("-XX:+UseParallelGC",)
_NO_FILES = "-noGenerateSpecTE"  # of a counterexample, beside the modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Tlc:
    """
    Java, and the jar of TLC.

    options: what this version of it is always told.
    """

    java: str
    jar: str
    options: Sequence[str] = ()

    def run(
        self, *words: str, tuned: Sequence[str], folder: Path, temporary: str
    ) -> subprocess.CompletedProcess[str]:
        """Run TLC in the folder of the TLA+ modules, on one core. `tuned` has options of the Java machine."""
        command = [self.java, *tuned, f"-Djava.io.tmpdir={temporary}", "-cp", self.jar, "tlc2.TLC"]
        return subprocess.run(  # noqa: S603 - its words are ours
            [*command, "-workers", "1", *self.options, *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )


def find_tlc() -> Tlc | None:
    """Return TLC; None where Java is missing, or TLA2TOOLS names no file."""
    java, jar = shutil.which("java"), os.environ.get("TLA2TOOLS", "")
    if java is None or not Path(jar).is_file():
        return None
    with ZipFile(
        jar
    ) as tlc:  # 1.7 does not know the option, and does not write what later versions write without it
        knows = _NO_FILES.encode() in tlc.read("tlc2/TLC.class")
    return Tlc(java=java, jar=str(Path(jar).absolute()), options=[_NO_FILES] if knows else [])


def why_missing() -> str:
    """Return the sentence where `find_tlc` finds none."""
    missing = "java is not in PATH" if shutil.which("java") is None else "TLA2TOOLS names no jar of TLC"
    return f"models: nothing was checked, for {missing}"


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
