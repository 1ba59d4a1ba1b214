"""
The threads of blocking handlers: hanging threads do not block other calls, and do not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import Future, wait
from datetime import timedelta
from threading import Event, current_thread

import pytest

from cosmos_outbox.consumer import handler_threads
from cosmos_outbox.consumer.handler_threads import DaemonThreads
from cosmos_outbox.consumer.inbox import HandlerStuck, invoke
from cosmos_outbox.errors import HandlerTimeout
from tests.support.patience import HUNG_SECONDS


@pytest.fixture
def released() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def ends(*calls: Future[object]) -> None:
    assert not wait(calls, timeout=HUNG_SECONDS).not_done


def test_a_call_gets_a_thread_although_200_threads_hang(released: Event):
    executor = DaemonThreads()
    hanging = [executor.submit(released.wait) for _ in range(200)]
    assert executor.submit(current_thread).result(HUNG_SECONDS).daemon
    released.set()
    ends(*hanging)


def test_an_idle_thread_for_handlers_is_reused(monkeypatch: pytest.MonkeyPatch):
    """Calls that follow one another share a thread. A thread that gets no call for a while ends."""
    executor = DaemonThreads()
    used = [executor.submit(current_thread).result(HUNG_SECONDS) for _ in range(200)]
    assert len({*used}) < 100
    monkeypatch.setattr(handler_threads, "_IDLE_SECONDS", 0.001)
    last = DaemonThreads().submit(current_thread).result(HUNG_SECONDS)
    last.join(HUNG_SECONDS)
    assert not last.is_alive()


def test_the_shutdown_of_handler_threads_waits_a_limited_time_for_calls(
    released: Event, monkeypatch: pytest.MonkeyPatch
):
    executor = DaemonThreads()
    hanging = executor.submit(released.wait)
    monkeypatch.setattr(handler_threads, "_END_SECONDS", 0.01)
    executor.shutdown()
    assert hanging.running()
    monkeypatch.setattr(handler_threads, "_END_SECONDS", HUNG_SECONDS)
    released.set()
    executor.shutdown()
    assert hanging.done()


@pytest.mark.parametrize("lookup", [False, True])
async def test_a_handler_whose_thread_goes_on_after_its_timeout_is_reported_as_stuck(
    lookup: bool, released: Event, monkeypatch: pytest.MonkeyPatch
):
    """A handler whose thread only waits for a DNS lookup is not reported."""

    def hanging(*_: object, **__: object) -> None:
        released.wait()

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    monkeypatch.setattr(handler_threads, "_LOOKUPS", (hanging,))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonThreads())

    async def handler() -> None:
        await (loop.getaddrinfo("name", 80) if lookup else asyncio.to_thread(hanging))

    with pytest.raises(HandlerTimeout) as raised:
        await invoke(handler, of="invoicing", subject="t", within=timedelta(seconds=1))
    assert (HandlerTimeout if lookup else HandlerStuck) is raised.type
