"""
Handlers that raise TryLater: the message waits, and later messages of its key wait behind it. Until the limit `longest_wait`, it occupies
no slot, and no attempt is counted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from cosmos_outbox import UnitOfWork
from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.consumer import Consumer, Message, TryLater
from cosmos_outbox.consumer.circuit import Circuit
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.parking import ParkedKey
from cosmos_outbox.records import (
    AttemptFailed,
    CircuitMoved,
    ConsumerHalted,
    ConsumingDelayed,
    MessageGivenUp,
    SessionClosed,
)
from tests.support.shop import Invoice, InvoiceIssued, OrderPaid, World, invoicing, message

MINUTES = timedelta(minutes=1)


class BankRefused(TimeoutError):
    """An error that a handler declares permanent, although its base class is in `waits_for`."""


def now() -> float:
    return asyncio.get_running_loop().time()


def charging(fault: Callable[[OrderPaid], BaseException | None], **options: object) -> Consumer:
    """Return a consumer whose handler raises the error that `fault` returns for the event, if any."""
    consumer = Consumer("charging", **options)  # type: ignore[arg-type]

    def charge(event: OrderPaid) -> None:
        if (error := fault(event)) is not None:
            raise error

    @consumer.on(OrderPaid, permanent=BankRefused)
    async def handle(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        charge(event)
        uow.repository(Invoice).create(Invoice.of(event))

    return consumer


def away_until(
    seconds: float, error: Callable[[], BaseException]
) -> Callable[[OrderPaid], BaseException | None]:
    """
    Return a fault function for `charging`: for the given number of seconds it returns a new error for each order with a positive
    total.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    return lambda event: error() if event.total > 0 and loop.time() < ends else None


def deliver(world: World, key: str, *totals: int) -> None:
    for total in totals:
        world.subscription.deliver(message(OrderPaid(order_id=key, total=total), session=key))


def totals(world: World) -> list[int]:
    return [invoice["data"]["total"] for invoice in world.documents("invoice")]


async def test_a_message_that_is_to_be_tried_later_does_not_occupy_a_slot():
    """The slot handles other keys. Later messages of the same key wait behind the message."""
    later = away_until(240, lambda: TryLater("the bank is closed", after=4 * MINUTES))
    world = World(charging(later, attempts=1), sessions_at_once=1)
    deliver(world, "o1", 1, 2)
    deliver(world, "o2", 0)
    await world.run(lambda: totals(world) == [0])
    assert now() < 60
    await world.run()

    assert [0, 1, 2] == totals(world)
    assert 240 <= now() < 260
    (first, *_) = waits = world.of(ConsumingDelayed, "later")
    assert ("o1", "OrderPaid", "the bank is closed") == (first.key, first.subject, str(first.error))
    assert sorted(one.waited_seconds for one in waits) == [one.waited_seconds for one in waits]
    assert [] == world.of(MessageGivenUp) == world.of(AttemptFailed)
    assert {0} == {one.delivery_count for one, _ in world.subscription.settled}


@pytest.mark.parametrize("sessions", [True, False])
@pytest.mark.parametrize(
    "error",
    [TryLater, TimeoutError, lambda: ExceptionGroup("of a task group", [TimeoutError(), TryLater()])],
)
async def test_a_long_outage_that_handlers_report_with_trylater_parks_no_key(
    error: Callable[[], BaseException], sessions: bool
):
    """No attempt and no delivery of a message is counted during the outage."""
    consumer = charging(away_until(120, error), waits_for=TimeoutError, attempts=1)
    subscription = MemorySubscription(sessions=sessions, max_deliveries=2)
    world = World(consumer, subscription=subscription, sessions_at_once=4)
    for key in range(20):
        deliver(world, f"o{key}", 1)
    await world.run()

    assert 20 == len(totals(world))
    assert 120 <= now() < 180
    assert [] == subscription.dead_letters == world.of(MessageGivenUp)
    assert {0} == {one.delivery_count for one, _ in subscription.settled}


@pytest.mark.parametrize("error", [BankRefused, lambda: ExceptionGroup("mixed", [TryLater(), KeyError()])])
async def test_an_error_that_is_listed_as_permanent_and_as_waiting_counts_as_permanent(
    error: Callable[[], BaseException],
):
    """The test also checks a group of errors: it counts as a failed attempt unless each error in it lets the message wait."""
    world = World(charging(lambda event: error(), waits_for=(TimeoutError,), attempts=1))
    deliver(world, "o1", 1)
    await world.run()
    assert [1] == [parked.attempts for parked in world.of(MessageGivenUp, "parked")]


async def test_a_message_that_waits_beyond_longest_wait_is_parked():
    fault = away_until(540, TimeoutError)
    world = World(charging(fault, waits_for=TimeoutError, longest_wait=6 * MINUTES, attempts=2))
    deliver(world, "o1", 1, 2)
    await world.run()

    assert 360 <= now() < 400
    (key,) = await world.keys.list()
    assert isinstance(key, ParkedKey)
    assert key.failure is not None
    assert ("TryLater", 2) == (key.failure.reason, key.held)
    assert "for 0:06:00 (longest_wait), at last with TimeoutError: no text, from " in key.failure.error
    assert key.failure.attempts == 1 + len(world.of(ConsumingDelayed, "later"))
    assert key.failure.frames[-1].endswith("in charge")
    assert not (await world.keys.release("o1")).handed_back
    assert [1] == [one.attempt for one in world.of(AttemptFailed) if one.delay_seconds is not None]
    await asyncio.sleep(540)
    assert (await world.keys.release("o1")).handed_back
    assert [1, 2] == totals(world)


