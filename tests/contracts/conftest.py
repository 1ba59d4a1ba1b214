"""Failures of the ports' contracts say what was compared, as those of tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"tests.contracts.ports.{port}" for port in ("parked_store", "change_feed")))
