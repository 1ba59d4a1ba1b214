"""
A dict and a deque that report their changes to a callback. They let `persistence` notice changes without any code for files in the
engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class NotedDict(dict[K, V]):
    """A dict that calls back with the key and the value of each item that is set or removed."""

    def __init__(self, items: Mapping[K, V], note: Callable[[K, V], None]) -> None:
        super().__init__(items)
        self._note = note

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._note(key, value)

    def __delitem__(self, key: K) -> None:
        self._note(key, super().pop(key))

    def pop(self, key: K, *default: Any) -> Any:
        known = key in self
        value = super().pop(key, *default)
        if known:
            self._note(key, value)
        return value


class NotedDeque(deque[V]):
    """A deque that calls a function with each element that is appended."""

    def __init__(self, elements: Iterable[V], note: Callable[[V], None]) -> None:
        super().__init__(elements)
        self._note = note

    def append(self, element: V) -> None:
        super().append(element)
        self._note(element)
