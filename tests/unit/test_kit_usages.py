"""
Wrong usages of the test kit: each raises one sentence that says what the call takes and what it was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from cosmos_outbox.consumer import Consumer
from cosmos_outbox.testing import (
    Clock,
    OutboxHarness,
    assert_messages,
    crash_points,
    like,
    received_message,
)
from tests.support.orders import OrderPaid


async def scenario(harness: OutboxHarness) -> None: ...


def adapted(name: str, made: object) -> Any:
    harness: Any = OutboxHarness()
    harness.adapters[name] = made
    return harness.relay_all()


async def delivered(what: Any) -> None:
    OutboxHarness().deliver(Consumer("c"), what)


def given(store: Any) -> Any:
    return crash_points(given=store)(scenario)()


WRONG: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: OutboxHarness().consume_all("x"),
        "consume_all takes the consumer .*, a `Consumer`; 'x' is none",
    ),  # type: ignore[arg-type]
    (lambda: OutboxHarness().consume_all(Consumer), "consume_all takes .*; <class .*> is none"),  # type: ignore[arg-type]
    (lambda: OutboxHarness().release([5]), r"release takes a partition key.*; \[5\] is none"),  # type: ignore[arg-type]
    (lambda: OutboxHarness(container="x"), "everything in memory, this in a MemoryContainer; 'x' is none"),  # type: ignore[arg-type]
    (
        lambda: adapted("publsher", lambda port: port),
        "publisher, parked, subscription; 'publsher': .* is none",
    ),
    (lambda: adapted("publisher", 5), "functions of a port by .*; 'publisher': 5 is none"),
    (lambda: assert_messages("x"), "takes messages as `relay_all` returns them, .*; 'x' is none"),  # type: ignore[arg-type]
    (lambda: assert_messages(None, OrderPaid()), "takes messages .*; None is none"),  # type: ignore[arg-type]
    (lambda: received_message("x"), "received_message takes an event or a message; 'x' is none"),  # type: ignore[arg-type]
    (lambda: like(OrderPaid), "like takes an event, such as .*; <class .*> is none"),  # type: ignore[arg-type]
    (lambda: Clock().advance("x"), "advance takes a timedelta, or a number of seconds; 'x' is none"),  # type: ignore[arg-type]
    (lambda: delivered("x"), "deliver takes an event or a message; 'x' is none"),
    (lambda: crash_points(5), "an `async def` with a parameter `harness`; 5 is none"),  # type: ignore[call-overload]
    (lambda: given(5), "`given` takes an async function of a harness, .*; 5 is none"),
    (lambda: given(lambda harness: None), "`given` takes an async function .* returned None, without a wait"),
]


@pytest.mark.parametrize(("use", "said"), WRONG, ids=[said for _, said in WRONG])
async def test_a_wrong_argument_is_refused_in_one_sentence(use: Callable[[], Any], said: str):
    async def used() -> None:
        if inspect.isawaitable(answer := use()):
            await answer

    with pytest.raises(TypeError, match=said):
        await used()
