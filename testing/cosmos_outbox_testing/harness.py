"""
OutboxHarness: an outbox, its worker, a topic and consumers in memory. A test calls `relay_all` to have all events sent.

    harness = OutboxHarness()
    harness.outbox.on(OrderPlaced, reserve_stock)
    await place_order(harness.outbox)
    assert ["OrderPlaced", "StockReserved"] == [message.subject for message in await harness.relay_all()]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from cosmos_outbox.adapters.memory import MemoryBroker, MemoryContainer, MemoryLeases, MemoryParked
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.consumer.parked_messages import message_of as held_message
from cosmos_outbox.consumer.waiting_messages import Wait
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import UsageError
from cosmos_outbox.message_format import Message, OutboundMessage, message_of
from cosmos_outbox.parking import ParkedKeys, Parking, Released, Scope
from cosmos_outbox.partition_key import PartitionKey, key_text
from cosmos_outbox.ports import ChangeFeed, LeaseStore, ParkedStore, Publisher, Store
from cosmos_outbox.records import Record, log_hook
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.retries import Backoff, RetryOptions
from cosmos_outbox.stored_documents import stored_event
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_testing.clock import Clock
from cosmos_outbox_testing.consuming import Delivered, Subscribed, consume_everything, handling_of
from cosmos_outbox_testing.faults import Faults
from cosmos_outbox_testing.port_calls import Around, wrap_port
from cosmos_outbox_testing.received import message_of_event
from cosmos_outbox_testing.relaying import relay_everything
from cosmos_outbox_testing.running import AT_ONCE

PortT = TypeVar("PortT")
PROCESSOR = "harness"
_STORED = ("container", "broker", "leases", "parked", "subscriptions", "containers", "clock")
_ADAPTED = {"publisher", "parked", "subscription"}
# Retry for two seconds only, so that a test with a lasting fault fails soon. With a shorter time, tests would fail without a reason
# on a busy machine, or when a handler blocks the event loop.
_RETRIES = RetryOptions(
    deadline_seconds=2.0,
    attempt_seconds=2.0,
    backoff=Backoff(initial_seconds=0.001, maximum_seconds=0.02),
)


class OutboxHarness:
    """
    Everything that an application with an outbox needs, in memory: a container, a worker, a topic, and subscriptions.

    Two harnesses may share the same stored data, so that a test can restart an application. See `restarted`.

    Args:
        container: the container of entities and events. Defaults to a new one, partitioned on /partitionKey.
        broker: the topic. Defaults to a new one.
        leases: the lease container of the worker. Defaults to a new one.
        parked: the parked store. Defaults to a new one.
        subscriptions: the subscription of each consumer, by the consumer's name. Defaults to none: a subscription with sessions is
            created when a consumer first needs it. If a consumer needs one without sessions, put
            `Subscribed(MemorySubscription(sessions=False))` there before.
        containers: the containers of consumers that do not write to `container`, by the consumer's name. Defaults to none.
        clock: the clock by which documents expire and the topic detects duplicates. Defaults to the system's clock.

    Attributes:
        outbox: the outbox of the application.
        faults: the faults that a test has asked for.
        fail: makes the next calls of an operation fail, such as `fail("commit", "lost_answer")`. See `Faults.add`.
        around: functions through which every call of a port passes. The first function is called first, and wraps the others. See `Call`.
        adapters: functions that wrap a port in an adapter of your own. The keys are "publisher", "parked" and "subscription". A function
            is given the port in memory and returns the adapter. It is called for each worker and for each process of a consumer.
        store, feed, lease_store, publisher, parked_store: the ports, which read and change the data in memory.
        records: all records that workers and consumers reported.
    """

    def __init__(
        self,
        *,
        container: MemoryContainer | None = None,
        broker: MemoryBroker | None = None,
        leases: MemoryLeases | None = None,
        parked: MemoryParked | None = None,
        subscriptions: dict[str, Subscribed] | None = None,
        containers: dict[str, MemoryContainer] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        now = self.clock.time
        self.container = container or MemoryContainer(now=now)
        self.broker = broker or MemoryBroker(clock=now)
        self.leases = leases or MemoryLeases(now=now)
        self.parked = parked or MemoryParked(now=now)
        self.subscriptions = {} if subscriptions is None else subscriptions
        self.containers = {} if containers is None else containers
        self.records: list[Record] = []
        self.faults = Faults()
        self.fail = self.faults.add
        self.around: list[Around] = [self.faults.around]
        self.adapters: dict[str, Callable[[Any], Any]] = {}
        self.store: Store = wrap_port(self.container, "store", self.around)
        self.feed: ChangeFeed = wrap_port(self.container, "feed", self.around)
        self.lease_store: LeaseStore = wrap_port(self.leases, "leases", self.around)
        self.publisher: Publisher = wrap_port(self.broker.publisher(), "publisher", self.around)
        self.parked_store: ParkedStore = wrap_port(self.parked, "parked", self.around)
        self.outbox = Outbox(self.store, retries=_RETRIES)
        # For each consumer, by its name: the messages that wait for a store or for a later time.
        self._waits: dict[str, dict[str, Wait]] = {}

    def deliver(
        self,
        consumer: Consumer,
        what: DomainEvent | Message | OutboundMessage,
        *,
        key: PartitionKey = "key",
        **fields: Any,
    ) -> Message:
        """
        Put a message at the end of a consumer's subscription, without an outbox or a topic. The next `consume_all` handles it.

        Args:
            consumer: the consumer that receives the message.
            what: an event, which is delivered as the message that the relay would send. Or a message, which may have been delivered
                before.
            key: the partition key of the event, which becomes the session id of the message. Defaults to "key".
            fields: other fields of the `Message`, such as `delivery_count`.
        """
        message = message_of_event(what, key_text(key)) if isinstance(what, DomainEvent) else what
        return self._subscription_of(consumer).subscription.deliver(message, **fields)

    async def relay_all(self, *, allow_failures: bool = False) -> list[OutboundMessage]:
        """
        Run a worker until no event waits. Return the messages that arrived at the topic meanwhile, in order.

        An event that was recorded for a later time arrives in the first call after `clock.advance` has moved the clock to that time.

        Args:
            allow_failures: whether events may end parked or held. Events that the topic refused because of `fail` may always be
                parked. They do not arrive at the topic; `parked_messages` returns them.

        Raises:
            MessagesFailed: an event ended parked or held, and the test did not ask for it.
            Stuck: the topic or a store failed again and again. When it works again, another call goes on.
        """
        before = len(self.broker.entered)
        await self.faults.wait_for_late()
        await relay_everything(
            name=PROCESSOR,
            feed=self.feed,
            leases=self.lease_store,
            publisher=self._adapt("publisher", self.publisher),
            parking=Parking(self._adapt("parked", self.parked_store), retry=_RETRIES, utcnow=self.clock.now),
            notify=self._notify,
            stored=self.container,
            allows=lambda error: allow_failures or self.faults.is_meant(error),
        )
        await self.faults.wait_for_late()
        return self.broker.accepted[before:]

    async def consume_all(self, consumer: Consumer, *, allow_failures: bool = False) -> list[Delivered]:
        """
        Run a process of a consumer until no message waits. Return the outcome of each delivery, in order.

        The consumer receives the messages of the topic, and those of `deliver`. A consumer without an outbox of its own gets an outbox on
        its container in `containers`, or the outbox of this harness. If a handler asks to get its message later, that message and the
        messages behind it in the same session wait. The first call after `clock.advance` has moved the clock to that time delivers them.

        Args:
            allow_failures: whether messages may end parked, held or dead-lettered.

        Raises:
            MessagesFailed: a message ended parked, held or dead-lettered, and `allow_failures` is false. The cause is the first error
                that a handler raised.
            Stuck: a store or the handlers failed again and again. When they work again, another call goes on.
        """
        subscribed = self._subscription_of(consumer)
        for message in self.broker.accepted[subscribed.messages :]:
            subscribed.subscription.deliver(message)
            subscribed.messages += 1
        before = len(subscribed.delivered)
        await consume_everything(
            consumer,
            self._outbox_of(consumer),
            subscribed,
            around=self.around,
            adapted=lambda subscription: self._adapt("subscription", subscription),
            parking=self._consumer_parking(),
            notify=self._notify,
            allows=lambda _: allow_failures,
            waits=self._waits.setdefault(consumer.name, {}),
            now=self.clock.time,
        )
        return subscribed.delivered[before:]

    def restarted(self) -> OutboxHarness:
        """Return a new harness with the same stored data and no faults, as if the program had been restarted."""
        return OutboxHarness(**self.stored)

    @property
    def stored(self) -> dict[str, Any]:
        """Return the stored data, which a restart does not change, as arguments for a new harness."""
        return {name: getattr(self, name) for name in _STORED}

    @overload
    async def parked_messages(self) -> dict[str, list[OutboundMessage]]: ...
    @overload
    async def parked_messages(self, consumer: Consumer) -> dict[str, list[Message]]: ...
    async def parked_messages(self, consumer: Consumer | None = None) -> Any:
        """
        Return the messages that are parked or held, by partition key.

        The first message of a key is the one that the topic refused, or that the consumer could not handle. The messages that are held
        behind it follow, in order.
        """
        keys = await self._keys_on(self.parked, consumer)
        waiting: dict[str, list[Any]] = {}
        for key in await keys.list():
            held = (await keys.show(key.partition_key)).held
            if consumer is not None:
                messages: list[Any] = [held_message(it.event, edited=it.original is not None) for it in held]
            else:
                events = (stored_event(one.event, self.container.key_paths) for one in held)
                messages = [message_of(event) for event in events if event is not None]
            waiting[key.partition_key] = messages
        return waiting

    async def parked_keys(self, consumer: Consumer | None = None) -> ParkedKeys:
        """Return the object with which operators list, show, park, drop and release the parked keys of the worker or of a consumer."""
        return await self._keys_on(self.parked_store, consumer)

    async def release(
        self, key: PartitionKey, consumer: Consumer | None = None, /, **changes: Any
    ) -> Released:
        """
        Release a parked key as an operator does: send its events, or call a consumer's handlers with its messages.

        Args:
            key: the parked key, or its text.
            consumer: the consumer that parked the key. Defaults to none: the worker parked it.
            changes: new values for fields of the first event or message, as if an operator edited it. If it is a structured CloudEvent,
                these are fields of its `data`.

        Raises:
            KeyNotParked: the key is not parked.
        """
        name, keys = key_text(key), await self.parked_keys(consumer)
        first = await keys.first_held(name) if changes else None
        if first is None:
            return await keys.release(name)
        data: dict[str, Any] = first.event["data"]
        if data.keys() >= {"specversion", "id", "source", "type"} and isinstance(data.get("data"), dict):
            changes = {"data": {**data["data"], **changes}}
        return await keys.release(name, edited={**data, **changes}, event_id=first.event_id)

    async def _keys_on(self, store: ParkedStore, consumer: Consumer | None) -> ParkedKeys:
        if consumer is None:
            described = await self.container.describe()
            send = resending(self.publisher, events=self.store, retry=_RETRIES, backoff=AT_ONCE)
            scope = Scope(processor=PROCESSOR, container=described.container_rid)
        else:
            outbox, parking = self._outbox_of(consumer), self._consumer_parking()
            handling = handling_of(consumer, outbox, parking, self._notify, self.around)
            send, scope = handling.release, handling.scope
        return ParkedKeys(store, send, scope=scope, retry=_RETRIES, utcnow=self.clock.now)

    def _consumer_parking(self) -> Parking:
        store = self._adapt("parked", self.parked_store)
        return Parking(store, retry=_RETRIES, utcnow=self.clock.now, references=False)

    def _outbox_of(self, consumer: Consumer) -> Outbox:
        container = self.containers.get(consumer.name)
        return self.outbox if container is None else Outbox(container, retries=_RETRIES)

    def _subscription_of(self, consumer: Consumer) -> Subscribed:
        return self.subscriptions.setdefault(consumer.name, Subscribed())

    def _adapt(self, name: str, port: PortT) -> PortT:
        if unknown := sorted(self.adapters.keys() - _ADAPTED):
            raise UsageError(f"`adapters` takes {', '.join(sorted(_ADAPTED))}, not {', '.join(unknown)}.")
        make: Callable[[PortT], PortT] | None = self.adapters.get(name)
        return port if make is None else make(port)

    def _notify(self, record: Record) -> None:
        self.records.append(record)
        log_hook(record)
