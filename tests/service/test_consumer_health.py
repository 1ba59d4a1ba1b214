"""
Tests of the health of a consumer: when it counts as ready, which errors it remembers, and how its status page shows them.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.errors import StoreUnavailable, SubscriptionUnavailable, TryLater
from cosmos_outbox.parking.parked_documents import Failure, ParkedKey, Scope
from cosmos_outbox.records import (
    ConsumerHalted,
    ConsumingDelayed,
    MessageSettled,
    ReceivingFailed,
    SdkFallback,
)
from cosmos_outbox.sessions import SessionStatus
from cosmos_outbox_worker.consumer_health import ConsumerVitals
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.measured_subscription import MeasuredSubscription
from cosmos_outbox_worker.shared_health import summarize_parked
from cosmos_outbox_worker.status_page import page_of
from cosmos_outbox_worker.telemetry import Telemetry
from tests.support.worker_settings import consumer_settings


class State:
    """Stands in for the parts of a consumer whose state its health check reads."""

    sessions: tuple[SessionStatus, ...] = ()
    halted = delayed = receiving = False

    def status(self) -> tuple[SessionStatus, ...]:
        return self.sessions


@pytest.fixture
def state() -> State:
    return State()


def vitals(state: State, source: str) -> ConsumerVitals:
    topic, _, subscription = source.partition("/")
    settings = consumer_settings(topic=topic, subscription=subscription or None)
    health = ConsumerVitals(settings, "invoicing")
    health.processor = health.handling = state
    return health


@pytest.fixture
async def health(state: State) -> ConsumerVitals:
    return vitals(state, "orders/<invoicing>")


async def test_an_unready_consumer_without_a_subscription_suggests_setting_one(state):
    """
    Without a subscription, the consumer takes the name `orders` for a queue. It may be a topic whose subscription is not set.
    """
    health = vitals(state, "orders")
    said = "The consumer has not reached orders yet. If it is a topic, set OUTBOX_SUBSCRIPTION."
    assert (said,) == health.snapshot().unready
    health(refused())
    (reason,) = health.snapshot().unready
    assert reason.endswith("SubscriptionUnavailable: no such thing.")


def refused(attempt: int = 1, *, lasting: float = 0.0) -> ReceivingFailed:
    error = SubscriptionUnavailable("no such thing")
    return ReceivingFailed(attempt=attempt, delay_seconds=1, lasting_seconds=lasting, error=error)


def delayed(key: str = "k", outcome: str = "outage", **told: Any) -> ConsumingDelayed:
    said = {"consumer": "c", "subject": "s", "key": key, "message_id": f"m-{key}", "outcome": outcome}
    error = StoreUnavailable("the store is away")
    return ConsumingDelayed(**{**said, "delay_seconds": 1, "waited_seconds": 0.0, "error": error, **told})


def settled(key: str, outcome: str) -> MessageSettled:
    return MessageSettled(session=key, message_id=f"m-{key}", outcome=outcome, seconds=1)


def handling(seconds: float | None) -> SessionStatus:
    return SessionStatus(session="s-1", messages=2, handling_seconds=seconds)


async def test_the_health_shows_why_the_message_of_a_key_waits(health):
    health(delayed("a"))
    health(delayed("b", error=TryLater("after the night")))
    assert ["Message 'm-b' waits for 0 s: TryLater: after the night"] == health.waits_of("b")


async def test_a_consumer_is_not_ready_before_the_broker_has_answered(health):
    """The test also checks that the health of the consumer shows a refusal by the broker."""
    assert Phase.STARTING is health.snapshot().phase
    assert "has not reached orders/<invoicing> yet." in health.snapshot().unready[0]
    health(refused())
    assert "no such thing" in health.snapshot().unready[0]
    health.note_reached()
    assert ((), Phase.RUNNING) == (health.snapshot().unready, health.snapshot().phase)


async def test_a_consumer_is_ready_even_if_no_session_waits(health):
    telemetry = Telemetry(MeterProvider(shutdown_on_exit=False), consumer=True)
    measured = MeasuredSubscription(
        MemorySubscription(), telemetry, source="orders/a", host="", reached=health.note_reached
    )
    assert None is await measured.accept(1)
    assert () == health.snapshot().unready


async def test_a_consumer_is_unready_after_a_long_outage_of_the_broker(health, state):
    health.note_reached()
    for attempt in range(1, 7):
        health(refused(attempt, lasting=(attempt - 1) * 10.1))
        assert () == health.snapshot().unready
        await asyncio.sleep(10.1)
    (reason,) = health.snapshot().unready
    assert "No message can be received (since " in reason
    assert "SubscriptionUnavailable: no such thing" in reason
    state.receiving = True
    assert () == health.snapshot().unready


async def test_a_consumer_is_unready_after_a_long_outage_of_cosmos_db(health, state):
    health.note_reached()
    state.delayed = True
    health(delayed())
    assert () == health.snapshot().unready
    await asyncio.sleep(61)
    (reason,) = health.snapshot().unready
    assert "Cosmos DB does not answer (since " in reason
    state.delayed = False
    health(settled("k", "complete"))
    assert () == health.snapshot().unready
    state.delayed = True
    health(delayed())
    assert () == health.snapshot().unready  # a new outage is measured from its own start


async def waiting(health: ConsumerVitals, *keys: str, seconds: int = 61, outcome: str = "outage") -> None:
    """
    Let `seconds` pass. In each second, tell the health that a message of each key was delivered and failed, and will be tried
    again.
    """
    for _ in range(seconds):
        for key in keys:
            health(delayed(key, outcome))
            health(settled(key, "retry"))
        await asyncio.sleep(1)


async def test_a_consumer_is_unready_once_a_key_waits_too_long(health):
    """The reason names the key and the error."""
    health.note_reached()
    await waiting(health, "bad")
    (reason,) = health.snapshot().unready
    assert "StoreUnavailable: the store is away. It stops key 'bad' of invoicing" in reason
    assert ["bad"] == [one["key"] for one in health.snapshot().readiness()["stalled"]]
    health(settled("bad", "complete"))
    assert ((), ()) == (health.snapshot().unready, health.snapshot().stalled)
    await waiting(health, "bad", seconds=59)
    assert () == health.snapshot().unready  # only the second wait of "bad" counts: 59 s


async def test_a_key_whose_handler_raises_trylater_does_not_affect_readiness(health):
    """The status page shows the key and how long it has waited."""
    health.note_reached()
    error = TryLater("the bank is closed")
    health(delayed("o1", "later", delay_seconds=3600.0, error=error))
    await asyncio.sleep(61)
    seen = health.snapshot()
    assert ((), 61.0) == (seen.unready, seen.waiting_seconds)
    (cause,) = seen.causes()
    assert ("asked-later", "key 'o1' of invoicing", True) == (cause.kind, cause.whom, cause.words["waits"])
    assert "the bank is closed" in cause.said
    assert cause.whom.replace("'", "&#39;") in page_of(seen)
    assert [("later", "o1")] == [(one["why"], one["key"]) for one in seen.readiness()["stalled"]]
    health(settled("o1", "complete"))
    assert ((), 0) == (health.snapshot().causes(), health.snapshot().waiting_seconds)


async def test_a_consumer_is_unready_once_its_circuit_breaker_was_open_for_a_minute(health):
    health.note_reached()
    await waiting(health, "a", "b", outcome="circuit")
    (said,) = health.snapshot().unready
    assert said.startswith(
        "Messages have asked for a later time, whatever the key, so one at a time is tried"
    )
    await asyncio.sleep(32)
    assert () == health.snapshot().unready, "another process has them now"


async def test_only_the_consumer_that_holds_the_session_reports_its_key_as_stalled(
    health,
):
    health.note_reached()
    await waiting(health, "bad")
    await asyncio.sleep(31)
    assert () == health.snapshot().unready
    health(delayed("bad"))
    assert "It stops key 'bad'" in health.snapshot().unready[0]
    await asyncio.sleep(902)
    health(delayed("bad"))
    await asyncio.sleep(1)
    assert () == health.snapshot().unready


async def test_a_consumer_with_very_many_stalled_keys_names_only_twenty(health):
    health.note_reached()
    for _ in range(2):
        for number in range(1100):
            health(delayed(str(number)))
        await asyncio.sleep(31)
    seen = health.snapshot()
    assert 1000 == len(seen.stalled)
    assert (1, True) == (len(seen.unready), "key '19' of invoicing; and 980 more." in seen.unready[0])


async def test_a_consumer_is_unready_while_its_handlers_fail_on_every_key(health, state):
    health.note_reached()
    state.halted = True
    health(ConsumerHalted(consumer="c", keys=5, error=ValueError("all wrong")))
    assert "all wrong" in health.snapshot().unready[0]
    state.halted = False
    assert () == health.snapshot().unready


async def test_a_message_that_is_handled_for_too_long_is_reported_with_its_session(health, state):
    health.note_reached()
    state.sessions = (handling(59.0), handling(None))
    assert () == health.snapshot().unready
    state.sessions = (handling(61.0),)
    (reason,) = health.snapshot().unready
    assert "A message is being handled for long (since " in reason
    assert "It stops session 's-1' of invoicing." in reason
    said = health.snapshot().readiness()
    assert ("unready", [{"session": "s-1", "messages": 2, "handling_seconds": 61.0}]) == (
        said["status"],
        said["sessions"],
    )


async def test_a_consumer_that_drains_or_has_ended_is_not_ready(health):
    health.note_reached()
    health.note_draining()
    assert (Phase.DRAINING, ("The consumer is draining.",)) == (
        health.snapshot().phase,
        health.snapshot().unready,
    )
    health.note_end(ValueError("why"))
    assert (Phase.ENDED, ("The consumer has ended: why.",)) == (
        health.snapshot().phase,
        health.snapshot().unready,
    )


def parked(key: str, at: str) -> ParkedKey:
    failure = Failure(event_id="m-1", reason="KeyError", error="'<total>'", attempts=5)
    scope = Scope(processor="invoicing", container="orders/invoicing")
    return ParkedKey(
        partition_key=key, partition=key, scope=scope, epoch="e", parked_at=at, failure=failure, held=2
    )


def test_the_oldest_parked_key_is_found_despite_unreadable_times():
    keys = [
        parked("a", "2026-01-02T00:00:00+00:00"),
        parked("b", "yesterday"),
        parked("c", "2026-01-01T00:00:00"),
    ]
    assert datetime(2026, 1, 1, tzinfo=UTC) == summarize_parked(keys).oldest_at
    assert None is summarize_parked([]).oldest_at


async def test_the_consumer_s_page_shows_sessions_and_parked_keys(health, state):
    """All names and errors are escaped, so HTML in them has no effect."""
    health.note_reached()
    state.sessions = (handling(12.0), SessionStatus(session="<s>", messages=0, handling_seconds=None))
    key = parked("<k>", "2026-01-01T00:00:00+00:00")
    health.note_parked(summarize_parked([key]))
    page = page_of(health.snapshot())
    for text in (
        "handling one for 12 s",
        "&lt;s&gt;",
        "&lt;k&gt;",
        "orders/&lt;invoicing&gt;",
        "KeyError: &#39;&lt;total&gt;&#39;",
        "Oldest parked",
        "Messages handled",
        "--consumer MODULE:NAME",
    ):
        assert text in page
    assert "<k>" not in page
    state.sessions = ()
    assert "None is held" in page_of(health.snapshot())


async def test_a_consumer_shows_until_its_end_that_the_sdk_s_receiver_took_over(health: ConsumerVitals):
    health.note_reached()
    assert health.snapshot().readiness()["fallback"] is None
    health(SdkFallback(part="receiver", entity="t/s", reason="amqp:decode-error garbage"))
    snapshot = health.snapshot()
    assert "amqp:decode-error garbage" == snapshot.readiness()["fallback"]
    assert () == snapshot.unready
    assert [("sdk-receives", "amqp:decode-error garbage")] == [
        (one.kind, one.said) for one in snapshot.causes()
    ]
