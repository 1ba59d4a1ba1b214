"""The outbox on emulators that a run verifies, named by the environment, as for any user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cosmos_outbox_testing.emulated import OutboxEmulators, running_emulators


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> Iterator[OutboxEmulators]:
    """Return emulators of its own, whose topic has the subscriptions `all` (with sessions) and `relayed` (without)."""
    with running_emulators() as fresh, fresh() as outbox:
        for name, value in outbox.environ.items():
            monkeypatch.setenv(name, value)
        yield outbox
