"""
Tests of `cosmos-outbox parked …`: listing, showing, releasing and dropping the events that a relay parked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ChangeBatch, StartFrom
from cosmos_outbox.relay import Relay
from cosmos_outbox_worker.cli.replay import read_events
from examples.contacts.domain import Contact, ContactDeletedEvent, Name
from examples.contacts.service import ContactsUnitOfWork
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]
PARKED = {"OUTBOX_PARKED_CONTAINER": "parked"}


def park(
    outbox: Local, *names: str, rejects: Callable[[OutboundMessage], bool] = lambda message: True
) -> list[str]:
    """
    Commit two events for each name. Let a relay park the events that the topic rejects. Return the ids of all events, in the order of the
    names.
    """
    ids = outbox.commit(*names)

    async def relay(database):
        broker = MemoryBroker(rejects=rejects)
        parking = Parking(CosmosParked(database.get_container_client("parked")))
        feed = CosmosChangeFeed(database.get_container_client("data"), account_host="localhost")
        container_rid = (await feed.describe()).container_rid
        async for found in read_events(feed, start=StartFrom.BEGINNING):
            if found.documents:
                handler = Relay(broker.publisher(lanes=1), parking=parking)
                await handler(
                    ChangeBatch(
                        lease="l", documents=found.documents, processor="outbox", container_rid=container_rid
                    )
                )

    outbox.on_database(relay)
    return ids


def test_parked_list_is_empty_before_anything_was_parked(outbox: Local):
    assert [] == outbox.rows("parked", "list", **PARKED)
    assert "No key is parked." in outbox.run("parked", "list", **PARKED).stdout
    assert "'nowhere'" in outbox.run("parked", "list", code=2, OUTBOX_PARKED_CONTAINER="nowhere").stderr
    assert "OUTBOX_PARKED_CONTAINER" in outbox.run("parked", "list", code=2).stderr
    assert "ada" in outbox.run("parked", "show", "ada", code=5, **PARKED).stderr


def test_parked_list_prints_the_causes_and_parked_show_prints_the_events(outbox: Local):
    ids = park(outbox, "ada", "grace")
    listed = {row["key"]: row for row in outbox.rows("parked", "list", **PARKED)}
    assert ({"ada", "grace"}, 2, ids[0]) == (set(listed), listed["ada"]["held"], listed["ada"]["event"])
    assert listed["ada"]["error"]
    shown = outbox.json("parked", "show", "ada", **PARKED)
    assert ids[:2] == [event["event"] for event in shown["events"]]
    seen = outbox.json("status", **PARKED)
    assert (2, 4) == (seen["parked_keys"], seen["parked_events"])
    assert "parked keys 2, parked events 4" in " ".join(outbox.run("status", **PARKED).stdout.split())
    assert seen["parked_keys"] != outbox.json("status")["parked_keys"]


def test_the_command_parked_show_gives_the_time_of_an_event_for_later(outbox: Local):
    async def commit(database):
        store = CosmosStore(database.get_container_client("data"))
        async with Outbox(store).unit_of_work(ContactsUnitOfWork) as uow:
            contact = uow.contacts.create(Contact(id="later", name=Name(first_name="A", last_name="B")))
            deleted = ContactDeletedEvent(contact_id="later")
            contact.record(deleted, deliver_at=datetime(2100, 1, 1, tzinfo=UTC))
            await uow.commit()

    outbox.on_database(commit)
    park(outbox)
    shown = outbox.json("parked", "show", "later", **PARKED)["events"]
    assert [None, "2100-01-01T00:00:00Z"] == [event["deliver_at"] for event in shown]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["parked", "release", "nowhere", "--yes"], 5, "KeyNotParked"),
        (["parked", "release", "ada", "--yes", "--edited", "/nowhere.json"], 2, "BadParameter"),
        (["leases", "reset", "--to", "beginning"], 5, "NothingMatches"),
        (["leases", "reset"], 2, "MissingParameter"),
        (["parked", "park", "ada", "--reason", "a test"], 6, "Declined"),
    ],
)
def test_a_failed_command_with_json_prints_an_error_code_for_programs(
    outbox: Local, arguments: list[str], code: int, error: str
):
    said = outbox.json(*arguments, code=code, **PARKED)["error"]
    assert error == said["code"]
    assert said["message"]


def test_a_command_without_a_reachable_account_ends_with_exit_code_3(outbox: Local):
    nowhere = "AccountEndpoint=http://127.0.0.1:9/;AccountKey=a2V5;"
    said = outbox.json("status", code=3, OUTBOX_COSMOS_CONNECTION_STRING=nowhere)
    assert "StoreUnavailable" == said["error"]["code"]


def test_a_release_sends_the_held_events_and_unparks_the_key(alone: Local, tmp_path):
    *_, first, _ = park(alone, "ada", "grace")
    assert "--yes" in alone.run("parked", "release", "ada", code=6, **PARKED).stderr
    assert {"released": 1, "events_sent": 2, "gone": 0, "left": []} == alone.json(
        "parked", "release", "ada", "--yes", **PARKED
    )
    assert 2 == alone.accepted
    assert ["grace"] == [row["key"] for row in alone.rows("parked", "list", **PARKED)]
    edited = tmp_path / "data.json"
    edited.write_text(json.dumps({"id": first, "action": "Mended"}))
    alone.run("parked", "release", "grace", "--edited", str(edited), "--yes", **PARKED)
    assert 4 == alone.accepted
    assert [] == alone.rows("parked", "list", **PARKED)


def test_control_characters_of_keys_and_payloads_are_escaped_in_output(outbox: Local):
    key = "\x1b[2Jada\nWorker w: running"

    async def write(database):
        data = {"action": "Grown", "text": "\x1b[31m" + "x" * 300_000}
        event = {"id": "e-1", "partitionKey": key, "type": "domainEvent", "data": data}
        await database.get_container_client("data").create_item(event)

    outbox.on_database(write)
    park(outbox)
    for command in (["list"], ["list", "--by-error"], ["show", key]):
        shown = outbox.run("parked", *command, **PARKED)
        assert "\x1b" not in shown.stdout + shown.stderr
        assert not [line for line in shown.stdout.splitlines() if line.startswith("Worker w")]
    assert "\\x1b[2Jada\\nWorker w: running" in outbox.run("parked", "list", **PARKED).stdout


def test_parked_show_cuts_a_long_payload_unless_json_is_asked_for(outbox: Local):
    async def write(database):
        data = {"action": "Grown", "text": "x" * 100_000}
        event = {"id": "e-1", "partitionKey": "ada:fire:[b]", "type": "domainEvent", "data": data}
        await database.get_container_client("data").create_item(event)

    outbox.on_database(write)
    park(outbox)
    shown = outbox.run("parked", "show", "ada:fire:[b]", **PARKED).stdout
    assert "ada:fire:[b]" in shown, "rich makes pictures of :names: and styles of [brackets]"
    text = re.sub(r"[\s│]", "", shown)
    assert '{"action":"Grown"' in text
    assert "--jsonhasall" in text
    assert text.count("x") < 600
    (event,) = outbox.json("parked", "show", "ada:fire:[b]", **PARKED)["events"]
    assert "x" * 100_000 == event["data"]["text"]


def test_parked_release_refuses_an_edited_payload_that_is_no_json_object(outbox: Local, tmp_path):
    park(outbox, "ada")
    edited = tmp_path / "data.json"
    for content in ("[]", "nonsense"):
        edited.write_text(content)
        assert (
            str(edited)
            in outbox.run(
                "parked", "release", "ada", "--edited", str(edited), "--yes", code=2, **PARKED
            ).stderr
        )
    assert 2 == outbox.rows("parked", "list", **PARKED)[0]["held"]


def test_an_edited_payload_without_the_event_s_id_and_action_is_refused(outbox: Local, tmp_path: Path):
    """`parked release --edited` refuses it before it asks the operator for a confirmation."""
    first, _ = park(outbox, "ada")
    edited = tmp_path / "data.json"
    release = ("parked", "release", "ada", "--edited", str(edited))
    for lacking, payload in {
        "`id`": {"action": "Mended"},
        "`action`": {"id": first, "action": ""},
        "`id` (": {"n": 1},
    }.items():
        edited.write_text(json.dumps(payload))
        said = outbox.run(*release, code=2, **PARKED).stderr
        assert lacking in said
        assert "--yes" not in said, "the operator need not confirm what is refused anyway"
    assert "parked" == outbox.rows("parked", "list", **PARKED)[0]["state"]


def test_the_edited_payload_of_an_event_without_id_and_action_needs_neither(outbox: Local, tmp_path: Path):
    async def write(database):
        event = {"id": "e-1", "partitionKey": "ada", "type": "domainEvent", "data": {"text": "wrong"}}
        await database.get_container_client("data").create_item(event)

    outbox.on_database(write)
    park(outbox)
    edited = tmp_path / "data.json"
    edited.write_text(json.dumps({"text": "right"}))
    released = outbox.json("parked", "release", "ada", "--edited", str(edited), "--yes", **PARKED)
    assert (1, []) == (released["events_sent"], released["left"])


def test_parked_show_still_shows_the_records_of_a_released_key(alone: Local, tmp_path: Path):
    ids = park(alone, "ada")
    alone.run("parked", "drop", "ada", ids[0], "--reason", "a test", "--yes", **PARKED)
    edited = tmp_path / "data.json"
    edited.write_text(json.dumps({"id": ids[1], "action": "Mended"}))
    alone.run("parked", "release", "ada", "--edited", str(edited), "--yes", **PARKED)
    shown = alone.json("parked", "show", "ada", **PARKED)
    assert ("ada", "released", 0) == (shown["key"], shown["state"], shown["held"])
    dropped, sent = shown["events"]
    assert (ids[0], "dropped", "a test", None) == (
        dropped["event"], dropped["status"], dropped["note"], dropped["original"],
    )  # fmt: skip
    assert (ids[1], "sent", {"id": ids[1], "action": "Mended"}) == (
        sent["event"],
        sent["status"],
        sent["data"],
    )
    assert "ContactNameUpdatedEvent" == sent["original"]["action"]
    text = alone.run("parked", "show", "ada", **PARKED).stdout
    assert {True} == {word in text for word in ("released", "dropped", "a test", "Mended")}
    assert {True} == {record["closed_at"][:16].replace("T", " ") in text for record in (dropped, sent)}
    assert "'grace' is not parked" in alone.run("parked", "show", "grace", code=5, **PARKED).stderr


@pytest.mark.parametrize("command", [("park", "ada"), ("drop", "ada", "e"), ("purge", "ada", "e")])
def test_parked_commands_refuse_an_empty_reason(outbox: Local, command: tuple[str, ...]):
    assert (
        "Say why in a few words."
        in outbox.run("parked", *command, "--reason", " ", "--yes", code=2, **PARKED).stderr
    )


def test_parked_park_refuses_an_empty_key(outbox: Local):
    empty = ("parked", "park", "", "--reason", "its variable was not set", "--yes")
    assert "An empty text is no partition key" in outbox.run(*empty, code=2, **PARKED).stderr
    assert [] == outbox.rows("parked", "list", **PARKED)


def test_an_operator_can_park_a_key_with_a_reason(outbox: Local):
    park_ada = ("parked", "park", "ada", "--reason", "its consumer is broken")
    assert "--yes" in outbox.run(*park_ada, code=6, **PARKED).stderr
    assert "'ada' is parked" in outbox.run(*park_ada, "--yes", **PARKED).stdout
    (row,) = outbox.rows("parked", "list", **PARKED)
    assert ("ada", 0, "its consumer is broken") == (row["key"], row["held"], row["error"])
    park(outbox, "ada", rejects=lambda message: False)
    assert 2 == outbox.rows("parked", "list", **PARKED)[0]["held"]
    assert outbox.json(*park_ada, "--yes", **PARKED)["held"] == 2


def test_commands_do_not_see_the_parked_keys_of_another_processor(outbox: Local):
    park(outbox, "ada")
    assert [] == outbox.rows("parked", "list", OUTBOX_PROCESSOR_NAME="audit", **PARKED)
    assert "not parked" in outbox.run(
        "parked", "release", "ada", "--yes", code=5, OUTBOX_PROCESSOR_NAME="audit", **PARKED
    ).stderr  # fmt: skip
    assert 1 == len(outbox.rows("parked", "list", **PARKED))
    outbox.run("bootstrap")
    for processor, told in (("outbox", []), ("audit", ["strange-parked-keys"])):
        doctor = {"OUTBOX_TOPIC": "", "OUTBOX_PROCESSOR_NAME": processor, **PARKED}
        findings = outbox.json("doctor", code=4, **doctor)["findings"]
        assert told == [one["check"] for one in findings if one["check"] == "strange-parked-keys"]
