"""
Switches the deviations of an emulator, which are named differences from Azure's behaviour. At most one of them is in force at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

Subject = TypeVar("Subject")
# Given an emulator's server or broker, returns a context manager. The emulator deviates from Azure inside of its `with` block.
Switch = Callable[[Subject], AbstractContextManager[None]]


class Deviating(Generic[Subject]):
    """Switches the deviations of one emulator on and off."""

    def __init__(self, subject: Subject, known: Mapping[str, Switch[Subject]]) -> None:
        self._subject = subject
        self._known = known
        self._in_force = ExitStack()

    def switch(self, name: str | None) -> None:
        """
        Switch on the deviation with this name, in place of one that is in force. With None, the emulator answers as Azure does
        again.

        Raises:
            ValueError: there is no deviation with this name.
        """
        if name is not None and name not in self._known:
            raise ValueError(f"there is no deviation {name!r}; the deviations are {', '.join(self._known)}")
        self._in_force.close()
        if name is not None:
            self._in_force.enter_context(self._known[name](self._subject))
