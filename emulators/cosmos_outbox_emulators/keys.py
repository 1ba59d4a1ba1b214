"""Pairs of account keys, as both services have them. Clients use one key of a pair while the other one is regenerated."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator


class KeyPair:
    """A primary and a secondary key. Each of them is valid until it is regenerated."""

    def __init__(self, primary: str, *, size: int) -> None:
        self._size = size
        self._keys = {"primary": primary, "secondary": self._new()}

    def __getitem__(self, which: str) -> str:
        return self._keys[which]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys.values())

    def as_dict(self) -> dict[str, str]:
        return dict(self._keys)

    def regenerate(self, which: str) -> None:
        """
        Replace one of the two keys by a new one. The old key is no longer valid.

        Raises:
            ValueError: `which` is neither "primary" nor "secondary".
        """
        if which not in self._keys:
            raise ValueError(f"'regenerate' must be primary or secondary, not {which!r}")
        self._keys[which] = self._new()

    def _new(self) -> str:
        return base64.b64encode(secrets.token_bytes(self._size)).decode()
