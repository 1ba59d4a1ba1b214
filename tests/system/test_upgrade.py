"""
Tests of an upgrade and its rollback: workers of the previous release run beside workers of this version.

Nothing is lost or out of order. The previous release is the newest tag before this commit, or the tag or commit that
OUTBOX_TEST_PREVIOUS names.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import tarfile
import tomllib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox_emulators.cosmos.account import Account
from tests.support.event_documents import event
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, WorkerProcess, eventually, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROOT = Path(__file__).parents[2]
KEYS = [f"key-{number}" for number in range(6)]
PARTITIONS, TOO_LARGE = 4, 300_000


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout  # noqa: S603, S607


def the_release_before() -> str:
    """Return the tag of the previous release, or the tag or commit that the environment names."""
    if named := os.environ.get("OUTBOX_TEST_PREVIOUS"):
        return named
    try:
        tags = git("tag", "--list", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-v:refname").decode()
    except (OSError, subprocess.CalledProcessError):
        tags = ""
    if not tags:
        pytest.skip("no release is tagged yet; OUTBOX_TEST_PREVIOUS=COMMIT names what to try instead")
    return tags.split()[0]


@pytest.fixture
def older(tmp_path: Path) -> dict[str, str]:
    """
    Return the variables with which a process runs the code of the previous release and reports its version.
    """
    archive = git("archive", the_release_before(), "cosmos_outbox", "worker")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tmp_path, filter="data")
    says = tomllib.loads((tmp_path / "worker/pyproject.toml").read_text())["project"]["version"]
    metadata = tmp_path / f"worker/cosmos_outbox_worker-{says}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: cosmos-outbox-worker\nVersion: {says}\n")
    # PYTHONSAFEPATH removes the current folder from the import path, because this version's code is there.
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{tmp_path}:{tmp_path}/worker"}


class Upgrade:
    """
    Workers of the previous release and of this version on one outbox, and the number of committed events of each key.
    """

    def __init__(self, site: Site, older: dict[str, str]) -> None:
        self.site, self.older = site, older
        self.committed = dict.fromkeys(KEYS, 0)

    async def start(self, name: str, *, old: bool = False) -> WorkerProcess:
        worker = await self.site.start_worker(
            OUTBOX_INSTANCE_NAME=name, OUTBOX_PARKED_CONTAINER="parked", **(self.older if old else {})
        )
        await eventually(f"{await worker.health_url()}/readyz", lambda status, _: status == 200)
        return worker

    async def shared(self, *workers: WorkerProcess) -> None:
        """
        Wait until each worker owns its share of the leases, which other workers have to hand over first.
        """
        for worker in workers:
            await eventually(
                f"{await worker.health_url()}/readyz",
                lambda _, body: len(json.loads(body)["leases"]) * len(workers) == PARTITIONS,
            )

    async def stop(self, worker: WorkerProcess) -> None:
        worker.process.terminate()
        assert 0 == await worker.exit_code(), worker.output

    async def commit(self, key: str, number: int, *, size: int = 0) -> None:
        name = f"{key}.{number}"
        fields = {field: value for field, value in event(key, number, size=size).items() if field[0] != "_"}
        document = fields | {"id": name, "data": fields["data"] | {"id": name}}
        await self.site.store.commit(key, [Write(kind=WriteKind.CREATE, id=name, document=document)])

    async def commit_all(self) -> None:
        """Commit three events of each key, and wait until all of them were sent."""
        for key in KEYS:
            for _ in range(3):
                self.committed[key] += 1
                await self.commit(key, self.committed[key])
        await self.sent(sum(self.committed.values()))

    async def sent(self, number: int) -> None:
        async with asyncio.timeout(HUNG_SECONDS):
            while self.site.bus.broker.stats()["topics"]["events"]["published"] < number:  # noqa: ASYNC110 - of a program of its own
                await asyncio.sleep(0.05)

    async def received(self) -> dict[str, list[str]]:
        """Return the message ids of each session in the order of their delivery."""
        found = defaultdict[str, list[str]](list)
        bus = ServiceBusClient.from_connection_string(self.site.bus.connection_string)
        async with bus:
            for _ in KEYS:
                async with bus.get_subscription_receiver(
                    "events", "all", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=HUNG_SECONDS
                ) as receiver:
                    expected = self.committed[receiver.session.session_id]
                    while len(found[receiver.session.session_id]) < expected:
                        for one in await receiver.receive_messages(100, max_wait_time=HUNG_SECONDS):
                            found[receiver.session.session_id].append(str(one.message_id))
                            await receiver.complete_message(one)
        return dict(found)


@pytest.fixture
async def upgrade(older: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upgrade]:
    # On Azure, the host name of the endpoint begins with the name of the account. So the account of the host 127.0.0.1 is named
    # "127" here. Before 0.1.0, the ids of leases on an emulator had another host.
    monkeypatch.setattr(Account, "name", "127")
    async with opened_site(partitions=PARTITIONS) as site:
        yield Upgrade(site, older)


async def test_workers_of_the_previous_release_and_of_this_version_share_the_work(
    upgrade: Upgrade,
):
    """Workers of both releases share the leases. Each may end while the worker of the other release goes on."""
    old = await upgrade.start("old", old=True)
    await upgrade.commit("large", 1, size=TOO_LARGE)
    await old.said("KeyParked")
    await upgrade.commit_all()

    new = await upgrade.start("new")
    await upgrade.shared(old, new)
    await upgrade.commit_all()
    await upgrade.stop(old)
    await upgrade.commit("large", 2)
    await upgrade.commit_all()

    back = await upgrade.start("back", old=True)
    await upgrade.shared(new, back)
    await upgrade.stop(new)
    await upgrade.commit("large", 3)
    await upgrade.commit_all()

    in_order = {key: [f"{key}.{number}" for number in range(1, 13)] for key in KEYS}
    assert in_order == await upgrade.received(), "nothing of the parked key, and all else once"
    assert {"KeyParked"} == {name for worker in (old, new, back) for name in alarms(worker.lines)}


def alarms(lines: Sequence[str]) -> list[str]:
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [str(one.get("event", one["message"])) for one in found if one["level"] == "ERROR"]
