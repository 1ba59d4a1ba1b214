"""
Documents of the parked store are read as they were written. A document that cannot be read is named in the error.
"""

from __future__ import annotations

from typing import Any

import pytest

from cosmos_outbox.errors import ParkingError
from cosmos_outbox.parking.park import key_in
from cosmos_outbox.parking.parked_documents import KEY_ID, parked_id
from tests.support.event_documents import event
from tests.support.parked_stores import tampered
from tests.unit.parking.test_parking import parked, place

_KEY = ["epoch", "state", "claim", "first", "next", "held", "parkedAt", "failure"]
_EVENT = ["event", "epoch", "position", "status", "parkedAt", "closedAt", "note", "failure", "original"]
_WRONG: list[tuple[str, Any]] = [
    ("state", "quarantined"),
    ("held", "3"),
    ("next", None),
    ("parkedAt", 7),
    ("failure", {"eventId": "e"}),
    ("failure", "large"),
]


@pytest.mark.parametrize("field", _KEY)
async def test_the_error_of_a_parked_key_with_a_missing_field_names_the_key(field: str) -> None:
    world = await parked()
    await tampered(world.store, KEY_ID, place("b"), lambda document: document.pop(field))
    with pytest.raises(ParkingError, match=f"'outbox.key' of partition key .* cannot be read .*{field}"):
        await key_in(world.store, place("b"))


@pytest.mark.parametrize(("field", "value"), _WRONG)
async def test_the_error_of_a_parked_key_with_an_invalid_field_names_the_key(
    field: str, value: object
) -> None:
    world = await parked()
    await tampered(world.store, KEY_ID, place("b"), lambda document: document.update({field: value}))
    with pytest.raises(ParkingError, match=r"'outbox\.key' of partition key 'b'"):
        await key_in(world.store, place("b"))


@pytest.mark.parametrize("field", _EVENT)
async def test_the_error_of_a_parked_event_with_a_missing_field_names_the_event(field: str) -> None:
    world = await parked()
    await tampered(world.store, parked_id("b/2"), place("b"), lambda document: document.pop(field))
    (unreadable,) = (await world.operator.show("b")).unreadable
    assert parked_id("b/2") == unreadable.document_id
    with pytest.raises(
        ParkingError, match=f"'{parked_id('b/2')}' of partition key .* cannot be read .*{field}"
    ):
        raise unreadable.error


async def test_a_parked_key_that_cannot_be_read_does_not_stop_other_keys() -> None:
    world = await parked()
    await tampered(world.store, KEY_ID, place("b"), lambda document: document.update(state="quarantined"))
    with pytest.raises(ParkingError, match=r"'outbox\.key' of partition key 'b'"):
        await world.worker()(world.page(event("b", 9), event("c", 1)))
    assert ["b/1", "c/1"] == world.ids
