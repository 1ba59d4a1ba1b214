"""
The TTL check: events must outlive the outages that are to be survived.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.service.ttl import require_ttls


def test_a_ttl_shorter_than_the_tolerated_outage_is_refused_by_name():
    ttls = {"Renamed": timedelta(days=10), "Pinged": timedelta(hours=1)}
    with pytest.raises(ConfigurationError, match=r"Pinged \(1:00:00\)") as refused:
        require_ttls(ttls, tolerated_outage=timedelta(days=2))
    assert "Renamed" not in str(refused.value)


def test_a_ttl_as_long_as_the_tolerated_outage_is_accepted():
    require_ttls({"Renamed": timedelta(days=2)}, tolerated_outage=timedelta(days=2))
