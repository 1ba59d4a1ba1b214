"""
The fixture `verified`: an outbox on emulators. The command `verify` finds it by environment variables, as on a user's machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cosmos_outbox_testing.emulated import OutboxEmulators, running_emulators


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> Iterator[OutboxEmulators]:
    """
    Run emulators with an outbox, and set the environment variables that name it.

    The topic has the subscriptions `all` (with sessions) and `relayed` (without sessions).
    """
    with running_emulators() as fresh, fresh() as outbox:
        for name, value in outbox.environ.items():
            monkeypatch.setenv(name, value)
        yield outbox
