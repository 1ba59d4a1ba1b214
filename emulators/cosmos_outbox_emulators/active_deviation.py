"""Active deviation: at most one deviation from Azure is in force, by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

Subject = TypeVar("Subject")
# A difference from Azure that lasts as long as the block
Switch = Callable[[Subject], AbstractContextManager[None]]


class Deviating(Generic[Subject]):
    """Lets one emulator deviate."""

    def __init__(self, subject: Subject, known: Mapping[str, Switch[Subject]]) -> None:
        self._subject = subject
        self._known = known
        self._in_force = ExitStack()

    def switch(self, name: str | None) -> None:
        """
        Switch on a deviation, and switch the one before off. None: answer as Azure does again.

        Raises:
            ValueError: there is none of that name.
        """
        if name is not None and name not in self._known:
            raise ValueError(f"there is no deviation {name!r}; there are {', '.join(self._known)}")
        self._in_force.close()
        if name is not None:
            self._in_force.enter_context(self._known[name](self._subject))
