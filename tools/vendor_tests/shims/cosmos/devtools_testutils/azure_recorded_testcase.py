"""Replaces the SDK's module for credentials of a live account, because an emulator has only a key."""

from __future__ import annotations

from typing import NoReturn


def get_credential(**_options: object) -> NoReturn:
    """Refuse to return a credential. Tests ask for one only if their account is not an emulator."""
    raise NotImplementedError("the emulators accept only keys: use the account's key")
