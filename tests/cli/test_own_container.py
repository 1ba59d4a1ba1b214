"""
Tests of commands on a container with a hierarchical partition key. Operators write a key as a JSON array, in the form in which the
commands show it.
"""

from __future__ import annotations

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ChangeBatch, StartFrom
from cosmos_outbox.relay import Relay
from cosmos_outbox_worker.cli.replay import read_events
from tests.support.local import Local
from tests.support.own_container import NAME, create_container, place

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]

VARIABLES = {"OUTBOX_COSMOS_CONTAINER": NAME, "OUTBOX_PARKED_CONTAINER": "parked"}
ADA, GRACE = '["t1",1]', '["t1",2]'


@pytest.fixture
def events(outbox: Local) -> list[str]:
    """
    Park two events of Ada and two of Grace, under their hierarchical keys. Return the ids of the events.
    """

    async def fill(_: object) -> list[str]:
        async with open_cosmos_client(connection_string=outbox.cosmos) as client:
            store = await create_container(client, outbox.database)
            ids = [event for user in (1, 2) for event in await place(store, "t1", user)]
            database = client.get_database_client(outbox.database)
            feed = CosmosChangeFeed(database.get_container_client(NAME), account_host="localhost")
            described = await feed.describe()
            parking = Parking(CosmosParked(database.get_container_client("parked")))
            relay = Relay(MemoryBroker(rejects=lambda _: True).publisher(lanes=1), parking=parking)
            async for found in read_events(feed, start=StartFrom.BEGINNING):
                if found.documents:
                    await relay(
                        ChangeBatch(
                            lease="l",
                            documents=found.documents,
                            processor="outbox",
                            container_rid=described.container_rid,
                            key_paths=described.key_paths,
                        )
                    )
        return ids

    return outbox.on_database(fill)


def test_each_command_takes_and_shows_a_hierarchical_key_as_a_json_array(outbox: Local, events: list[str]):
    before = outbox.accepted
    assert {ADA, GRACE} == {row["key"] for row in outbox.rows("parked", "list", **VARIABLES)}
    spaced = '["t1", 1]'
    shown = outbox.json("parked", "show", spaced, **VARIABLES)
    assert (ADA, events[:2]) == (shown["key"], [event["event"] for event in shown["events"]])
    outbox.run("parked", "drop", spaced, events[0], "--reason", "a test", "--yes", **VARIABLES)
    released = outbox.json("parked", "release", spaced, "--yes", **VARIABLES)
    assert {"released": 1, "events_sent": 1, "gone": 0, "left": []} == released
    assert 1 == outbox.accepted - before
    assert [GRACE] == [row["key"] for row in outbox.rows("parked", "list", **VARIABLES)]
    parked = outbox.json("parked", "park", '["t9", 9]', "--reason", "a test", "--yes", **VARIABLES)
    assert '["t9",9]' == parked["key"]
    assert "is no partition key" in outbox.run("parked", "release", "t1", "--yes", code=2, **VARIABLES).stderr


def test_the_error_for_a_key_in_another_form_shows_how_keys_are_named(outbox: Local, events: list[str]):
    of = ("--consumer", "tests.service.invoices:consumer")
    for command in (("show", "t1/1", *of), ("release", "t1/1", "--yes", *of)):
        told = outbox.run("parked", *command, code=5, **VARIABLES, OUTBOX_SUBSCRIPTION="all").stderr
        assert """'t1/1' is not parked; a key of its container is named as ["t1","u1"] is.""" in " ".join(
            told.split()
        )


@pytest.mark.parametrize("path", ["/id", "/type", "/data/tenantId"])
def test_commands_refuse_a_container_with_an_unsuitable_partition_key(outbox: Local, path: str):
    async def create(database):
        await database.create_container("strange", PartitionKey(path), default_ttl=-1)

    outbox.on_database(create)
    variables = {"OUTBOX_COSMOS_CONTAINER": "strange"}
    for arguments in ((), ("--api",)):
        findings = outbox.json("doctor", *arguments, code=4, **variables)["findings"]
        assert [("error", "data-container")] == [
            (one["severity"], one["check"]) for one in findings if one["severity"] == "error"
        ]
        assert path in findings[0]["message"]
    for command in (("bootstrap",), ("status",), ("replay", "--since", "beginning", "--dry-run")):
        assert f"'strange' cannot hold an outbox: {path}" in outbox.run(*command, code=2, **variables).stderr
