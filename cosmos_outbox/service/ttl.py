"""
TTL check: Cosmos DB deletes an event when its TTL ends, sent or not, so events must outlive the outages to survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from cosmos_outbox.errors import ConfigurationError


def require_ttls(ttls: Mapping[str, timedelta], *, tolerated_outage: timedelta) -> None:
    """
    Refuse events that Cosmos DB would delete during an outage that is to be survived.

    Args:
        ttls: the TTL of each kind of event, by a name the message can use.

    Raises:
        ConfigurationError: names each that is too short, and the fix.
    """
    short = [f"{name} ({ttl})" for name, ttl in sorted(ttls.items()) if ttl < tolerated_outage]
    if short:
        raise ConfigurationError(
            f"An outage of {tolerated_outage} is to be survived, but events live shorter: {', '.join(short)}. "
            "Raise their time to live, or lower the tolerated outage."
        )
