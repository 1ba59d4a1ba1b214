"""
Tests of the commands `parked`, `status` and `doctor` with `--consumer`, which then show a consumer and not
the workers.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import DatabaseProxy
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.consumer.parked_messages import ParkedMessage
from cosmos_outbox.message_format import Message
from cosmos_outbox.parking import Parking, Scope
from cosmos_outbox.parking.parked_documents import failure_of
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]
NAME = "tests.service.invoices:consumer"
OF = ("--consumer", NAME)
CONSUMER = {
    "OUTBOX_SUBSCRIPTION": "all",
    "OUTBOX_PARKED_CONTAINER": "parked",
}


def message(total: Any, *, number: int = 1, body: bytes | None = None) -> Message:
    event = {"id": f"m-{number}", "action": "OrderPaid", "createdAt": "2026-01-01T00:00:00Z"}
    return Message(
        message_id=f"m-{number}",
        session_id="a",
        subject="OrderPaid",
        body=body or json.dumps(event | {"orderId": "a", "total": total}).encode(),
    )


def park(outbox: Local, *messages: Message) -> None:
    """Park the key `a` with these messages, as a consumer does whose handler failed on the first message."""

    async def hold(database: DatabaseProxy) -> None:
        parking = Parking(CosmosParked(database.get_container_client("parked")), references=False)
        failure = failure_of("m-1", KeyError("total"), attempts=2)
        scope = Scope(processor="invoicing", container="events/all")
        await parking.hold("a", [ParkedMessage(one, "a") for one in messages], failure, scope=scope)

    outbox.on_database(hold)


def invoices(outbox: Local) -> list[int]:
    async def read(database: DatabaseProxy) -> list[int]:
        items = database.get_container_client("data").read_all_items()
        return [item["data"]["total"] async for item in items if item.get("type") == "invoice"]

    return sorted(outbox.on_database(read))


def test_messages_that_a_consumer_parked_are_listed_and_shown(outbox: Local):
    """`parked list` has the error of each key. `parked show` has the subject and the body of each message."""
    park(outbox, message(-1), message(2, number=2), message(0, number=3, body=b"no json"))
    (key,) = outbox.rows("parked", "list", *OF, **CONSUMER)
    assert ("a", 3, "m-1", "KeyError: 'total'", 2) == tuple(
        key[name] for name in ("key", "held", "message", "error", "attempts")
    )
    shown = outbox.json("parked", "show", "a", *OF, **CONSUMER)["messages"]
    assert ["m-1", "m-2", "m-3"] == [one["message"] for one in shown]
    assert {"OrderPaid"} == {one["subject"] for one in shown}
    assert (-1, "no json") == (shown[0]["data"]["total"], shown[2]["data"])
    assert "KeyError" in outbox.run("parked", "show", "a", *OF, **CONSUMER).stdout
    # Without `--consumer`, the command lists the keys that workers parked, and no keys of a consumer.
    assert [] == outbox.rows("parked", "list", OUTBOX_PARKED_CONTAINER="parked")


def test_the_command_status_counts_waiting_and_parked_messages_of_a_consumer(outbox: Local):
    park(outbox, message(-1), message(2, number=2))
    own = {**CONSUMER, "OUTBOX_SUBSCRIPTION": "counted"}
    assert (None, 0) == tuple(outbox.json("status", *OF, **own)[name] for name in ("waiting", "parked_keys"))
    before = outbox.json("status", *OF, **CONSUMER)["waiting"]
    asyncio.run(send(outbox))
    seen = outbox.json("status", *OF, **CONSUMER)
    assert ("invoicing", "events/all", 1, 2) == tuple(
        seen[name] for name in ("consumer", "source", "parked_keys", "parked_messages")
    )
    assert (1, 0) == (seen["waiting"] - before, seen["dead_lettered"])
    assert (
        f"invoicing of events/all: waiting {before + 1}, dead-lettered 0, parked keys 1, parked messages 2"
        in (outbox.run("status", *OF, **CONSUMER).stdout)
    )


async def send(outbox: Local) -> None:
    bus = ServiceBusClient.from_connection_string(outbox.servicebus)
    async with bus, bus.get_topic_sender("events") as sender:
        await sender.send_messages(ServiceBusMessage(b"{}", session_id="a"))


def test_a_release_calls_the_handlers_in_order_until_a_message_fails(outbox: Local, tmp_path):
    park(outbox, message(1), message(-2, number=2), message(3, number=3))
    run = outbox.run("parked", "release", "a", "--yes", *OF, code=4, **CONSUMER)
    failed = "'a' stays parked: 1 message handled, then message 'm-2': ValueError: an order of -2"
    assert failed in run.stdout
    assert (
        "'a': 'm-2' failed: ValueError: an order of -2 cannot be invoiced; attempt 2 in 0.0 s" in run.stderr
    )
    shown = outbox.json("parked", "show", "a", *OF, **CONSUMER)
    assert (2, 1) == (shown["attempts"], len(shown["frames"]))
    assert shown["frames"][0].endswith("in invoice")
    assert f"  {shown['frames'][0]}" in outbox.run("parked", "show", "a", *OF, **CONSUMER).stdout
    assert [1] == invoices(outbox)
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({"total": 2}))
    edit = ("parked", "release", "a", "--edited", str(edited), *OF)
    assert "lacks `id` ('m-2') and `action`" in outbox.run(*edit, "--yes", code=2, **CONSUMER).stderr
    whole = {
        "id": "m-2",
        "action": "OrderPaid",
        "createdAt": "2026-01-01T00:00:00Z",
        "orderId": "a",
        "total": 2,
    }
    edited.write_text(json.dumps(whole))
    assert "--yes" in outbox.run(*edit, code=6, **CONSUMER).stderr
    assert {"released": 1, "messages_handled": 2, "gone": 0, "left": []} == outbox.json(
        *edit, "--yes", **CONSUMER
    )
    assert [1, 2, 3] == invoices(outbox)
    assert [] == outbox.rows("parked", "list", *OF, **CONSUMER)
    (record,) = outbox.json("parked", "show", "a", *OF, **CONSUMER)["messages"]
    assert ("m-2", "handled", -2, 2) == (
        record["message"],
        record["status"],
        record["original"]["total"],
        record["data"]["total"],
    )


def test_an_operator_can_drop_a_message_of_a_consumer_and_park_a_key(outbox: Local):
    """When the key is released, its handler does not get the dropped message."""
    park(outbox, message(-1), message(2, number=2))
    said = outbox.run("parked", "drop", "a", "m-1", "--reason", "a test", "--yes", *OF, **CONSUMER).stdout
    assert "messages dropped 1" in said
    said = outbox.run("parked", "release", "a", "--yes", *OF, **CONSUMER).stdout
    assert "released 1, messages handled 1" in said
    assert [2] == invoices(outbox)
    said = outbox.run("parked", "park", "b", "--reason", "wait", "--yes", *OF, **CONSUMER).stdout
    assert "'b' is parked; running consumers hold its messages within 15 seconds." in said
    assert ["b"] == [key["key"] for key in outbox.rows("parked", "list", *OF, **CONSUMER)]


def found(outbox: Local, code: int, **variables: str) -> dict[str, tuple[str, str, str]]:
    findings = outbox.json("doctor", *OF, code=code, **CONSUMER | variables)["findings"]
    return {one["check"]: (one["severity"], one["message"], one["fix"]) for one in findings}


def test_doctor_has_no_finding_for_a_consumer_without_mistakes(outbox: Local):
    """The test also checks that `doctor` deletes the documents with which it tried the consumer's permissions."""
    assert [] == list(found(outbox, 0))

    async def left(database: DatabaseProxy) -> list[str]:
        names = ("data", "parked")
        return [
            item["id"]
            for name in names
            async for item in database.get_container_client(name).read_all_items()
        ]

    assert [] == outbox.on_database(left)


