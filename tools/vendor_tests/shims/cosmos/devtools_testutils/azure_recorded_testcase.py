"""Replaces the credentials of a live account. There are none here, and an emulator's key needs none."""

from __future__ import annotations

from typing import NoReturn


def get_credential(**_options: object) -> NoReturn:
    """Refuse to return a credential. Tests ask for one only if their account is not an emulator."""
    raise NotImplementedError("the emulators accept only keys, so there is no other credential")
