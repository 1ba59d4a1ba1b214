"""
Many parked keys: let an operator choose parked keys, and run an action on each of them, such as to release it.
`parked.py` has the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cosmos_outbox.errors import KeyNotParked, ParkingError, UsageError
from cosmos_outbox.parking import Failure, ParkedKey
from cosmos_outbox.parking.keys_by_cause import cause_of, failure_text
from cosmos_outbox.relay.ceiling import Ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    The options by which an operator chooses the parked keys for a command. Exactly one of them has to be given.

    key: one partition key.
    all: True for all parked keys.
    error: a text. All keys are chosen that were parked with an error that contains it.
    file: a file with one partition key on each line.
    """

    key: str | None
    all: bool
    error: str | None
    file: Path | None

    def __post_init__(self) -> None:
        if sum((self.key is not None, self.all, self.error is not None, self.file is not None)) != 1:
            raise UsageError("Give exactly one of these: a key, --all, --error or --file.")

    def of(self, keys: Sequence[ParkedKey]) -> list[str]:
        """Return the chosen keys out of all parked keys. Keys from a file are returned even if they are no longer parked."""
        if self.file is not None:
            return [line for line in self.file.read_text().splitlines() if line.strip()]
        return [key.partition_key for key in keys if self.all or self._means(key.failure)]

    def _means(self, failure: Failure | None) -> bool:
        wanted = self.error or ""
        return failure is not None and (wanted in failure_text(failure) or wanted in cause_of(failure))


@dataclass(slots=True, kw_only=True)
class Results:
    """
    The results of an action on many keys.

    done: the number of keys for which the action succeeded.
    amount: the sum of the numbers that the action returned for these keys, such as the number of events that it sent.
    gone: the number of keys that were no longer parked, for instance because an earlier run of the command released them.
    left: each key that is still parked, with the class and the text of the error.
    """

    done: int = 0
    amount: int = 0
    gone: int = 0
    left: list[dict[str, str]] = field(default_factory=list)


class StillParked(Exception):
    """An action on a parked key did not succeed, so the key stays parked. The text says why."""


async def for_each(
    keys: Sequence[str], act: Callable[[str], Awaitable[int]], *, ceiling: Ceiling | None
) -> Results:
    """
    Run an action on one key after another, and show the progress on standard error. If a key stays parked, go on with the next key.

    If the command is interrupted or an outage ends it, an operator can run it again: the keys that the first run finished then count
    as `gone`.

    Args:
        keys: the partition keys.
        act: the action. It gets a key, and returns a number that is added to `amount`.
        ceiling: limits how many keys a second are processed; None if there is no limit.

    Raises:
        OutboxError: a service does not answer.
    """
    results = Results()
    columns = TextColumn("keys"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        for key in bar.track(keys):
            if ceiling is not None:
                await ceiling.turn()
            try:
                results.amount += await act(key)
                results.done += 1
            except KeyNotParked:
                results.gone += 1
            except (StillParked, ParkingError) as error:
                results.left.append({"key": key, "code": type(error).__name__, "error": str(error)})
    return results
