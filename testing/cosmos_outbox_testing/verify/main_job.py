"""
The part "job" of `cosmos-outbox verify`: run two workers and two consumers under load, kill one of each, and audit the result.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos import CosmosStore
from cosmos_outbox_testing.verify.audit import Audit, CommittedEvent, audit
from cosmos_outbox_testing.verify.child_processes import Child, ChildDied, Children
from cosmos_outbox_testing.verify.claims import NotRun
from cosmos_outbox_testing.verify.load import Account, change_accounts
from cosmos_outbox_testing.verify.own_session import OwnSession
from cosmos_outbox_testing.verify.results import Cost, Held, Outcome, Tell
from cosmos_outbox_testing.verify.site import Site

AREA = "job"
_ACCOUNTS, _COMMITS_PER_SECOND = 24, 8.0
_EVENTS_OF_A_COMMIT = 2  # events of a commit, on average
_UNITS_OF_AN_EVENT = 40  # how many request units an event takes, with its commit and its effect
_PEEKED = 250
# Workers and consumers log this when the SDK takes over from the library's encoder or lean receiver.
_FALLBACK = "SdkFallback"
_WATCH_SECONDS = 1.0
# These times are long, because the sessions of a killed consumer stay locked for up to a minute.
_STARTED_SECONDS, _STALLED_SECONDS = 120.0, 150.0
_SETTINGS = {
    "OUTBOX_START": "now",  # so that the workers do not send events that were in the container before the run
    "OUTBOX_LEASE_EXPIRATION_SECONDS": "10",
    "OUTBOX_DELETE_AFTER_PUBLISH": "",
    "OUTBOX_ROUTES": "",
    "OUTBOX_PUBLISHER": "",
    "OUTBOX_MESSAGE_FORMAT": "plain",
    "OUTBOX_SEND_RATE": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """An event that arrived: as a message in the topic, or as an effect that the consumer wrote into a ledger. The audit compares these."""

    message_id: str
    created_at: str | None
    enqueued_at: str | None = None
    received_ns: int = 0


def cost(seconds: float) -> Cost:
    """Return what the main job costs if it runs for this many seconds. `verify --dry-run` prints these costs."""
    events = int(seconds * _COMMITS_PER_SECOND * _EVENTS_OF_A_COMMIT)
    touches = (
        "documents of the data container, leases of the run's own processor, both subscriptions. If a worker of yours relays the data "
        "container, it sends the run's events too: stop it, or name another container"
    )
    return Cost(
        requests=events * 5, request_units=events * _UNITS_OF_AN_EVENT, seconds=seconds + 90, touches=touches
    )


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """
    Run the job. Return three outcomes: whether the code that replaces parts of the SDK was used until the end, whether the topic has all
    messages in order, and whether each message took effect once.
    """
    started, charged = time.monotonic(), site.request_units
    try:
        with tempfile.TemporaryDirectory(prefix="cosmos-outbox-verify-") as logs:
            outcomes = await _Job(site, tell, Path(logs)).run()
    except NotRun as why:
        outcomes = [Outcome(name="main", area=AREA, held=Held.NOT_RUN, found=str(why), meaning=str(why))]
    took: Any = {"seconds": time.monotonic() - started, "request_units": site.request_units - charged}
    outcomes = [replace(outcome, **took) for outcome in outcomes]
    for outcome in outcomes:
        tell(outcome)
    return outcomes


class _Job:
    def __init__(self, site: Site, tell: Tell, logs: Path) -> None:
        if os.name == "nt":
            raise NotRun("The main job kills processes by signals: run it on Linux or macOS.")
        self._site, self._tell, self._logs = site, tell, logs
        self._own = OwnSession(site)  # raises NotRun if no topic is named
        self._committed: list[CommittedEvent] = []
        self._problems: list[str] = []
        self._receiver = "amqp" if site.lean else "sdk"

    async def run(self) -> list[Outcome]:
        async with Children(self._logs) as children:
            try:
                topic, effects = await self._run_job(children)
            except (ChildDied, TimeoutError) as error:
                last = error.child.tail() if isinstance(error, ChildDied) else ""
                found = self._site.without_secrets(f"{error} {last[-600:]}")
                return [Outcome(name="main", area=AREA, held=Held.BROKEN, found=found, promise="G6")]
        return [
            self._trust(children),
            self._outcome("topic", "G3", topic, ("commit to topic p50 ms", topic.topic_p50_ms), ("commit to topic p99 ms", topic.topic_p99_ms)),
            self._outcome("effects", "I1", effects, ("commit to effect p50 ms", effects.p50_ms), ("commit to effect p99 ms", effects.p99_ms)),
        ]  # fmt: skip

    async def _run_job(self, children: Children) -> tuple[Audit, Audit]:
        names = [f"{self._site.run}-{number}" for number in (1, 2)]
        workers = [await self._start(children, "worker", name) for name in names]
        consumers = [await self._start(children, "consumer", names[0], receiver="sdk")]
        consumers.append(await self._start(children, "consumer", names[1], receiver=self._receiver))
        self._tell("two workers and two consumers start")
        await self._until(children, lambda: self._is_owned_by(set(names)), _STARTED_SECONDS)
        await self._load(children, workers, consumers)
        self._tell(
            f"{len(self._committed)} events are committed; waiting for each in the topic and for its effect"
        )
        wanted = {event.event_id for event in self._committed}
        await self._grown(children, wanted, self._effects)
        await self._grown(children, wanted, self._topic)
        # The worker that still runs sends the events again that the killed worker had sent since it last saved its position. Wait for
        # these copies, too, because each of them tests that no message takes effect twice.
        alive = {child.name.removeprefix("worker-") for child in workers if not child.killed}
        await self._until(children, lambda: self._is_owned_by(alive), _STARTED_SECONDS)
        await asyncio.sleep(_WATCH_SECONDS * 2)
        topic, effects = await self._topic(), await self._effects()
        running = [child for child in (*workers, *consumers) if not child.killed]
        await children.stop(running)
        self._problems += [f"{child.name} ended with {child.state}" for child in running if child.exit_code]
        return audit(self._committed, topic), audit(self._committed, effects)

    async def _start(self, children: Children, role: str, name: str, *, receiver: str = "") -> Child:
        module = ("consume", "cosmos_outbox_testing.verify.ledger:consumer")
        env = {
            **self._site.environ,
            **_SETTINGS,
            "OUTBOX_INSTANCE_NAME": name,
            "OUTBOX_SUBSCRIPTION": self._site.sessions,
            "OUTBOX_RECEIVER": receiver,
        }
        command = ("-m", "cosmos_outbox_worker", *(module if role == "consumer" else ("worker",)))
        return await children.start(f"{role}-{name}", command, env=env)

    async def _load(self, children: Children, workers: Sequence[Child], consumers: Sequence[Child]) -> None:
        site, stop = self._site, asyncio.Event()
        levels = len(site.key_paths.levels)
        accounts = [Account(id=site.name(), levels=levels) for _ in range(_ACCOUNTS)]
        load = change_accounts(
            Outbox(CosmosStore(site.data, site.key_paths)),
            accounts=accounts,
            commits_per_second=_COMMITS_PER_SECOND,
            seed=0,
            stop=stop,
            record=self._committed.append,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(load)
            await asyncio.sleep(site.seconds / 2)
            children.check()
            owners = Counter((await self._owners()).values())
            victim = max(workers, key=lambda worker: owners[worker.name.removeprefix("worker-")])
            for child in (victim, consumers[0]):
                await child.kill()
                self._tell(
                    f"killed a {child.name.partition('-')[0]} with SIGKILL after {len(self._committed)} events"
                )
            await asyncio.sleep(site.seconds / 2)
            stop.set()

    async def _owners(self) -> dict[str, str | None]:
        """Return, for each lease of the run's processor, the worker that owns it."""
        query = "SELECT c.id, c.Owner FROM c WHERE STARTSWITH(c.id, @run) AND IS_DEFINED(c.LeaseToken)"
        return {one["id"]: one.get("Owner") for one in await self._query(self._site.leases, query)}

    async def _is_owned_by(self, names: set[str]) -> bool:
        owners = await self._owners()
        return bool(owners) and set(owners.values()) <= names

    async def _topic(self) -> list[Arrived]:
        """Peek at the subscription without sessions. Return the run's events in the order in which they entered the topic."""
        found: list[Arrived] = []
        after = 1
        async with self._own.receiver(subscription_name=self._site.plain, session_id=None) as receiver:
            while messages := await receiver.peek_messages(_PEEKED, sequence_number=after):
                after = (messages[-1].sequence_number or 0) + 1
                found += [_arrival_of(one) for one in messages if _is_deposit(one, self._site.run)]
        return found

    async def _effects(self) -> list[Arrived]:
        """Read the ledgers: each is a document that lists the effects on one account of the load. Return the effects, in order for each account."""
        query = "SELECT c.id, c.data.lines FROM c WHERE c.type = 'ledger' AND STARTSWITH(c.id, @run)"
        lines = [
            line.split()
            for one in await self._query(self._site.data, query)
            for line in one["lines"].splitlines()
        ]
        return [
            Arrived(message_id=name, created_at=created, received_ns=int(at)) for name, created, at in lines
        ]

    async def _query(self, container: Any, query: str) -> list[dict[str, Any]]:
        parameters: list[dict[str, object]] = [{"name": "@run", "value": self._site.run}]
        return await self._site.all_of(lambda: container.query_items(query, parameters=parameters))

    async def _until(self, children: Children, fact: Callable[[], Awaitable[bool]], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not await fact():
                children.check()
                await asyncio.sleep(_WATCH_SECONDS)

    async def _grown(
        self, children: Children, wanted: set[str], read: Callable[[], Awaitable[list[Arrived]]]
    ) -> None:
        """Call `read` until it returns all wanted events, or until it has returned no new events for a long time."""
        seen, deadline = -1, 0.0
        while True:
            found = {one.message_id for one in await read()}
            if wanted <= found or (len(found) == seen and time.monotonic() > deadline):
                return
            if len(found) > seen:
                seen, deadline = len(found), time.monotonic() + _STALLED_SECONDS
            children.check()
            await asyncio.sleep(_WATCH_SECONDS)

    def _trust(self, children: Children) -> Outcome:
        """
        Return the outcome that says whether the code that replaces parts of the SDK (the encoder and the lean receiver) was used until
        the end of the job.
        """
        logs = {child.name: child.log.read_text(errors="replace") for child in children.all}
        lost = sorted(
            {line.strip()[:200] for log in logs.values() for line in log.splitlines() if _FALLBACK in line}
        )
        trusted = f"encoder{' and lean receiver' if self._receiver == 'amqp' else ''} trusted"
        return Outcome(
            name="bypasses",
            area=AREA,
            held=Held.DIFFERENT if lost else Held.HELD,
            statement="The parts that bypass the Service Bus SDK check their own results, and are used until the end of the job. These "
            "are the encoder and, if its extra is installed, the lean receiver.",
            expected=trusted,
            found=self._site.without_secrets("; ".join(lost)) or trusted,
            meaning="A part was given up, and the SDK did its work. Set OUTBOX_SDK_ONLY=true, and leave OUTBOX_RECEIVER at sdk.",
        )

    def _outcome(self, name: str, promise: str, found: Audit, *figures: tuple[str, float | None]) -> Outcome:
        wrong = [
            f"{what}: {len(ids)}"
            for what in ("lost", "duplicated", "out_of_order", "unknown")
            if (ids := getattr(found, what))
        ]
        held = Held.HELD if found.passed and found.committed and not self._problems else Held.BROKEN
        said = (
            "; ".join([*wrong, *self._problems]) or f"each of {found.committed} once, in the order of its key"
        )
        return Outcome(
            name=name,
            area=AREA,
            held=held,
            statement=_STATEMENTS[name],
            expected=f"each of {found.committed} once, in the order of its key",
            found=said.replace("_", " "),
            meaning="A guarantee does not hold here. Attach the report to an issue, and do not use the outbox until this is explained.",
            promise=promise,
            figures={label: value for label, value in figures if value is not None},
        )


_STATEMENTS = {
    "topic": "Each committed event is in the topic once, in the order of its partition key, although a worker was killed. "
    "The figures compare this machine's clock with the broker's, and include the time until the other worker took over.",
    "effects": "Each committed event took effect once, in the order of its partition key, although a consumer was killed. "
    "The figures end at the time when the handler begins to commit.",
}


def _is_deposit(message: Any, run: str) -> bool:
    return message.subject == "Deposited" and str(message.session_id or "").find(run) >= 0


def _arrival_of(message: Any) -> Arrived:
    enqueued = message.enqueued_time_utc
    created = json.loads(b"".join(message.body)).get("createdAt")
    return Arrived(
        message_id=str(message.message_id),
        created_at=created,
        enqueued_at=enqueued.isoformat() if enqueued else None,
    )
