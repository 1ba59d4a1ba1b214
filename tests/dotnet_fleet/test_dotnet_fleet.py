"""
Tests of .NET change feed processors and workers of this library in one fleet, and of services in .NET and Python on one container.

Run them with `make test-dotnet`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from cosmos_outbox import NotFound, Outbox, PreconditionFailed
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox_testing.verify.child_processes import Child
from examples.contacts.domain import Name
from examples.contacts.service import ContactsUnitOfWork
from tests.dotnet_fleet.fleet import NAME, RANGES, Emulators, Fleet, built, emulators
from tests.support.pages import ROOT, blocks_of, follow

if not os.environ.get("OUTBOX_TEST_DOTNET"):
    pytest.skip("builds and runs a .NET program: make test-dotnet", allow_module_level=True)

pytestmark = [pytest.mark.looptime(False), pytest.mark.timeout(900)]

SOON = 15.0  # a test of a planted mistake waits so many seconds for what the mistake prevents
COPIES = "copies"  # the name of the topic without duplicate detection
PAGE = ROOT / "docs/how-to/migrate-from-dotnet.md"
HOSTS = {"named-1": "localhost", "named-2": "127.0.0.1", "named-3": NAME}
# For each planted mistake, the error that the audit has to report.
FOUND = {
    "owner": f"net, own share {RANGES} leases: (?!.*'own')",  # .NET finds no owner, and takes all leases
    "continuation": "events are on the topic",
    # Our worker names its leases after another host, so .NET does not find them and creates its own leases for all ranges.
    "elsewhere": f"net, own share {RANGES} leases: (?=.*'net': {RANGES}).*'own'",
    "kept": "ended in order and kept",  # our worker ended and still owns its leases, so .NET has to wait
}
TOPICS = {name: name != COPIES for name in ("fleet", *FOUND, *HOSTS, COPIES, "service", "page")}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("dotnet"))


@pytest.fixture
async def place(program: Path, tmp_path: Path) -> AsyncIterator[Emulators]:
    async with emulators(program, tmp_path, TOPICS) as place:
        yield place


async def test_a_mixed_fleet_sends_every_event_once_and_in_order(
    place: Emulators, capsys: pytest.CaptureFixture[str]
):
    fleet = await Fleet(place, "fleet").create()
    took: dict[str, float] = {}
    began = time.monotonic()

    def done(what: str) -> None:
        nonlocal began
        took[what], began = round(time.monotonic() - began, 1), time.monotonic()

    async with fleet.written(contacts=40, a_second=50):
        first = await fleet.dotnet("net-1")
        await fleet.shared("net-1")
        killed = await fleet.ours("own-1")
        await fleet.shared("net-1", "own-1")
        done("4 : 4")
        second, stopped = await fleet.dotnet("net-2"), await fleet.ours("own-2")
        await fleet.shared("net-1", "net-2", "own-1", "own-2")
        done("2 : 2 : 2 : 2")
        await first.kill()
        await fleet.gone("net-1")
        done("SIGKILL of .NET's")
        await killed.kill()
        await fleet.gone("own-1")
        done("SIGKILL of ours")
        await fleet.split("net-2")
        done("split of .NET's")
        await fleet.split("own-2")
        done("split of ours")
        await fleet.stop(stopped)
        await fleet.shared("net-2", ranges=RANGES + 2)
        done("SIGTERM of ours")
        last = await fleet.ours("own-3")
        await fleet.shared("net-2", "own-3", ranges=RANGES + 2)
        await fleet.stop(second)
        await fleet.shared("own-3", ranges=RANGES + 2)
        done("SIGTERM of .NET's")
    await fleet.stop(last)
    await fleet.write(100)
    estimated = await fleet.estimated()
    status = await fleet.command("status")
    await fleet.dotnet("net-3")
    await fleet.ours("own-4")
    senders = await fleet.audit()
    twice = (await fleet.statistics())["duplicates"]
    with capsys.disabled():
        sys.stdout.write(f"\n{json.dumps(took)}, first sent by {dict(senders)}, {twice} sent twice\n")

    assert {row["range"]: (row["owner"], row["waiting"]) for row in status["leases"]} == estimated
    assert sum(lag for _, lag in estimated.values()) >= 100
    assert {"ours", ".NET"} == senders.keys()


async def test_each_planted_mistake_in_the_leases_is_found(place: Emulators):
    said = await asyncio.gather(*(audited(place, mistake) for mistake in FOUND))

    assert [] == [
        (mistake, text)
        for mistake, text in zip(FOUND, said, strict=True)
        if not re.search(FOUND[mistake], text)
    ]


async def audited(place: Emulators, mistake: str) -> str:
    """
    Run a .NET worker beside a worker of this library that has a planted mistake. Kill or stop the worker of this library, and return
    the error that the test then finds.
    """
    fleet = await Fleet(place, mistake).create()
    await fleet.dotnet("net")
    await fleet.shared("net")
    own = await fleet.ours("own", mistake=mistake)

    async def acted() -> bool:
        return any("own" in lease.values() for lease in await fleet.leases())

    await fleet.until(acted, lambda: "our worker owns a lease, as it sees it")
    try:
        async with fleet.written(contacts=10, a_second=50):
            fleet.patience = fleet.patience if mistake == "continuation" else SOON
            await fleet.shared("net", "own")
            await fleet.until_committed(50)
            await (fleet.stop if mistake == "kept" else Child.kill)(own)
            await fleet.gone("own")
            await fleet.until_committed(50)
        fleet.patience = SOON
        await fleet.audit()
    except AssertionError as error:
        return str(error)
    return "nothing"


async def test_dotnet_and_python_workers_create_the_same_leases(place: Emulators):
    await asyncio.gather(*(found_by_both(place, name, host) for name, host in HOSTS.items()))


async def found_by_both(place: Emulators, name: str, host: str) -> None:
    fleet = await Fleet(place, name, host=host).create()
    own = await fleet.ours("own")
    await fleet.shared("own")
    ours = await fleet.lease_ids()
    await fleet.stop(own)
    assert (host, RANGES) == (host, len(await fleet.estimated()))
    await fleet.dotnet("net")
    await fleet.shared("net")

    assert ours == await fleet.lease_ids()
    assert all(lease.startswith(f"outbox{host}_") for lease in ours)


async def test_messages_of_dotnet_and_python_workers_are_the_same_to_consumers(place: Emulators):
    fleet = await Fleet(place, COPIES).create()
    await fleet.write(30)
    events = sum(map(len, fleet.committed().values()))
    theirs = await fleet.dotnet("net")
    await fleet.sent(events)
    await fleet.stop(theirs)
    await fleet.ours("own", OUTBOX_PROCESSOR_NAME="again")
    await fleet.sent(2 * events)
    copies = defaultdict[str | None, list[dict[str, Any]]](list)
    for message in await fleet.received():
        copies[message.message_id].append(as_consumed(message))

    assert events == len(copies)
    assert [first for first, _ in copies.values()] == [second for _, second in copies.values()]


def as_consumed(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """Return the parts of a message that a consumer sees, except the time of its arrival."""
    names = (
        *("session_id", "subject", "content_type", "application_properties", "time_to_live"),
        *("correlation_id", "to", "reply_to", "reply_to_session_id"),
    )
    return {name: getattr(message, name) for name in names} | {
        "body": json.loads(b"".join(message.body), object_hook=with_moments)
    }


def with_moments(fields: dict[str, Any]) -> dict[str, Any]:
    # Compare times as datetimes, because the .NET sample parses them and writes the same time as another
    # text.
    return {
        name: datetime.fromisoformat(value) if name.endswith("At") else value
        for name, value in fields.items()
    }


async def test_services_in_dotnet_and_python_can_share_a_container(place: Emulators):
    fleet = await Fleet(place, "service").create()
    outbox = Outbox(CosmosStore(fleet.data))
    moved, gone = str(uuid.uuid4()), str(uuid.uuid4())

    async def dotnet(*asked: str) -> dict[str, Any]:
        found = json.loads(await fleet.asked("contact", *asked))
        assert isinstance(found, dict)
        return found

    created = await dotnet("create", moved)
    async with outbox.unit_of_work(ContactsUnitOfWork) as uow:
        contact = await uow.contacts.read(moved)
        assert (created["Etag"], "Lovelace") == (contact.etag, contact.name.last_name)
        contact.rename(Name(first_name="Augusta", last_name="King"))
        await uow.commit()

    # The .NET service cannot overwrite a version that it has not read. It can read what Python wrote.
    assert "was answered 412" in await fleet.asked("contact", "rename-as-read", moved, created["Etag"])
    renamed = await dotnet("rename", moved, "Ada")
    assert {"Type": "contact", "Ttl": -1, "FirstName": "Ada", "LastName": "King", "City": "London"} == {
        name: renamed[name] for name in ("Type", "Ttl", "FirstName", "LastName", "City")
    }

    # The Python service cannot overwrite a version that it has not read.
    async with outbox.unit_of_work(ContactsUnitOfWork) as uow:
        contact = await uow.contacts.read(moved)
        await dotnet("rename", moved, "Countess")
        contact.rename(Name(first_name="Ada", last_name="Byron"))
        with pytest.raises(PreconditionFailed):
            await uow.commit()

    # The .NET service sees that the Python service deleted a contact. Then the Python service sees a deletion by the .NET service.
    async with outbox.unit_of_work(ContactsUnitOfWork) as uow:
        (await uow.contacts.read(moved)).delete()
        await uow.commit()
    assert (await dotnet("read", moved))["Deleted"]
    await dotnet("create", gone)
    await dotnet("delete", gone)
    async with outbox.unit_of_work(ContactsUnitOfWork) as uow:
        with pytest.raises(NotFound):
            await uow.contacts.read(gone)

    # The worker sends the events of both services, in the order of their commits.
    await fleet.ours("own")
    await fleet.sent(7)
    sent: dict[str, list[str]] = {moved: [], gone: []}
    for message in await fleet.received(moved, gone):
        sent[str(message.session_id)].append(
            str(message.subject).removeprefix("Contact").removesuffix("Event")
        )
    assert {moved: ["Created", *["NameUpdated"] * 3, "Deleted"], gone: ["Created", "Deleted"]} == sent


async def test_the_migration_page_works_beside_a_dotnet_worker(place: Emulators, tmp_path: Path):
    fleet = await Fleet(place, "page").create()
    theirs = await fleet.dotnet("net-1")
    await fleet.shared("net-1")
    async with fleet.written(contacts=20, a_second=20):
        blocks = blocks_of(PAGE.read_text())
        following = asyncio.create_task(asyncio.to_thread(follow, blocks, tmp_path, fleet.environment))

        async def works(beside: bool) -> bool:
            return following.done() or ("ours" in await fleet.owners()) is beside

        # The commands of PAGE start our worker beside the .NET worker, stop our worker, and start it
        # again. Then the .NET worker has to stop.
        for beside in (True, False, True):
            await fleet.until(partial(works, beside), lambda: "our worker starts, ends, and starts again")
        await fleet.stop(theirs)
        assert [] == await following
        await fleet.dotnet("net-2")
        await fleet.shared("net-2")

    assert {"ours", ".NET"} == (await fleet.audit()).keys()
