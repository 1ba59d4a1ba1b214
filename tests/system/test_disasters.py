"""
Tests of disasters, each followed by the steps of docs/how-to/recover.md: nothing is lost beyond what that page says.

The worker runs inside the test, and is stopped wherever the page says so.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import DatabaseProxy
from typer.testing import CliRunner

from cosmos_outbox.adapters.cosmos import open_cosmos_client, open_store
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox_testing.emulated import OutboxEmulators, running_emulators
from cosmos_outbox_worker import Worker, load, running_worker
from cosmos_outbox_worker.cli.app import app
from cosmos_outbox_worker.heartbeats import Fleet, Heartbeat, Phase
from cosmos_outbox_worker.status_page import page_of
from examples.contacts.api import create_app
from examples.contacts.settings import Settings
from tests.support.contacts_api import JANE, Client, served
from tests.support.event_documents import event
from tests.support.patience import HUNG_SECONDS

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

FAST = {
    "OUTBOX_LEASE_EXPIRATION_SECONDS": "4",
    "OUTBOX_STALLED_SECONDS": "4",
    "OUTBOX_GRACE_SECONDS": "2",
}


class Place:
    """
    An outbox on emulators, with the operator's commands and a worker that the test starts when it needs one.
    """

    def __init__(self, emulators: OutboxEmulators) -> None:
        self.emulators = emulators
        self.cosmos, self.bus = emulators.cosmos, emulators.servicebus
        self.name = f"{emulators.topic}-events"
        self.environment = emulators.environ | FAST | {"OUTBOX_TOPIC": self.name}
        self.create_topic()

    def create_topic(self) -> None:
        all_ = {"name": "all", "requires_session": True, "dead_letter_on_expiration": True}
        self.bus.add_topic({"name": self.name, "dedup_window_s": 600, "subscriptions": [all_]})

    @property
    def topic(self) -> Any:
        return self.bus.stats()["topics"][self.name]

    def sent(self) -> int:
        """Return how many messages the topic has accepted, including messages that it dropped as duplicates."""
        return int(self.topic["published"] + self.topic["duplicates"])

    def command(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments, env=self.environment)
        assert code == result.exit_code, (result.output, result.stderr, result.exception)
        return result.stdout

    def on_database(self, work: Callable[[DatabaseProxy], Any]) -> None:
        async def opened() -> None:
            async with open_cosmos_client(connection_string=self.cosmos.connection_string) as client:
                await work(client.get_database_client(self.emulators.database))

        asyncio.run(opened())

    def commit(self, *names: str, at_once: int = 1) -> None:
        """Commit an event for each name, all with the partition key "k"."""

        async def write() -> None:
            async with open_cosmos_client(connection_string=self.cosmos.connection_string) as client:
                store = await open_store(client, self.emulators.database, "data")
                writes = []
                for name in names:
                    fields = {field: value for field, value in event("k").items() if field[0] != "_"}
                    document = {**fields, "id": name, "data": {**fields["data"], "id": name}}
                    writes.append(Write(kind=WriteKind.CREATE, id=name, document=document))
                for first in range(0, len(writes), at_once):
                    await store.commit("k", writes[first : first + at_once])

        asyncio.run(write())

    def lose(self, container: str, key: str) -> None:
        """Delete a container and create it again."""

        async def work(database: DatabaseProxy) -> None:
            await database.delete_container(container)
            await database.create_container(container, PartitionKey(key), default_ttl=-1)

        self.on_database(work)

    def work(self, until: Callable[[Worker], bool]) -> None:
        """Run a worker until a condition is true, then drain it."""

        async def run() -> None:
            async with self.worker() as worker:
                await until_so(lambda: until(worker))

        asyncio.run(run())

    @asynccontextmanager
    async def worker(self, name: str = "worker") -> AsyncIterator[Worker]:
        """Run a worker with the current settings."""
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in {**self.environment, "OUTBOX_INSTANCE": name}.items():
                patch.setenv(variable, value)
            settings = load()
        async with running_worker(settings) as worker:
            yield worker

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Client]:
        """Serve the contacts API with the account key in the current settings."""
        account = self.environment["OUTBOX_COSMOS_CONNECTION_STRING"]
        settings = Settings(cosmos_connection_string=account, cosmos_database=self.emulators.database)
        async with served(create_app(settings)) as client:
            yield client

    def break_link(self) -> None:
        """
        Detach the sender at its next message, before the message is stored. So the sender opens a new link, and presents its token again.
        """
        self.bus.add_fault({"action": "detach-before-store", "entity": self.name, "count": 1})

    def use_secondary_keys(self) -> None:
        self.environment |= {
            "OUTBOX_COSMOS_CONNECTION_STRING": self.cosmos.secondary_connection_string,
            "OUTBOX_SERVICEBUS_CONNECTION_STRING": self.bus.secondary_connection_string,
        }

    def relay(self, sent: int) -> None:
        """Run a worker until the topic has accepted `sent` messages in all."""
        self.work(lambda worker: self.sent() >= sent)
        assert sent == self.sent()

    def findings(self, code: int) -> set[str]:
        return {
            finding["check"]
            for finding in json.loads(self.command("doctor", "--json", code=code))["findings"]
        }


def nothing_waits(worker: Worker) -> bool:
    lag = worker.snapshot().lag
    return lag is not None and 0 == lag.transactions


async def until_so(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while not so():  # noqa: ASYNC110 - the emulators give no sign
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def emulators() -> Iterator[Any]:
    with running_emulators() as fresh:
        yield fresh


@pytest.fixture
def place(emulators: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with emulators() as found:
        yield Place(found)


def test_after_the_loss_of_the_leases_events_are_sent_again_as_duplicates(place: Place):
    """Events since the start of the new leases are sent again, and the topic drops them as duplicates."""
    place.commit("1", "2", "3")
    place.relay(3)
    place.cosmos.advance(60)
    before = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    place.commit("4", "5")
    place.relay(5)
    place.lose("leases", "/id")
    place.command("bootstrap", "--start", before)
    place.commit("6")
    place.relay(5 + 2 + 1)
    assert 2 == place.topic["duplicates"], (
        "exactly the events that were committed since the start were sent again"
    )
    assert 6 == place.topic["published"]


def test_waiting_events_are_sent_after_leases_that_began_at_now_were_lost(place: Place):
    """When leases that began at "now" are lost, the container is read from its beginning."""
    place.environment |= {"OUTBOX_START": "now"}
    place.commit("before the first worker")
    polls: set[datetime | None] = set()

    def polled_twice_with_leases(worker: Worker) -> bool:
        now = worker.snapshot()
        if now.lag is not None and now.lag.leases:
            polls.add(now.parked_at)
        return len(polls - {None}) == 3

    place.work(polled_twice_with_leases)
    place.commit("1")
    place.relay(1)
    place.commit("2", "3")
    place.lose("leases", "/id")
    # The worker reads the whole container, so it sends events again that it had sent.
    place.work(lambda worker: place.topic["published"] >= 4)
    assert 1 == place.topic["duplicates"]


def test_a_renamed_processor_reports_the_unsent_events_of_its_old_name(
    place: Place,
):
    place.commit("1")
    place.relay(1)
    place.commit("2", "3")
    assert "other-processors" not in place.findings(code=4), "the events wait for this one, without a worker"
    # The new leases start from the current time. Move the clock, so that this is later than the events' times, in whole seconds.
    place.cosmos.advance(60)
    place.environment |= {"OUTBOX_PROCESSOR_NAME": "renamed", "OUTBOX_START": "now"}
    place.work(lambda worker: any("OUTBOX_PROCESSOR_NAME" in one.said for one in worker.snapshot().causes()))
    assert "other-processors" in place.findings(code=4)
    place.environment |= {"OUTBOX_PROCESSOR_NAME": "outbox"}
    place.relay(3)
    place.environment |= {"OUTBOX_PROCESSOR_NAME": "renamed"}
    place.command("doctor", code=1)  # `doctor` finds that the leases of "renamed" have no worker


def test_a_reset_of_the_leases_recovers_from_a_failover_that_lost_writes(place: Place):
    """After such a failover, the LSNs fall back, so the positions of the leases are ahead of their ranges."""
    place.commit("1", "2")
    place.relay(2)
    place.cosmos.take_snapshot(place.emulators.database, "data")
    place.commit("lost 1", "lost 2", "lost 3")
    place.relay(5)
    place.cosmos.restore_snapshot(place.emulators.database, "data")
    place.cosmos.fail_over()
    place.commit("new")
    assert "position-ahead" in place.findings(code=4)
    place.command("leases", "reset", "--to", "beginning", "--yes")
    place.relay(5 + 3)
    assert 2 == place.topic["duplicates"]
    assert "position-ahead" not in place.findings(code=1)


def test_a_restored_container_is_read_from_its_beginning(place: Place):
    """
    A restored container has another resource id, so the leases and parked keys of the old container do not belong to
    it.
    """
    place.commit("1", "2")
    place.relay(2)
    place.command("parked", "park", "k", "--reason", "by hand", "--yes")
    place.lose("data", "/partitionKey")
    place.commit("1")  # the restored container has only event 1, because event 2 was written after the backup
    place.relay(3)
    assert 1 == place.topic["duplicates"]
    assert "strange-parked-keys" in place.findings(code=1)


@pytest.mark.parametrize(("killed", "read"), [(True, 1), (False, 0)])
def test_a_start_of_now_reads_a_recreated_container_from_its_beginning(place: Place, killed: bool, read: int):
    """
    An old heartbeat proves to the worker that the container existed before, because heartbeats have its name and not its resource id.
    """
    place.environment |= {"OUTBOX_START": "now"}

    async def leave_a_heartbeat(database: DatabaseProxy) -> None:
        leases = CosmosLeases(database.get_container_client("leases"))
        fleet = Fleet(leases, processor="outbox", container=f"{place.emulators.database}/data")
        await fleet.beat(Heartbeat(worker="killed", every=timedelta(seconds=15), phase=Phase.RUNNING))

    if killed:
        place.on_database(leave_a_heartbeat)
    place.lose("data", "/partitionKey")
    place.commit("1")
    place.cosmos.advance(60)
    alarms = set[str]()

    def all_is_read(worker: Worker) -> bool:
        now = worker.snapshot()
        alarms.update(error.event for error in now.errors)
        return now.lag is not None and bool(now.lag.leases) and nothing_waits(worker)

    place.work(all_is_read)
    assert (read, killed) == (place.sent(), "LeasesLost" in alarms)


def test_a_replay_sends_the_events_that_a_lost_parked_container_held(place: Place):
    place.commit("1")
    place.relay(1)
    place.command("parked", "park", "k", "--reason", "by hand", "--yes")
    place.commit("held")
    batches = place.cosmos.requests()["batch"]
    place.work(lambda worker: place.cosmos.requests()["batch"] > batches)
    assert 1 == json.loads(place.command("parked", "list", "--json", code=0))["keys"][0]["held"]
    place.lose("parked", "/partitionKey")
    place.commit("next")
    place.command("replay", "--since", "2026-01-01T00:00:00Z", "--yes")
    assert (2, 1) == (place.topic["published"], place.topic["duplicates"]), (
        "the event that is not sent yet is left to the worker"
    )
    place.relay(4)


def test_a_replay_sends_the_events_that_were_lost_with_a_deleted_topic(place: Place):
    place.commit("1", "2")
    place.relay(2)
    place.bus.delete(place.name)
    place.commit("3")
    place.work(lambda worker: any("cannot be sent to" in reason for reason in worker.snapshot().unready))
    place.create_topic()
    place.command("replay", "--since", "2026-01-01T00:00:00Z", "--yes")
    assert 2 == place.topic["published"], "events that are not sent yet are left to the worker"
    place.relay(3)


def test_after_a_change_of_the_account_s_name_events_are_sent_again_as_duplicates(place: Place):
    """
    Leases belong to the host of the account, so the container is read again, and the topic drops the duplicates.
    """
    place.commit("1")
    place.relay(1)
    moved = place.environment["OUTBOX_COSMOS_CONNECTION_STRING"].replace("127.0.0.1", "localhost")
    place.environment |= {"OUTBOX_COSMOS_CONNECTION_STRING": moved}
    place.commit("2")
    place.relay(1 + 2)
    assert (2, 1) == (place.topic["published"], place.topic["duplicates"])
    assert "localhost" in place.command("status", "--json")


def test_no_event_is_lost_while_a_credential_has_expired(place: Place, caplog: pytest.LogCaptureFixture):
    place.commit("1")
    place.relay(1)
    place.commit("2")
    place.cosmos.add_fault({"status": 401, "operation": "changefeed"})
    place.work(lambda worker: "error=AccessDenied" in caplog.text)
    assert 1 == place.sent()
    place.cosmos.clear_faults()
    place.relay(2)


def test_keys_can_be_rotated_while_the_api_and_the_workers_go_on(place: Place):
    """
    Cosmos DB and Service Bus have two keys each, so that an old and a new key are valid at the same time.
    """

    async def rotate() -> None:
        async with AsyncExitStack() as with_new:
            async with place.api() as api, place.worker("old"):
                assert 201 == (await api.post("/api/contacts", json=JANE)).status
                await until_so(lambda: place.sent() == 1)
                place.use_secondary_keys()
                new = await with_new.enter_async_context(place.worker("new"))
                other = await with_new.enter_async_context(place.api())
            place.cosmos.regenerate_key("primary")
            place.bus.regenerate_key("primary")
            place.break_link()
            assert 201 == (await other.post("/api/contacts", json=JANE)).status
            await until_so(lambda: place.sent() == 2 and not new.snapshot().unready)

    asyncio.run(rotate())
    assert 0 == place.topic["duplicates"]


@pytest.mark.parametrize(
    ("service", "said"),
    [("cosmos", "Cosmos DB refuses the key or token"), ("bus", "The token has an invalid signature")],
)
def test_a_worker_with_a_revoked_key_is_unready_until_it_gets_the_other_key(
    place: Place, service: str, said: str
):
    place.environment["OUTBOX_STALLED_SECONDS"] = "2"
    place.commit("1")

    async def revoke() -> None:
        async with place.worker() as worker:
            # Wait for the send and for the checkpoint. Without a checkpoint, the worker would send the event again later, and the
            # topic would drop it as a duplicate.
            await until_so(lambda: place.sent() == 1 and nothing_waits(worker))
            getattr(place, service).regenerate_key("primary")
            place.break_link()
            await asyncio.to_thread(place.commit, "2")
            await until_so(lambda: any(said in reason for reason in worker.snapshot().unready))

    asyncio.run(revoke())
    found = json.loads(place.command("doctor", "--json", code=4))["findings"]
    assert any(said in each["message"] and "Correct the key of " in each["fix"] for each in found)
    assert 1 == place.sent()
    place.use_secondary_keys()
    place.relay(2)
    assert 0 == place.topic["duplicates"]


@pytest.mark.parametrize(
    ("services", "said"),
    [(("bus",), "Service Bus does not answer"), (("cosmos", "bus"), "Cosmos DB does not answer")],
)
def test_a_worker_names_an_unavailable_service_and_goes_on_afterwards(
    place: Place, services: tuple[str, ...], said: str
):
    faults = {"bus": {"action": "down", "seconds": 600}, "cosmos": {"status": 503, "count": None}}
    place.environment["OUTBOX_STALLED_SECONDS"] = "2"
    place.commit("1")

    async def leave() -> None:
        async with place.worker() as worker:
            await until_so(lambda: place.sent() == 1 and nothing_waits(worker))
            if "cosmos" in services:  # without Cosmos DB there is no commit
                await asyncio.to_thread(place.commit, "2")
            for service in services:
                getattr(place, service).add_fault(faults[service])
            # An event before the fault might be sent before the fault, and then the worker would report nothing.
            if "cosmos" not in services:
                await asyncio.to_thread(place.commit, "2")
            await until_so(lambda: any(said in reason for reason in worker.snapshot().unready))
            for service in services:
                getattr(place, service).clear_faults()
            await until_so(lambda: place.sent() >= 2 and not worker.snapshot().unready)

    asyncio.run(leave())
    gc.collect()  # otherwise a later test would get the warning about a socket that the SDK left open
    assert 2 == place.topic["published"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 403, "substatus": 5300}, "Cosmos DB refuses the key"),
        ({"status": 429, "substatus": 3200}, "Cosmos DB throttles"),
    ],
)
def test_workers_that_cannot_write_leases_name_the_cause_and_the_lost_ranges(
    place: Place, fault: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
):
    place.commit("1")

    def named(worker: Worker) -> bool:
        return any(said in reason and "It stops range" in reason for reason in worker.snapshot().unready)

    def logged() -> bool:
        return any("ERROR" == each.levelname and said in each.getMessage() for each in caplog.records)

    async def refuse() -> None:
        async with place.worker() as one, place.worker() as other:
            await until_so(lambda: place.sent() == 1 and nothing_waits(one) and nothing_waits(other))
            place.cosmos.add_fault({"container": "leases", "operation": "replace", "count": None, **fault})
            await asyncio.to_thread(place.commit, "2")
            place.cosmos.advance(60)
            await until_so(lambda: named(one) and named(other) and logged())
            shown = await asyncio.to_thread(place.command, "status", "--expiration", "4", code=4)
            assert shown.startswith("No worker owns a range in which changes wait")
            assert 'class="state bad"' in page_of(one.snapshot())
            place.cosmos.clear_faults()
            await until_so(lambda: place.sent() >= 2 and not one.snapshot().unready)

    asyncio.run(refuse())


def test_draining_workers_while_they_send_causes_no_duplicates(place: Place):
    place.commit(*map(str, range(5_000)), at_once=100)
    for number in range(3):
        sent = place.sent()
        place.work(lambda _, sent=sent: place.sent() > min(sent, 4_999))
        assert number or 0 < place.sent() < 5_000, (
            "the worker should be drained before it has sent everything"
        )
    place.relay(5_000)
    assert 0 == place.topic["duplicates"]


def test_a_worker_reports_unsuitable_properties_of_its_topic_while_it_sends(place: Place):
    place.bus.delete(place.name)
    place.bus.add_topic({"name": place.name, "subscriptions": [{"name": "all"}]})
    place.commit("1")
    place.work(
        lambda worker: place.sent() == 1 and "does not detect duplicates" in str(worker.snapshot().causes())
    )
    assert {"duplicate-detection", "sessions"} <= place.findings(4)
