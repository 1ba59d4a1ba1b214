"""
A simulation of one consumer: several processes on one subscription, one container and one parked store, with zombies (processes that lost
their session and go on) and operators.

A script adds crashes, lost locks, outages and repeated messages. Its handlers fail, hang, ignore cancellation, roll back, or ask to get
a message again later.

The codes I1 to I4 are promises of docs/explanation/exactly-once-effects.md. Checked at once: a batch has one effect, its event and its
inbox record (I1). A handler begins only when all earlier messages of the session are settled (I2). A completed message took effect or is
in the parked store, and only a consumer with the policy "dead-letter" dead-letters messages (I3). Only a failed message is parked (I4).

Checked at the end: all keys without a failure were handled, although other keys are stuck (I4). Each message that no operator dropped
and no consumer dead-lettered took effect once, in the order of its session, after an operator released all parked keys (I1, I2). No
message waits anywhere.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from cosmos_outbox import DomainEvent, Entity, Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer, MemoryParked, MemorySubscription
from cosmos_outbox.consumer import Consumer, Handling, OnFailure
from cosmos_outbox.errors import (
    DeliveredTooOften,
    HandlerTimeout,
    OutboxError,
    PreconditionFailed,
    StoreUnavailable,
    TryLater,
)
from cosmos_outbox.message_format import Message
from cosmos_outbox.parking import ParkedKeys, Parking, Released
from cosmos_outbox.parking.parked_documents import BY_HAND, KEY_ID
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import CommitResult, Complete, DeadLetter, ParkedStore, Settlement, Write, WriteKind
from cosmos_outbox.records import MessageFailed, MessageGivenUp, Record
from cosmos_outbox.retries import Backoff, RetryOptions
from cosmos_outbox.sessions import SessionHandler, SessionOptions, SessionProcessor
from cosmos_outbox.stored_documents import Document
from tests.simulation.program import Fault, Port, Program, Receiver
from tests.support.parked_stores import Passing, ResultT

NAME, SOURCE = "invoicing", "orders/invoicing"
LOCK_SECONDS = 12.0
SLOTS = 2
KEYS_PARKED_IN_A_ROW = 5
MENDED = "mended"
SUBJECT = "OrderPaid"


class Act(StrEnum):
    """The actions of an operator. PARK parks a key by hand, and every other action is applied to all parked keys."""

    RELEASE = "release"
    TWICE = "release twice at once"
    EDIT = "edit"
    DROP_FIRST = "drop the first message"
    DROP_LAST = "drop the last message"
    PARK = "park a key by hand"


class Habit(StrEnum):
    """What a handler does with one message, each time or only the first few times."""

    FAILS = "it raises"
    HANGS = "it never returns"
    SWALLOWS = "it goes on after it was cancelled"
    LASTS = "it takes longer than the lock"
    BABBLES = "it raises text that no store takes"
    LOSES = "its process loses the lock with each call, and counts a delivery without an outcome"
    ROLLS_BACK = "it forgets what its unit of work was told before"
    ASKS = "it asks for a later time, some times, or for longer than it may"
    CONTENDS = "another writer is first at what it changes, some times more than a message has attempts"


Faults = Mapping[Port, tuple[Fault | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """
    One process of the consumer. It is asked to stop, or is killed, after `lives_for` seconds. A fault of a request may kill it
    earlier.
    """

    starts_at: float
    lives_for: float
    killed: bool
    seconds: float
    faults: Faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator who acts on all parked keys, once. The operator's command may be killed meanwhile."""

    starts_at: float
    lives_for: float
    act: Act
    seconds: float
    faults: Faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """
    The messages and when they are delivered, how handlers behave, which faults happen, and which processes and operators run.

    deliveries: the messages with their times, including repeated ones.
    habits: how the handler misbehaves with a message, and how often. -1 means until `heals_at`, or until an operator corrects the
    payload.
    longest_wait: after how many seconds a message counts as failed if its handler keeps asking to get it later.
    fails_all: from when to when every handler fails.
    asks_all: from when to when every handler asks to get its message later.
    broken: from when to when the client of the parked store raises an unexpected error.
    away: from when to when a service does not answer. Port.SESSION stands for the broker.
    stores_away: from when to when the container does not answer requests of a key.
    quiet: keys whose messages must take effect within `within` seconds, even if other keys have to wait.
    """

    on_failure: OnFailure = OnFailure.PARK
    attempts: int = 2
    max_deliveries: int = 8
    deliveries: tuple[tuple[float, Message], ...]
    habits: Mapping[str, tuple[Habit, int]] = field(default_factory=dict)
    heals_at: float = 1e9
    handler_seconds: float = 0.0
    longest_wait: float = 1e6
    fails_all: tuple[float, float] = (0.0, 0.0)
    asks_all: tuple[float, float] = (0.0, 0.0)
    lost_locks: tuple[tuple[float, str], ...] = ()
    broken: tuple[float, float] = (0.0, 0.0)
    away: tuple[tuple[Port, float, float], ...] = ()
    stores_away: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    quiet: tuple[str, ...] = ()
    within: float = 1e9
    processes: tuple[Process, ...] = ()
    operators: tuple[Operator, ...] = ()

    @property
    def gives_up_for(self) -> tuple[str, ...]:
        """
        Return the names of the errors after which the consumer may give a message up: park or dead-letter it.
        """
        return (*_REASONS, *([TryLater.__name__] if self.longest_wait < _SHORT else []))

    @property
    def ends_asking(self) -> bool:
        """
        Return whether a handler that asks at each attempt to get its message later stops asking in the end. It does if the message
        fails after `longest_wait`, or if the handler works from `heals_at` on.
        """
        return self.longest_wait < _SHORT or self.heals_at < 1e9

    @property
    def expected(self) -> dict[str, list[str]]:
        """Return the ids of the messages of each key, in the order of delivery."""
        ids: dict[str, dict[str, None]] = defaultdict(dict)
        for _, message in self.deliveries:
            ids[str(message.session_id)][message.message_id] = None
        return {key: [*found] for key, found in ids.items()}


