"""How the Service Bus message of a stored event is built."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.message_format import OutboundMessage, message_of
from cosmos_outbox.partition_key import HASHED, broker_id
from cosmos_outbox.stored_documents import StoredEvent, stored_event
from tests.support.event_documents import event

NAMES = st.text(st.characters(codec=None, categories=None), max_size=200)  # may have lone surrogates
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda children: st.lists(children) | st.dictionaries(NAMES, children),
    max_leaves=10,
)


def a_stored_event(**changes: Any) -> StoredEvent:
    values = {
        "id": "e-1",
        "partition_key": "contact-1",
        "action": "Renamed",
        "data": {"id": "e-1", "action": "Renamed"},
        "meta": {},
        "lsn": 7,
    }
    return StoredEvent(**(values | changes))


def test_an_event_with_all_metadata_becomes_the_expected_message() -> None:
    found = stored_event(
        event(
            "contact-1",
            7,
            sequence=2,
            correlationId="corr",
            causationId="cause",
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            tracestate="vendor=1",
        )
    )
    assert found is not None
    expected = OutboundMessage(
        message_id="contact-1/7",
        session_id="contact-1",
        subject="Renamed",
        body=(
            b'{"id":"contact-1/7","action":"Renamed","createdAt":"2026-01-01T00:00:00Z","number":7,"padding":""}'
        ),
        content_type="application/json",
        properties={
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "tracestate": "vendor=1",
            "entity-type": "contact",
            "entity-id": "contact-1",
            "entity-version": 7,
            "commit-id": "commit-7",
            "sequence": 2,
            "schema-version": 1,
            "correlation-id": "corr",
            "causation-id": "cause",
        },
    )
    assert expected == message_of(found)


@given(data=st.dictionaries(NAMES, JSON))
def test_the_body_of_a_message_is_the_json_of_the_event_data(data: dict[str, Any]) -> None:
    assert data == json.loads(message_of(a_stored_event(data=data)).body.decode())


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1e16", "-0.0", str(2**80), '"\\ud800"', "[" * 300 + "]" * 300]
)
def test_the_body_of_a_message_has_the_values_that_the_json_module_gives(value: str) -> None:
    data = {"value": json.loads(value)}
    body = message_of(a_stored_event(data=data)).body
    assert json.dumps(data) == json.dumps(json.loads(body))


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        (7, 7),
        (2**31 - 1, 2**31 - 1),
        (2**31, "2147483648"),
        (True, "true"),
        (1.5, "1.5"),
        ({"a": 1}, '{"a":1}'),
        ("\ud800x", "\ufffdx"),
    ],
)
def test_a_property_value_without_an_amqp_type_is_sent_as_text(stored: object, sent: object) -> None:
    message = message_of(a_stored_event(meta={"entityVersion": stored}))
    assert {"entity-version": sent} == message.properties


def test_a_message_has_no_property_for_an_empty_correlation_id_or_trace() -> None:
    assert {} == message_of(a_stored_event(meta={"correlationId": None, "traceparent": ""})).properties


@pytest.mark.parametrize("name", ["a", "ж" * 128, "😀" * 64, "with spaces / and slashes"])
def test_a_valid_message_id_is_used_unchanged(name: str) -> None:
    assert name == broker_id(name)


@pytest.mark.parametrize("name", ["", "x" * 129, "😀" * 65, "\ud800", "sha256:abc"])
def test_an_event_id_that_is_no_valid_message_id_is_replaced_by_its_hash(name: str) -> None:
    found = broker_id(name)
    assert found.startswith(HASHED)
    assert len(HASHED) + 64 == len(found)


def test_the_hash_of_a_message_id_never_changes() -> None:
    """
    Duplicate detection compares ids across restarts and versions of the worker, so a new version must produce the same hash.
    """
    assert "sha256:6de3c288691037361962041f2273f381658187e426187979e0273d026ea1b946" == broker_id("k" * 200)


@given(names=st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_two_event_ids_never_get_the_same_message_id(names: list[str]) -> None:
    first, second = names
    assert broker_id(first) != broker_id(second)


@given(name=NAMES)
def test_every_message_id_fits_the_limit_of_the_broker(name: str) -> None:
    found = broker_id(name)
    assert 1 <= len(found.encode("utf-16-le")) // 2 <= 128
