"""TLC, the model checker: where it is, and how it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# For a run of seconds: it ends before Java's better compiler has paid for itself.
SHORT_RUN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LONG_RUN = ("-XX:+UseParallelGC",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tlc:
    """Java, and the jar of TLC."""

    java: str
    jar: str

    def run(
        self, *words: str, tuned: Sequence[str], folder: Path, temporary: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it in the folder of the modules, on one core; `tuned` is for Java."""
        command = [self.java, *tuned, f"-Djava.io.tmpdir={temporary}", "-cp", self.jar, "tlc2.TLC"]
        return subprocess.run(  # noqa: S603 - its words are ours
            [*command, "-workers", "1", "-noGenerateSpecTE", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )


def find_tlc() -> Tlc | None:
    """Return TLC; None where Java is missing, or TLA2TOOLS names no file."""
    java, jar = shutil.which("java"), os.environ.get("TLA2TOOLS", "")
    return Tlc(java=java, jar=str(Path(jar).absolute())) if java is not None and Path(jar).is_file() else None


def why_missing() -> str:
    """Return the sentence where `find_tlc` finds none."""
    missing = "java is not in PATH" if shutil.which("java") is None else "TLA2TOOLS names no jar of TLC"
    return f"models: nothing was checked, for {missing}"


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
