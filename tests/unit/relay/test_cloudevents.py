"""
Messages as CloudEvents: the attributes that the specification asks for, in the content modes structured and binary.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.message_format import OutboundMessage, message_of
from cosmos_outbox.relay.cloudevents import ContentMode, as_cloud_event
from cosmos_outbox.stored_documents import stored_event
from tests.support.event_documents import event

SOURCE = "/contacts/data"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def plain(**meta) -> OutboundMessage:
    found = stored_event(event("contact-1", 7, **meta))
    assert found
    return message_of(found)


def structured(message: OutboundMessage) -> dict:
    return json.loads(as_cloud_event(message, source=SOURCE, mode=ContentMode.STRUCTURED).body)


def test_a_structured_cloud_event_has_all_attributes():
    """Besides these attributes, the CloudEvent has the unchanged body of the message as its `data`."""
    message = plain(traceparent=TRACE, correlationId="c1")
    assert {
        "specversion": "1.0",
        "id": "contact-1/7",
        "source": SOURCE,
        "type": "Renamed",
        "subject": "contact-1",
        "time": "2026-01-01T00:00:00Z",
        "datacontenttype": "application/json",
        "partitionkey": "contact-1",
        "traceparent": TRACE,
        "entitytype": "contact",
        "entityversion": 7,
        "commitid": "commit-7",
        "commitsequence": 0,
        "schemaversion": 1,
        "correlationid": "c1",
        "data": json.loads(message.body),
    } == structured(message)


def test_a_binary_cloud_event_has_its_attributes_as_message_properties():
    """Body and content type stay those of the plain message."""
    message = plain()
    sent = as_cloud_event(message, source=SOURCE, mode=ContentMode.BINARY)
    assert (message.body, message.content_type) == (sent.body, sent.content_type)
    assert ("1.0", "contact-1/7", SOURCE, "Renamed", "2026-01-01T00:00:00Z") == tuple(
        sent.properties[f"cloudEvents_{name}"] for name in ("specversion", "id", "source", "type", "time")
    )
    assert "cloudEvents_datacontenttype" not in sent.properties


@pytest.mark.parametrize("mode", list(ContentMode))
def test_a_cloud_event_keeps_message_id_session_id_subject_and_properties(mode):
    message = plain()
    sent = as_cloud_event(message, source=SOURCE, mode=mode)
    assert (message.message_id, message.session_id, message.subject) == (
        sent.message_id,
        sent.session_id,
        sent.subject,
    )
    assert dict(message.properties) == {name: sent.properties[name] for name in message.properties}


def test_the_type_of_a_cloud_event_is_never_empty():
    document = event()
    del document["data"]["action"]
    found = stored_event(document)
    assert found
    assert "event" == structured(message_of(found))["type"]


@given(
    data=st.dictionaries(
        st.text(max_size=5), st.none() | st.text(max_size=5) | st.integers() | st.floats(allow_nan=False)
    )
)
def test_the_data_of_a_structured_cloud_event_has_the_bytes_of_the_body(data):
    document = {**event(), "data": data}
    found = stored_event(document)
    assert found
    message = message_of(found)
    sent = as_cloud_event(message, source=SOURCE, mode=ContentMode.STRUCTURED)
    assert sent.body.endswith(b',"data":' + message.body + b"}")
    assert json.loads(message.body) == json.loads(sent.body)["data"]


def test_every_attribute_name_is_valid_by_the_cloudevents_specification():
    names = structured(plain(traceparent=TRACE, tracestate="a=b", correlationId="c", causationId="d")).keys()
    assert [] == [name for name in names if not re.fullmatch(r"[a-z0-9]{1,20}", name)]
