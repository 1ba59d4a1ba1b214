"""
OutboundMessage is a value: what is sent again is equal to what was sent.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from cosmos_outbox.messages import OutboundMessage


def a_message() -> OutboundMessage:
    return OutboundMessage(
        message_id="1", session_id="k", subject="Renamed", body=b"{}", properties={"sequence": 0}
    )


def test_messages_with_equal_fields_are_equal() -> None:
    assert a_message() == a_message()


def test_a_message_cannot_change_between_two_sends() -> None:
    with pytest.raises(FrozenInstanceError):
        a_message().body = b""  # type: ignore[misc]  # the mistake that this test is about


def test_the_body_is_json_unless_said_otherwise() -> None:
    assert "application/json" == a_message().content_type
