"""Credentials of a live account: there are none here, and an emulator's key needs none."""

from __future__ import annotations

from typing import NoReturn


def get_credential(**_options: object) -> NoReturn:
    """Refuse: tests ask only for an account that is no emulator."""
    raise NotImplementedError("the emulators know keys only")
