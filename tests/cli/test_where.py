"""
Tests of `cosmos-outbox where KEY`, which shows for each event of a key whether it waits, was sent, is held
(parked) or was dropped.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import aiohttp
import pytest
from azure.cosmos.aio import DatabaseProxy

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.domain.entities import INBOX_TYPE
from cosmos_outbox_worker.connection import open_connection
from cosmos_outbox_worker.http_server import serving_health
from cosmos_outbox_worker.settings import load
from cosmos_outbox_worker.where import find_events, of_events
from tests.cli.test_consumer import CONSUMER, OF, message
from tests.cli.test_consumer import park as hold
from tests.cli.test_own_container import ADA, VARIABLES, events  # noqa: F401 - a fixture
from tests.cli.test_parked import PARKED, park
from tests.support.fleets import HEALTHY
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def states(found: dict[str, Any]) -> list[str]:
    """Return the states of the events in the output of `where`, from the oldest to the newest."""
    return [event["state"] for event in reversed(found["events"])]


def test_where_ends_with_exit_code_5_if_nothing_is_stored_of_the_key(outbox: Local):
    assert "Nothing is stored of 'ada'" in outbox.json("where", "ada", code=5, **PARKED)["error"]["message"]


def test_where_shows_an_event_as_waiting_until_the_lease_has_passed_it(outbox: Local):
    ids = outbox.commit("ada", "grace")[:2]
    found = outbox.json("where", "ada", **PARKED)
    assert (["unknown", "unknown"], None) == (states(found), found["waiting"]), "there is no lease yet"
    outbox.run("bootstrap")
    found = outbox.json("where", "ada", **PARKED)
    assert (["waits", "waits"], 2, None) == (states(found), found["waiting"], found["sent_up_to"])
    assert (ids[1:], ["contact ada, version 2"]) == tuple(found["last_commit"][it] for it in ("events", "of"))
    outbox.pass_all()
    found = outbox.json("where", "ada", **PARKED)
    assert (["sent", "sent"], 0, ids[1]) == (states(found), found["waiting"], found["sent_up_to"]["event"])
    said = outbox.run("where", "ada", **PARKED).stdout
    assert f"Sent up to event {ids[1]!r}; behind position {found['position']} of range 0" in said
    assert "It is not parked." in said
    assert re.search(
        rf"^{ids[1]}\tContactNameUpdatedEvent\tcontact ada, version 2\t.*Z\tsent$", said, re.MULTILINE
    )


def test_the_command_where_shows_a_parked_event_as_held_until_it_is_dropped_or_released(alone: Local):
    ids = park(alone, "ada")
    alone.pass_all()
    found = alone.json("where", "ada", **PARKED)
    assert (["held", "held"], 0, None) == (states(found), found["waiting"], found["sent_up_to"])
    assert (2, ids[0], "MessageRejected") == tuple(found["parked"][it] for it in ("held", "event", "reason"))
    said = alone.run("where", "ada", **PARKED).stdout
    assert "Held: 2, 1 of them behind" in said
    assert "No stored event is known to be sent" in said
    alone.run("parked", "drop", "ada", ids[0], "--reason", "a test", "--yes", **PARKED)
    alone.run("parked", "release", "ada", "--yes", **PARKED)
    found = alone.json("where", "ada", **PARKED)
    assert (["dropped", "sent"], None) == (states(found), found["parked"])


def test_where_names_the_entity_of_a_key_whose_events_have_expired(alone: Local):
    alone.commit("ada")
    alone.pass_all()
    alone.steer("/cosmos/clock", advance_s=11 * 86_400)
    found = alone.json("where", "ada", **PARKED)
    assert ([], None, ["contact ada, version 2"]) == (
        found["events"],
        found["last_commit"],
        found["entities"],
    )
    assert "No event of it is stored any more" in alone.run("where", "ada", **PARKED).stdout


def test_where_takes_a_hierarchical_key_as_a_json_array(outbox: Local, events: list[str]):  # noqa: F811
    for name in (ADA, '["t1", 1]'):
        found = outbox.json("where", name, **VARIABLES)
        assert (ADA, ["held", "held"]) == (found["key"], states(found))
    assert "is no partition key" in outbox.run("where", "t1", code=2, **VARIABLES).stderr


def test_where_shows_the_handled_and_parked_messages_of_a_consumer(outbox: Local):
    outbox.run("where", "a", *OF, code=5, **CONSUMER)
    hold(outbox, message(-1), message(2, number=2))

    async def handle(database: DatabaseProxy) -> None:
        record = {"id": "inbox.invoicing.m-0", "partitionKey": "a", "type": INBOX_TYPE, "ttl": 600}
        await database.get_container_client("data").create_item(
            record | {"consumer": "invoicing", "messageId": "m-0"}
        )

    outbox.on_database(handle)
    found = outbox.json("where", "a", *OF, **CONSUMER)
    assert (["m-0"], 2, "m-1") == (
        [one["message"] for one in found["messages"]],
        found["parked"]["held"],
        found["parked"]["event"],
    )
    assert "invoicing handled 'm-0' last" in outbox.run("where", "a", *OF, **CONSUMER).stdout


def test_the_command_where_shows_an_event_as_unknown_if_its_lease_has_no_known_lag(outbox: Local):
    outbox.commit("ada")
    outbox.run("bootstrap")

    async def look(database: DatabaseProxy) -> Any:
        page = await CosmosStore(database.get_container_client("data")).query(
            "SELECT * FROM c", {}, partition_key="ada", page_size=9, continuation=None
        )
        return page.documents

    lease: Any = type("Read", (), {"continuation": '"5"', "token": "0", "owner": None})
    found = of_events("ada", outbox.on_database(look), (lease, frozenset(), True), None, {})
    assert {"unknown"} == {one["state"] for one in found.rows}
    assert "0 or more waiting" in " ".join(found.said)


async def test_the_search_form_of_the_status_page_works_without_a_script(
    outbox: Local, monkeypatch: pytest.MonkeyPatch
):
    await asyncio.to_thread(outbox.commit, "<ada>")
    await asyncio.to_thread(outbox.pass_all)
    for name, value in (outbox.environment | PARKED).items():
        monkeypatch.setenv(name, value)
    async with open_connection(load(for_command=True)) as connection:
        asked: list[str] = []

        async def search(key: str, _: str | None) -> Any:
            asked.append(key)
            return await find_events(connection, key)

        async with (
            serving_health(lambda: HEALTHY, metrics=lambda: (b"", ""), address="0", search=search) as url,
            aiohttp.ClientSession(url) as client,
        ):
            async with client.get("/") as answer:
                assert 'name="key" value=""' in await answer.text()
                assert "form-action 'self'" in answer.headers["Content-Security-Policy"]
            assert [] == asked, "a page that asks for no key reads nothing"
            async with client.get("/", params={"key": "<ada>"}) as answer:
                page = await answer.text()
            async with client.get("/", params={"key": "grace"}) as answer:
                assert "Nothing is stored of &#39;grace&#39;" in await answer.text()
    assert "<ada>" not in page
    assert 'value="&lt;ada&gt;"' in page
    assert "Sent up to event" in page
    assert page.count("ContactNameUpdatedEvent") == 1