class OrderPaid(BaseModel):
    state: str = ""


class InvoiceIssued(DomainEvent):
    of: str


class Invoice(Entity):
    """
    The effect of a message. Its id does not come from the message, so a second invoice would not conflict: only the inbox record
    prevents it.
    """

    of: str
    key: str

    @property
    def partition_key(self) -> str:
        return self.key


class HandlerFailed(Exception):
    """The error that a handler raises when the script tells it to fail."""


class Ledger(MemoryContainer):
    """
    The container in which handlers commit. It reports each applied batch to the simulation, which checks it.
    """

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(now=simulation.now)
        self._simulation = simulation

    async def read(self, partition_key: object, *args: Any, **options: Any) -> Any:
        self._simulation.check_store(partition_key)
        return await super().read(partition_key, *args, **options)  # type: ignore[arg-type]

    async def commit(self, partition_key: object, writes: Sequence[Write]) -> CommitResult:
        self._simulation.check_store(partition_key)
        result = await super().commit(partition_key, writes)  # type: ignore[arg-type]
        self._simulation.batch_is_applied([write.document for write in writes if write.document is not None])
        return result


class Counted(Passing):
    """
    The parked store. It reports each newly parked key, with the failure, to the simulation, which checks it.
    """

    def __init__(self, simulation: Simulation, store: ParkedStore) -> None:
        super().__init__(store)
        self._simulation = simulation

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        result = await super().commit(partition_key, writes)
        for write in writes:
            if write.id == KEY_ID and write.kind is WriteKind.CREATE and write.document is not None:
                self._simulation.key_is_parked(write.document)
        return result