async def test_the_circuit_opens_when_handlers_postpone_messages_of_all_keys():
    """
    While the circuit is open, the consumer tries one message at a time. The first success closes the circuit.
    """
    calls = list[float]()
    asks = away_until(120, lambda: calls.append(now()) or TryLater("the bank is away"))  # type: ignore[func-returns-value]
    consumer = charging(asks)

    @consumer.on(InvoiceIssued)
    async def file(event: InvoiceIssued, message: Message, uow: UnitOfWork) -> None:
        uow.repository(Invoice).create(Invoice(order_id="filed", total=event.total))

    world = World(consumer)
    for key in range(30):
        deliver(world, f"o{key}", 1)
    await world.run(lambda: bool(world.of(CircuitMoved)))
    world.subscription.deliver(message(InvoiceIssued(total=7), session="filed"))
    at_once, opened_at = len(calls), now()
    await world.run(lambda: totals(world) == [7])
    assert now() < opened_at + 5, "a subject whose handler does not ask has no circuit"
    await world.run(seconds=1000)

    opened, closed = world.of(CircuitMoved)
    assert ("OrderPaid", 5, "opened") == (opened.subject, opened.keys, opened.outcome)
    assert ("closed", True) == (closed.outcome, 110 < closed.open_seconds < 150)
    assert 31 == len(totals(world))
    assert now() < 170
    probes = calls[at_once:]
    assert 10 < len(probes) < 75, "thirty keys would have called some 300 times"
    assert {"later", "circuit"} == {one.outcome for one in world.of(ConsumingDelayed)}


async def test_an_open_circuit_tries_the_next_message_after_a_message_failed():
    def fault(event: OrderPaid) -> BaseException | None:
        return ValueError("wrong") if event.total < 0 else away(event)

    away = away_until(60, TryLater)
    world = World(charging(fault, attempts=1))
    for key in range(5):
        deliver(world, f"o{key}", 1)
    await world.run(lambda: bool(world.of(CircuitMoved, "opened")))
    deliver(world, "bad", -1)
    await world.run(seconds=200)

    assert ["bad"] == [parked.key for parked in world.of(MessageGivenUp, "parked")]
    assert [1] * 5 == totals(world)


def test_an_open_circuit_tries_a_new_message_after_one_second():
    """A message whose handler asked to get it later is not tried again before its own back-off ends."""
    delays = []
    for _ in range(20):
        circuit = Circuit(TryLater())
        for asked in range(20):
            circuit.count_ask(f"o{asked}", TryLater(), 100.0 * asked)
        assert circuit.delay("asked", 1900.5, new=True)
        delays.append(circuit.delay("asked", 1901.0, new=False))
        circuit.probe = None
        assert not circuit.delay("new", 1901.0, new=True)
        assert circuit.delay("another", 1901.0, new=True), "one at a time"
    assert max(delays) > 3


async def test_an_outage_beyond_longest_wait_parks_only_five_keys():
    world = World(charging(away_until(120, TryLater), longest_wait=MINUTES))
    for key in range(12):
        deliver(world, f"o{key}", 1)
    await world.run(lambda: bool(world.of(ConsumerHalted)), seconds=120)
    await world.run(seconds=200)

    assert 5 == len(world.of(MessageGivenUp, "parked"))
    assert 7 == len(totals(world))


@pytest.mark.looptime(False)
async def test_trylater_has_the_same_effect_if_it_is_raised_in_a_thread():
    def charge() -> None:
        raise TryLater("the bank is closed")

    consumer = Consumer("charging")

    @consumer.on(OrderPaid)
    async def handle(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        await asyncio.to_thread(charge)

    world = World(consumer)
    deliver(world, "o1", 1)
    await world.run(lambda: bool(world.of(ConsumingDelayed, "later")))
    assert [] == world.of(AttemptFailed)


@pytest.mark.parametrize(
    ("after", "seconds"),
    [(5, 5), (0.5, 0.5), (timedelta(seconds=5), 5), ("5", None), (-1, None), (math.nan, None)],
)
def test_trylater_takes_a_number_of_seconds_or_a_timedelta(after: Any, seconds: float | None):
    """The test also checks that TryLater ignores an invalid value of this argument (`after`)."""
    assert seconds == TryLater("the bank is away", after=after).retry_after


async def test_a_process_that_stops_gives_waiting_messages_back_at_once():
    world = World(charging(away_until(60, lambda: TryLater(after=60 * MINUTES))))
    deliver(world, "o1", 1)
    await world.run(lambda: bool(world.of(ConsumingDelayed)))

    assert now() < 5
    assert "stopped" == world.of(SessionClosed)[-1].outcome or "retry" == world.of(SessionClosed)[-1].outcome
    assert [0] == [one.delivery_count for one in world.subscription.waiting]


def test_a_consumer_refuses_invalid_waiting_settings():
    with pytest.raises(ConfigurationError, match="waits_for takes classes of errors, not 'TimeoutError'"):
        Consumer("c", waits_for=("TimeoutError",))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"longest_wait must be .* more than 0"):
        Consumer("c", longest_wait=timedelta(0))
    for limit in ("longest_wait", "handler_timeout", "record_ttl"):
        with pytest.raises(
            ConfigurationError, match=rf"{limit} must be a timedelta .* timedelta\(seconds=30\), not 30"
        ):
            Consumer("c", **{limit: 30})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="permanent takes classes of errors"):
        invoicing().on(InvoiceIssued, permanent=ValueError("x"))  # type: ignore[call-overload]
