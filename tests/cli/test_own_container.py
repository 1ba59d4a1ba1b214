"""Commands on a container whose partition key is hierarchical: operators name a key as it is shown."""

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
from cosmos_outbox_worker.cli.replaying import read_events
from tests.support.local import Local
from tests.support.own_container import NAME, create_container, place

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]

VARIABLES = {"OUTBOX_COSMOS_CONTAINER": NAME, "OUTBOX_PARKED_CONTAINER": "parked"}
ADA, GRACE = '["t1",1]', '["t1",2]'


@pytest.fixture
def events(outbox: Local) -> list[str]:
    """Return the ids of two events of Ada and two of Grace, which a relay has parked."""

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


def test_events_are_found_by_their_key_however_it_is_spaced(outbox: Local, events: list[str]):
    for key in (ADA, '["t1", 1.0]'):
        shown = outbox.json("parked", "show", key, **VARIABLES)
        assert (ADA, events[:2]) == (shown["key"], [event["event"] for event in shown["events"]])
    replay = ("replay", "--since", "beginning", "--dry-run", "--key")
    refused = outbox.run(*replay, "t1", code=2, **VARIABLES).stderr
    assert 'write it as ["tenantId","userId"]' in refused


def test_a_parked_key_is_listed_shown_dropped_from_and_released(outbox: Local, events: list[str]):
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
    assert (
        "names no partition key" in outbox.run("parked", "release", "t1", "--yes", code=2, **VARIABLES).stderr
    )


def test_a_replay_sends_one_key_without_what_is_held(outbox: Local, events: list[str]):
    outbox.run("bootstrap", **VARIABLES)
    replay = ("replay", "--since", "beginning", "--dry-run", "--key", '["t1", 2]')
    # No worker has sent anything yet: all is left to them.
    assert {"events": 0, "left_to_workers": True}.items() <= outbox.json(*replay, **VARIABLES).items()


def test_doctor_accepts_the_paths_and_names_them(outbox: Local, events: list[str]):
    outbox.run("bootstrap", **VARIABLES)
    outbox.own_leases("worker-1")
    for arguments in ((), ("--api",)):
        variables = VARIABLES | {"OUTBOX_DELETE_AFTER_PUBLISH": "*"}
        findings = outbox.json("doctor", *arguments, code=None, **variables)["findings"]
        of_data = [one for one in findings if one["check"] in ("data-container", "permissions")]
        assert [("note", "Container 'orders' is partitioned on /tenantId, /userId.")] == [
            (one["severity"], one["message"]) for one in of_data
        ]


@pytest.mark.parametrize("path", ["/id", "/type", "/data/tenantId"])
def test_doctor_and_commands_refuse_a_container_that_cannot_hold_an_outbox(outbox: Local, path: str):
    async def create(database):
        await database.create_container("strange", PartitionKey(path), default_ttl=-1)

    outbox.on_database(create)
    variables = {"OUTBOX_COSMOS_CONTAINER": "strange"}
    for arguments in ((), ("--api",)):
        findings = outbox.json("doctor", *arguments, code=2, **variables)["findings"]
        assert [("error", "data-container")] == [
            (one["severity"], one["check"]) for one in findings if one["severity"] == "error"
        ]
        assert path in findings[0]["message"]
    for command in (("bootstrap",), ("status",), ("replay", "--since", "beginning", "--dry-run")):
        assert (
            f"'strange' cannot hold an outbox, for {path}" in outbox.run(*command, code=2, **variables).stderr
        )