def test_doctor_tells_a_missing_subscription_from_a_missing_permission(outbox: Local):
    missing = found(outbox, 4, OUTBOX_SUBSCRIPTION="nowhere")["subscription"]
    assert ("error", "Subscription 'nowhere' of topic 'events' does not exist.") == missing[:2]
    assert "Create it" in missing[2]
    queue = found(outbox, 4, OUTBOX_SUBSCRIPTION="", OUTBOX_TOPIC="nowhere")
    assert "Queue 'nowhere' does not exist." == queue["subscription"][1]
    (forgotten,) = found(outbox, 4, OUTBOX_SUBSCRIPTION="").values()
    assert forgotten[2].startswith("If it is a topic, set OUTBOX_SUBSCRIPTION.")
    wrong = outbox.servicebus.replace("SAS_KEY_VALUE", "wrong")
    denied = found(outbox, 4, OUTBOX_SERVICEBUS_CONNECTION_STRING=wrong)["permissions"]
    assert "Not allowed to receive from Subscription 'all'" in denied[1]
    assert "Data Receiver" in denied[2]
    away = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
    assert "unknown" == found(outbox, 3, OUTBOX_SERVICEBUS_CONNECTION_STRING=away)["no-answer"][0]
    assert "required" in found(outbox, 4, OUTBOX_SERVICEBUS_CONNECTION_STRING="")["subscription"][1]


def test_doctor_reports_a_consumer_s_unusable_containers_and_sessions(outbox: Local):
    sessions = found(outbox, 4, OUTBOX_SESSIONS="false")["sessions"]
    assert ("error", "Take OUTBOX_SESSIONS away.") == (sessions[0], sessions[2])
    name = f"endless-{uuid.uuid4().hex[:8]}"

    async def create(database: DatabaseProxy) -> None:
        await database.create_container(name, PartitionKey("/partitionKey"))

    outbox.on_database(create)
    assert "error" == found(outbox, 4, OUTBOX_COSMOS_CONTAINER=name)["data-ttl"][0]
    assert "error" == found(outbox, 4, OUTBOX_COSMOS_CONTAINER="nowhere")["data-container"][0]
    assert "error" == found(outbox, 4, OUTBOX_PARKED_CONTAINER="nowhere")["parked-container"][0]
    parks = found(outbox, 4, OUTBOX_PARKED_CONTAINER="")["parked-container"]
    assert "'invoicing' parks" in parks[1]
    dropping = ("doctor", "--consumer", "tests.service.invoices:dropping")
    assert 0 == outbox.json(*dropping, **CONSUMER | {"OUTBOX_PARKED_CONTAINER": ""})["counts"]["error"]


def test_doctor_for_a_worker_names_parked_keys_of_a_consumer(outbox: Local):
    park(outbox, message(-1))
    outbox.run("bootstrap")
    findings = outbox.json("doctor", code=None, OUTBOX_PARKED_CONTAINER="parked")["findings"]
    (strange,) = [one for one in findings if one["check"] == "strange-parked-keys"]
    assert "keys of consumer 'invoicing' of events/all, 1 in all" in strange["message"]
