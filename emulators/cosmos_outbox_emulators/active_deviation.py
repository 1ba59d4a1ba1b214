"""
Switches the deviations of an emulator. A deviation is a named difference from Azure's behaviour, which a verifier has to notice.
At most one deviation is in force at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

Subject = TypeVar("Subject")
# A switch takes an emulator's server or broker, and returns a context manager. The emulator deviates from Azure while the `with`
# block of the context manager lasts.
Switch = Callable[[Subject], AbstractContextManager[None]]


class Deviating(Generic[Subject]):
    """Switches the deviations of one emulator on and off. Each has a name, and differs from Azure's behaviour in one way."""

    def __init__(self, subject: Subject, known: Mapping[str, Switch[Subject]]) -> None:
        self._subject = subject
        self._known = known
        self._in_force = ExitStack()

    def switch(self, name: str | None) -> None:
        """
        Switch on the deviation with this name, and end a deviation that was in force before. With None, only end it, so that the
        emulator answers as Azure does.

        Raises:
            ValueError: there is no deviation with this name.
        """
        if name is not None and name not in self._known:
            raise ValueError(f"there is no deviation {name!r}; the deviations are {', '.join(self._known)}")
        self._in_force.close()
        if name is not None:
            self._in_force.enter_context(self._known[name](self._subject))
