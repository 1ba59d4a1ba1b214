"""
Tests of the encoding of messages: the emulator reads the messages of senders, and writes the messages that receivers get.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.decoding import decode
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.message import (
    encode_delivery,
    parse_message,
    parse_transfer,
    read_application_properties,
    with_application_properties,
)
from cosmos_outbox_emulators.servicebus.performatives import BATCH_FORMAT
from cosmos_outbox_emulators.servicebus.primitives import Float, Int
from tests.emulators.servicebus.engine import encoded, message


def sections(data):
    out, position = [], 0
    while position < len(data):
        section, position = decode(data, position)
        out.append((int(section.descriptor), section.value))
    return out


def delivered(item, **changes):
    fields = {
        "application_properties": item.application_properties, "delivery_count": 2, "ttl_s": None, "enqueued_at": 1.5,
        "sequence": 7, "enqueued_sequence": 8, "locked_until": 31.5, "state": 0,
    }  # fmt: skip
    return sections(encode_delivery(item, **{**fields, **changes}))


def batch(*messages):
    return b"".join(b"\x00\x53\x75" + encode(item) for item in messages)


@given(
    body=st.binary(max_size=2000),
    application=st.dictionaries(
        st.text(max_size=5), st.one_of(st.booleans(), st.text(max_size=5), st.just(Float(1.5)))
    ),
    session_id=st.none() | st.text(max_size=20),
)
def test_the_sections_of_a_message_arrive_as_they_were_sent(body, application, session_id):
    sent = encoded(body, session_id=session_id, application=application, header=False)
    assert sections(sent) == delivered(parse_message(sent))[2:]


def test_the_broker_adds_a_header_and_its_annotations_to_a_message():
    sent = message(ttl_ms=5000, annotations={"mine": "kept", "x-opt-sequence-number": 99})
    (header_code, header), (annotations_code, annotations), *_ = delivered(sent, ttl_s=5.0, state=1)
    assert (0x70, 0x72) == (header_code, annotations_code)
    assert [True, None, 5000, None, 2] == header
    expected = {
        "x-opt-enqueued-time": 1500, "x-opt-sequence-number": 7, "x-opt-enqueue-sequence-number": 8,
        "x-opt-locked-until": 31500, "x-opt-message-state": 1, "mine": "kept",
    }  # fmt: skip
    assert expected == annotations


def test_the_broker_gives_an_id_to_a_message_without_one():
    item = parse_message(encoded(message_id=None, session_id="s"))
    assert 32 == len(item.message_id)
    properties = dict(delivered(item))[0x73]
    assert (item.message_id, "s") == (properties[0], properties[10])


def test_a_batch_is_split_into_whole_messages():
    first, second = encoded(b"1", message_id="a"), encoded(b"2" * 300, message_id="b", session_id="s")
    items = parse_transfer(batch(first, second), BATCH_FORMAT)
    assert [("a", None), ("b", "s")] == [(item.message_id, item.session_id) for item in items]


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=4), st.booleans())
def test_adding_properties_to_a_message_keeps_its_other_properties(present, twice):
    extra = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d" * 300}
    section = b"\x00\x53\x74" + encode({"n": Int(1), **present})
    section = with_application_properties(section, extra)
    if twice:
        section = with_application_properties(section, extra)
    item = parse_message(section + encoded())
    assert {"n": Int(1), **present, **extra} == read_application_properties(item)


def test_properties_can_be_added_to_a_message_that_has_no_properties():
    for section in (b"", b"\x00\x53\x74\x40"):
        added = with_application_properties(section, {"a": "b"})
        assert [(0x74, {"a": "b"})] == sections(added)


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"message_id": "x" * 129}, "com.microsoft:argument-error"),
        ({"session_id": "x" * 129}, "com.microsoft:argument-error"),
        ({"annotations": {"x-opt-partition-key": "x" * 129}}, "com.microsoft:argument-error"),
        ({"session_id": "a", "annotations": {"x-opt-partition-key": "b"}}, "amqp:not-allowed"),
        ({"application": {str(n): "x" * 1024 for n in range(64)}}, "com.microsoft:argument-error"),
        ({"application": {"long": "x" * 32768}}, "amqp:internal-error"),
    ],
)
def test_a_property_that_exceeds_its_limit_is_refused(fields, condition):
    with pytest.raises(AmqpError) as caught:
        message(**{"message_id": "m", **fields})
    assert condition == caught.value.condition


def test_a_property_exactly_as_long_as_its_limit_is_accepted():
    item = message("m" * 128, session_id="s" * 128, application={str(n): "x" * 1000 for n in range(60)})
    assert 128 == len(item.identity)