class Breaking(Counted):
    """The parked store with a client that raises unexpected errors at the times in the script."""

    async def call(
        self, operation: str, partition_key: str, request: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        begins, ends = self._simulation.script.broken
        if begins <= self._simulation.now() < ends:
            raise RuntimeError("the client broke")
        return await super().call(operation, partition_key, request)


class Simulation:
    """One run of a script. Subclasses replace single parts to plant a mistake."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._began = 0.0
        self.violations: list[str] = []
        self.effects: dict[str, list[str]] = defaultdict(list)  # for each key, its messages in order
        self.took_effect_at: dict[str, float] = {}
        self.attempts: Counter[str] = Counter()
        self.parked_for: list[str] = []
        self._troubled: set[str] = set()  # keys of which a message failed, or that an operator parked
        self.subscription = MemorySubscription(lock_seconds=LOCK_SECONDS, max_deliveries=10**6)
        self.subscription.confirms = self._is_settled
        self.container = Ledger(self)
        self.parked = MemoryParked(now=self.now)

    # Planted mistakes override the following methods (test_consumer_mistakes.py).

    def receives(self, program: Program) -> Receiver:
        return program.subscription(self.subscription)

    def handles(self, handling: Handling) -> SessionHandler:
        return handling

    def outbox(self, program: Program) -> Outbox:
        return Outbox(program.store(self.container), retries=_RETRY)

    def parking(self, store: ParkedStore) -> Parking:
        return Parking(store, retry=_RETRY, references=False)

    def sends(self, handling: Handling) -> Send:
        return handling.release

    # the run

    async def play(self) -> None:
        # The time does not begin at 0, because all examples of a test run on the same event loop.
        self._began = asyncio.get_running_loop().time()
        acts: list[Awaitable[None]] = [self._deliver(), self._take_locks(), self._take_broker()]
        acts += [self._process(process) for process in self.script.processes]
        acts += [self._operate(operator) for operator in self.script.operators]
        async with asyncio.timeout(3600):
            await asyncio.gather(*acts)
            await asyncio.sleep(60)  # until requests that are still on their way have been executed
            self.subscription.down = False
            await self._drain()
            self._check_that_no_quiet_key_waits()
            self._check_that_no_other_key_stands()
            self.script = replace(self.script, heals_at=0.0)
            if self._stored("parkedKey"):
                await self._clear()
                await self._drain()
        self._audit()

    async def _deliver(self) -> None:
        for at, message in sorted(self.script.deliveries, key=lambda delivery: delivery[0]):
            await asyncio.sleep(at - self.now())
            self.subscription.deliver(message)

    async def _take_locks(self) -> None:
        for at, key in sorted(self.script.lost_locks):
            await asyncio.sleep(at - self.now())
            with suppress(KeyError):
                self.subscription.lose_lock(key)

    async def _take_broker(self) -> None:
        for begins, ends in [
            (begins, ends) for port, begins, ends in self.script.away if port is Port.SESSION
        ]:
            await asyncio.sleep(begins - self.now())
            self.subscription.down = True
            await asyncio.sleep(ends - self.now())
            self.subscription.down = False

    async def _process(self, process: Process) -> None:
        await asyncio.sleep(process.starts_at)
        program = Program(seconds=process.seconds, faults=process.faults, away=self._is_away)
        processor = self._processor(program)
        if not process.killed:
            asyncio.get_running_loop().call_later(process.lives_for, processor.stop)
        await program.run(processor.run(), lives_for=process.lives_for if process.killed else 1000)

    def _processor(self, program: Program) -> SessionProcessor:
        return SessionProcessor(
            self.receives(program), self.handles(self._handling(program)), _OPTIONS, hooks=[self._hear]
        )

    def _handling(self, program: Program) -> Handling:
        script = self.script
        consumer = Consumer(
            NAME,
            self.outbox(program),
            on_failure=script.on_failure,
            attempts=script.attempts,
            max_deliveries=script.max_deliveries,
            backoff=Backoff(initial_seconds=0.1, maximum_seconds=1),
            handler_timeout=timedelta(seconds=4 if self._is_quick else 30),
            longest_wait=timedelta(seconds=script.longest_wait),
        )

        @consumer.on(OrderPaid, subject=SUBJECT)
        async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
            if program.dead:
                raise asyncio.CancelledError
            self._check_turn(message)
            await self._behave(event, message, uow)
            effect = Invoice(of=message.message_id, key=str(message.session_id))
            effect.record(InvoiceIssued(of=message.message_id))
            uow.repository(Invoice).create(effect)

        return consumer.handling(
            source=SOURCE,
            parking=self.parking(program.parked(Breaking(self, self.parked))),
            notify=self._hear,
        )

    @property
    def _is_quick(self) -> bool:
        return not any(habit in (Habit.LASTS, Habit.LOSES) for habit, _ in self.script.habits.values())

    async def _behave(self, event: OrderPaid, message: Message, uow: UnitOfWork) -> None:  # noqa: C901 - one case a habit
        await asyncio.sleep(self.script.handler_seconds)
        begins, ends = self.script.fails_all
        if begins <= self.now() < ends:
            raise HandlerFailed("the script lets every handler fail at this time")
        begins, ends = self.script.asks_all
        if begins <= self.now() < ends:
            raise TryLater("the script lets every handler raise TryLater at this time")
        habit, times = self.script.habits.get(message.message_id, (None, 0))
        self.attempts[message.message_id] += 1
        over = self.now() >= self.script.heals_at or event.state == MENDED
        if over or (times >= 0 and self.attempts[message.message_id] > times):
            return
        match habit:
            case Habit.FAILS:
                raise HandlerFailed(message.message_id)
            case Habit.BABBLES:
                raise HandlerFailed("half a surrogate pair, which no store accepts: \ud800")
            case Habit.ASKS if self.script.ends_asking or self.attempts[message.message_id] <= _ASKS:
                raise TryLater(message.message_id, after=timedelta(seconds=0.5))
            case Habit.ROLLS_BACK:
                uow.rollback()
            case Habit.CONTENDS if self.attempts[message.message_id] <= _CONTENTIONS:
                written = str(self.attempts[message.message_id])
                raise PreconditionFailed(expected="0", actual=written, document_id="total")
            case Habit.HANGS:
                await asyncio.Event().wait()
            case Habit.SWALLOWS:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                await asyncio.sleep(3)
            case Habit.LOSES:
                await asyncio.sleep(1)  # endless attempts must use up virtual time, or no timeout ends them
                with suppress(KeyError):
                    self.subscription.lose_lock(str(message.session_id))
                await asyncio.Event().wait()
            case Habit.LASTS:
                await asyncio.sleep(1.5 * LOCK_SECONDS)

    async def _operate(self, operator: Operator) -> None:
        await asyncio.sleep(operator.starts_at)
        program = Program(seconds=operator.seconds, faults=operator.faults, away=self._is_away)
        with suppress(OutboxError):
            await program.run(self._act(self._keys(program), operator.act), operator.lives_for)

    def _keys(self, program: Program) -> ParkedKeys:
        handling = self._handling(program)
        store = program.parked(Counted(self, self.parked))
        return ParkedKeys(store, self.sends(handling), scope=handling.scope, retry=_RETRY)

    async def _act(self, keys: ParkedKeys, act: Act) -> None:
        if act is Act.PARK:
            await keys.park("b", reason="by hand")
        for parked in await keys.list():
            key = parked.partition_key
            if act is Act.RELEASE:
                await self._release(keys, key)
            elif act is Act.TWICE:
                await asyncio.gather(
                    self._release(keys, key), self._release(keys, key), return_exceptions=True
                )
            elif act is Act.EDIT:
                await self._edit(keys, key)
            elif act is not Act.PARK and (held := (await keys.show(key)).held):
                event = held[0 if act is Act.DROP_FIRST else -1]
                await keys.drop(key, event.event_id, reason="of no use")

    async def _release(self, keys: ParkedKeys, key: str) -> Released:
        released = await keys.release(key)
        # A release may stop at these errors, and an operator has to release the key again. PreconditionFailed is one of them:
        # another writer may win more often than a message has attempts.
        may_stop = (*_REASONS, PreconditionFailed.__name__, TryLater.__name__)
        if released.failure is not None and released.failure.reason not in may_stop:
            self.violations.append(f"a release of {key} stops at {released.failure}")
        return released

    async def _edit(self, keys: ParkedKeys, key: str) -> Released:
        first = await keys.first_held(key)
        if first is None:
            return await self._release(keys, key)
        return await keys.release(key, edited={"state": MENDED}, event_id=first.event_id)

    async def _drain(self) -> None:
        """Let one process handle all messages that the broker still has. No request of this process fails."""
        program = Program()
        processor = self._processor(program)
        running = asyncio.ensure_future(program.run(processor.run(), lives_for=3600))
        async with asyncio.timeout(600):
            while self.subscription.waiting and not running.done():  # noqa: ASYNC110 - any fact
                await asyncio.sleep(0.5)
        processor.stop()
        await running

    async def _clear(self) -> None:
        keys = self._keys(Program())
        for parked in await keys.list():
            released = await self._release(keys, parked.partition_key)
            if not released.handed_back:
                self.violations.append(f"{parked.partition_key} fails for ever: {released.failure}")
                await self._edit(keys, parked.partition_key)

    def check_store(self, key: object) -> None:
        begins, ends = self.script.stores_away.get(str(key), (0.0, 0.0))
        if begins <= self.now() < ends:
            raise StoreUnavailable(f"the container does not answer requests of key {key} now")

    # The simulated services call the following methods, which check the promises at once.

    def batch_is_applied(self, documents: Collection[Document]) -> None:
        effects = [one for one in documents if one["type"] == "invoice"]
        events = [one for one in documents if one["type"] == "domainEvent"]
        entries = [one for one in documents if one["type"] == "inboxRecord"]
        of = (
            [one["data"]["of"] for one in effects],
            [one["meta"]["causationId"] for one in events],
            [one["messageId"] for one in entries],
        )
        if not (len(of[0]) == 1 and of[0] == of[1] == of[2] and len(documents) == 3):
            self.violations.append(f"a batch has effects, events and entries of {of}")
        for effect in effects:
            self.effects[effect["partitionKey"]].append(effect["data"]["of"])
            self.took_effect_at[effect["data"]["of"]] = self.now()

    def key_is_parked(self, document: Document) -> None:
        self._troubled.add(document["key"])
        if (document["failure"] or {}).get("reason") not in (*self.script.gives_up_for, BY_HAND):
            self.violations.append(f"{document['key']} is parked for {document['failure']}")

    def _check_turn(self, message: Message) -> None:
        of_key = [one for one in self.subscription.waiting if one.session_id == message.session_id]
        numbers = {one.sequence_number for one in of_key}
        # The limit of deliveries is not checked for parked keys. An operator's release may handle a message of such a key again,
        # before the broker confirms its completion.
        tried_by_release = message.session_id in self._troubled
        if (
            message.sequence_number in numbers
            and message.delivery_count >= self.script.max_deliveries
            and not tried_by_release
        ):
            self.violations.append(f"{message.message_id} is tried after {message.delivery_count} deliveries")
        before = [one.message_id for one in of_key if one.sequence_number < message.sequence_number]
        if before:
            self.violations.append(f"{message.message_id} is handled before {before} are settled")

    def _is_settled(self, message: Message, settlement: Settlement) -> bool:
        if isinstance(settlement, Complete) and not self._is_kept(message):
            self.violations.append(f"{message.message_id} is completed, and is nowhere")
        dead = isinstance(settlement, DeadLetter) and settlement.reason != "DroppedBefore"
        if dead and self.script.on_failure is OnFailure.PARK:
            self.violations.append(f"{message.message_id} is dead-lettered: {settlement}")
        return True

    def _is_kept(self, message: Message) -> bool:
        known = {document["event"]["id"] for document in self._stored("parkedEvent")} | self._dead_letters
        return message.message_id in known or message.message_id in self.effects[str(message.session_id)]

    @property
    def _dead_letters(self) -> set[str]:
        return {message.message_id for message, _, _ in self.subscription.dead_letters}

    def _hear(self, record: Record) -> None:
        # A CancelledError is no violation: the script killed the process during the handler.
        if isinstance(record, MessageFailed) and not isinstance(record.error, asyncio.CancelledError | None):
            self.violations.append(f"the consumer raises with {record.message_id}: {record.error!r}")
        if isinstance(record, MessageGivenUp):
            self._troubled.add(str(record.key))
            if not isinstance(record.error, DeliveredTooOften):
                self.parked_for.append(record.message_id)
            if type(record.error).__name__ not in self.script.gives_up_for:
                self.violations.append(
                    f"{record.message_id} has not failed, and is given up: {record.error!r}"
                )

    def _check_that_no_other_key_stands(self) -> None:
        for key, ids in self.script.expected.items():
            if key not in self._troubled and self.effects[key] != ids:
                self.violations.append(f"{key} waits behind other keys: {self.effects[key]} of {ids}")

    def _check_that_no_quiet_key_waits(self) -> None:
        for at, message in self.script.deliveries:
            waited = self.took_effect_at.get(message.message_id, 1e9) - at
            if waited > self.script.within and message.session_id in self.script.quiet:
                self.violations.append(f"{message.message_id} waits for {waited} s behind other keys")

    def _audit(self) -> None:
        assert not self.violations, "\n".join(self.violations)
        assert () == self.subscription.waiting
        assert [] == self._stored("parkedKey")
        records = self._stored("parkedEvent")
        assert [] == [document["id"] for document in records if document["status"] == "held"]
        assert all(document["note"] for document in records if document["status"] == "dropped")
        left_out = {document["event"]["id"] for document in records if document["status"] == "dropped"}
        left_out |= self._dead_letters
        took_effect = {key: [one for one in ids if one not in left_out] for key, ids in self.effects.items()}
        expected = {
            key: [one for one in ids if one not in left_out] for key, ids in self.script.expected.items()
        }
        assert {key: ids for key, ids in expected.items() if ids} == {
            key: ids for key, ids in took_effect.items() if ids
        }
        assert not [one for ids in self.effects.values() for one, times in Counter(ids).items() if times > 1]
        if self.script.on_failure is OnFailure.PARK:
            blameless = {one for one in self.parked_for if one not in self.script.habits}
            assert len(blameless) <= KEYS_PARKED_IN_A_ROW * (len(self.script.processes) + 1)

    def _stored(self, kind: str) -> list[Document]:
        return [document for document in self.parked.documents() if document["type"] == kind]

    def _is_away(self, port: Port) -> bool:
        return any(
            port is away and begins <= self.now() < ends
            for away, begins, ends in self.script.away
            if away is not Port.SESSION
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._began


_CONTENTIONS = 20
_ASKS = 6
_SHORT = 60.0  # a `longest_wait` of fewer seconds may end within a run
_RETRY = RetryOptions(
    deadline_seconds=3, attempt_seconds=1.5, backoff=Backoff(initial_seconds=0.02, maximum_seconds=0.3)
)
_OPTIONS = SessionOptions(
    max_concurrent_sessions=SLOTS,
    session_idle_timeout=timedelta(seconds=4),
    grace_period=timedelta(seconds=3),
    max_handling=timedelta(seconds=300),
    backoff=Backoff(initial_seconds=0.1, maximum_seconds=1),
)
# The errors after which a consumer may give a message up, in every script
_REASONS = (
    HandlerFailed.__name__,
    HandlerTimeout.__name__,
    "HandlerStuck",
    DeliveredTooOften.__name__,
)


def body(state: str = "") -> bytes:
    """Return the body of a message as JSON. The state MENDED lets the handler succeed."""
    return json.dumps({"state": state}).encode()
