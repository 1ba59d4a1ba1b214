"""
The library's own encoder of Service Bus messages: its bytes equal those of the SDK. What it cannot encode, the SDK encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.exceptions import MessageSizeExceededError
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from cosmos_outbox.adapters.servicebus import encoding
from cosmos_outbox.message_format import MAX_PROPERTY_BYTES, OutboundMessage
from tests.support.effort import examples

EDGES = (0, 1, 2**7 - 1, 2**7, 2**8 - 1, 2**8, 2**31 - 1, 2**31, 2**63)
INTS = st.sampled_from([*EDGES, *(-edge - 1 for edge in EDGES)]) | st.integers()
# Some of these texts have lone surrogates, which UTF-8 cannot encode.
TEXT = st.text(st.characters(codec=None, categories=None), max_size=5)
LONG = st.builds(lambda letter, size: letter * size, st.sampled_from("aä☃😀"), st.integers(50, 300))


def a_message(**changes: Any) -> OutboundMessage:
    plain = {"message_id": "m", "session_id": "k", "subject": "Renamed", "body": b"{}", "properties": {}}
    return OutboundMessage(**plain | changes)


def messages(
    texts: SearchStrategy[str], values: SearchStrategy[object], *, of: Sequence[int]
) -> SearchStrategy[OutboundMessage]:
    return st.builds(
        a_message,
        message_id=texts,
        session_id=texts,
        subject=texts,
        content_type=st.just("application/json") | texts,
        properties=st.dictionaries(texts, values, max_size=3),
        body=st.sampled_from(of).map(bytes),
        deliver_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    )


NAMES = TEXT | LONG
MESSAGES = messages(
    NAMES,
    NAMES | INTS | st.booleans() | st.floats() | st.none() | st.binary(max_size=2),
    of=[0, 1, 255, 256, 70_000],
)
ENCODED = messages(
    st.text("aä☃😀", min_size=1, max_size=60), st.integers(-(2**31), 2**31 - 1), of=[0, 1, 255, 256]
)


def by_the_sdk(*messages: OutboundMessage, most: int | None = None) -> ServiceBusMessageBatch:
    batch = ServiceBusMessageBatch(most)
    for message in messages:
        batch.add_message(encoding.sdk_message(message))
    return batch


def content(batch: ServiceBusMessageBatch) -> tuple[object, int, int]:
    return batch._message, batch.size_in_bytes, len(batch)


@pytest.fixture
def forgotten() -> Iterator[None]:
    encoding.difference.cache_clear()
    yield
    encoding.difference.cache_clear()


# The example has 130 properties, so AMQP writes a map of 260 names and values. This number does not fit into a byte.
@given(message=MESSAGES)
@example(message=a_message(properties={str(number): number for number in range(130)}))
@hypothesis_settings(max_examples=examples(100, many=5_000), deadline=None)
def test_an_encoded_message_has_the_same_bytes_as_with_the_sdk(message: OutboundMessage) -> None:
    """For a message that it does not support, the encoder returns None. The SDK encodes the message then."""
    encoded = encoding.encode(message)
    # The SDK generates an id for a message without one, so the encoder leaves such a message to the SDK.
    usual = message.message_id and all(type(value) in (str, int) for value in message.properties.values())
    try:
        [expected] = by_the_sdk(message, most=10**6)._message[5]
    except (TypeError, ValueError):
        assert encoded is None
        return
    assert bool(usual) == (encoded is not None)
    if encoded is not None:
        assert bytes(expected) == encoded
        assert (list(message.properties.items()), [message.body]) == _read(encoded)


def test_the_size_fields_of_an_encoded_message_are_those_of_the_sdk() -> None:
    """
    The test covers bodies, texts and properties of up to 299 bytes. From 256 bytes on, a size field takes four bytes instead of one.
    """
    for size in range(300):
        text = "x" * size
        for message in (
            a_message(body=text.encode()),
            a_message(subject=text),
            a_message(properties={"": text}),
        ):
            [expected] = by_the_sdk(message)._message[5]
            assert bytes(expected) == encoding.encode(message)


def _read(encoded: bytes) -> tuple[list[tuple[str, Any]], list[bytes]]:
    found = decode_payload(memoryview(encoded))
    properties: Mapping[bytes, Any] = found.application_properties or {}
    texts = ((name.decode(), value) for name, value in properties.items())
    return [
        (name, value.decode() if isinstance(value, bytes) else value) for name, value in texts
    ], found.data


@given(messages=st.lists(ENCODED, min_size=1, max_size=5), most=st.integers(200, 2000))
@hypothesis_settings(max_examples=examples(30, many=3_000), deadline=None)
def test_a_batch_takes_the_same_messages_as_a_batch_of_the_sdk(
    messages: list[OutboundMessage], most: int
) -> None:
    def filled(add: Callable[[ServiceBusMessageBatch, OutboundMessage], object]) -> ServiceBusMessageBatch:
        batch = by_the_sdk(a_message(), most=most)
        for message in messages:
            assert encoding.encode(message)
            try:
                add(batch, message)
            except MessageSizeExceededError:
                break
        return batch

    expected = filled(lambda batch, message: batch.add_message(encoding.sdk_message(message)))
    assert content(expected) == content(filled(encoding.append))


def test_a_message_with_properties_near_the_size_limit_is_left_to_the_sdk() -> None:
    assert encoding.encode(a_message(properties={"x": "y" * MAX_PROPERTY_BYTES})) is None


def test_the_encoder_supports_the_installed_sdk(forgotten: None) -> None:
    assert None is encoding.difference()
    assert None is encoding.fallback_cause()


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"_FIELDS": 12}, id="other bytes"),
        pytest.param({"_MOST": 200}, id="other sizes"),
        pytest.param({"_ENCODERS": {}}, id="no bytes"),
        pytest.param({"ServiceBusMessageBatch": object}, id="another class"),
    ],
)
def test_the_encoder_is_not_used_if_it_differs_from_the_sdk(
    forgotten: None, monkeypatch: pytest.MonkeyPatch, patch: dict[str, Any]
) -> None:
    for name, value in patch.items():
        monkeypatch.setattr(encoding, name, value)
    assert encoding.difference()
    assert encoding.difference() == encoding.fallback_cause()


def test_the_sdk_encodes_the_messages_while_its_tracing_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.tracing_implementation, "_user_value", object)
    assert "the SDK traces messages" == encoding.fallback_cause()
