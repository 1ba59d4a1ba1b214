"""Many parked keys: the choice of some parked keys, and an action on one after another."""

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
    """The parked keys on which a command works. Exactly one of these is given."""

    key: str | None
    all: bool
    error: str | None
    file: Path | None

    def __post_init__(self) -> None:
        if sum((self.key is not None, self.all, self.error is not None, self.file is not None)) != 1:
            raise UsageError("Name one of these: a key, --all, --error or --file.")

    def of(self, keys: Sequence[ParkedKey]) -> list[str]:
        """Return the chosen partition keys; keys from a file are returned even if they are no longer parked."""
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

    done: keys; `amount` is the sum of what the action returned for them.
    gone: keys that were not parked any more; an earlier run did them, or a worker.
    left: each key that is still parked, with the class of the error that says why.
    """

    done: int = 0
    amount: int = 0
    gone: int = 0
    left: list[dict[str, str]] = field(default_factory=list)


class StillParked(Exception):
    """A key stays parked; the message says why."""


async def for_each(
    keys: Sequence[str], act: Callable[[str], Awaitable[int]], *, ceiling: Ceiling | None
) -> Results:
    """
    Act on one key after another, with progress on standard error. If a key stays parked, go on with the next.

    A command that was interrupted, or ended by an outage, is run again: what it did is done, and those keys are gone.

    Args:
        keys: the partition keys.
        act: does it, and returns an amount.
        ceiling: of keys a second, if there is one.

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
