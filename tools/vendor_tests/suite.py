"""Describes the tests of one SDK: where they come from, which of them run, and what is edited so that they run on the emulators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of the emulators for one test file: two connection strings and the URL of the control API."""

    cosmos: str
    servicebus: str
    control: str


def parts(connection_string: str) -> dict[str, str]:
    """Return the values of a connection string by name, such as `AccountKey`."""
    return dict(text.split("=", 1) for text in connection_string.split(";") if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A text in a test file of the SDK, and its replacement. The run fails if the file does not contain the text."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """
    The tests of one SDK, and what they need in order to run on the emulators.

    Args:
        name: Prefix of the figures in the last line of the output. Also names `NAME.toml`, which lists the expected failures, and
            `shims/NAME`, which is copied over the unpacked tests.
        distribution: The Python distribution whose sdist contains the tests. requirements/dev.txt has its version and hash.
        environment: Returns the environment variables by which the tests find the emulators.
        tests: Folder of the tests inside the sdist.
        files: Globs of the files to run, inside that folder.
        left_out: Globs of files that are not run.
        markers: Expression for `pytest -m`. Defaults to all tests.
        edits: Changes to lines of the tests that do not fit the emulators.
        serve: Options with which the emulators are started.
        test_seconds: Time limit of one test.
        file_seconds: Time limit of one file.
    """

    name: str
    distribution: str
    environment: Callable[[Addresses], dict[str, str]]
    tests: str = "tests"
    files: tuple[str, ...] = ("**/test_*.py",)
    left_out: tuple[str, ...] = ()
    markers: str = ""
    edits: tuple[Edit, ...] = ()
    serve: tuple[str, ...] = ()
    test_seconds: int = 120
    file_seconds: int = 900

    @property
    def shims(self) -> Path:
        return HERE / "shims" / self.name

    @property
    def expected(self) -> Path:
        return HERE / f"{self.name}.toml"
