"""The size limits of Service Bus for the properties of a message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cosmos_outbox.message_format import (
    MAX_PROPERTIES_BYTES,
    MAX_PROPERTY_BYTES,
    OutboundMessage,
    require_properties_that_fit,
)


def a_message() -> OutboundMessage:
    return OutboundMessage(
        message_id="1", session_id="k", subject="Renamed", body=b"{}", properties={"sequence": 0}
    )


@pytest.mark.parametrize("character", ["x", "ж", "猫", "🐈"])
def test_the_size_of_a_property_is_that_of_its_name_and_value_in_bytes(character: str) -> None:
    width = len(character.encode())
    longest = character * ((MAX_PROPERTY_BYTES - len("cause")) // width)
    require_properties_that_fit(replace(a_message(), properties={"cause": longest, "sequence": 1}))
    with pytest.raises(ValueError, match="'cause'"):
        require_properties_that_fit(replace(a_message(), properties={"cause": longest + character}))


def test_the_total_size_of_all_properties_is_limited() -> None:
    third = "x" * (MAX_PROPERTIES_BYTES // 3)
    with pytest.raises(ValueError, match="in all"):
        require_properties_that_fit(replace(a_message(), properties=dict.fromkeys("abc", third)))
