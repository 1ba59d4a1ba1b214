"""
Threads that share a blocking outbox, in a script and in a threaded WSGI server, on memory and through the vendor SDK.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from cosmos_outbox import DomainEvent, Entity, Outbox, correlated
from cosmos_outbox.blocking import BlockingOutbox, BlockingUnitOfWork
from tests.support.backends import BACKENDS, opened

pytestmark = pytest.mark.looptime(False)

THREADS, ROUNDS = 8, 5


class Counted(DomainEvent):
    count: int


class Counter(Entity):
    count: int = 0

    def increment(self) -> None:
        self.count += 1
        self.record(Counted(count=self.count))


@pytest.fixture(params=BACKENDS)
def outbox(request: pytest.FixtureRequest) -> Iterator[BlockingOutbox]:
    @asynccontextmanager
    async def open_outbox() -> AsyncIterator[Outbox]:
        async with opened(request.param) as container:
            yield Outbox(container.store)

    with BlockingOutbox(open_outbox) as outbox:
        outbox.run(lambda uow: uow.repository(Counter).create(Counter(id="c")))
        yield outbox


def increment(uow: BlockingUnitOfWork) -> Counter:
    counter = uow.repository(Counter).read("c")
    counter.increment()
    return counter


def stored_counter(outbox: BlockingOutbox) -> Counter:
    with outbox.unit_of_work() as uow:
        return uow.repository(Counter).read("c")


class ThreadingServer(ThreadingMixIn, WSGIServer):
    """A thread for each request, as in Flask's own server."""


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing of each request."""


@contextmanager
def serving(app: Callable[..., Iterable[bytes]]) -> Iterator[str]:
    with make_server("127.0.0.1", 0, app, server_class=ThreadingServer, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_concurrent_requests_of_a_threaded_wsgi_server_each_commit_once(outbox: BlockingOutbox):
    seen = []

    def app(environ: Mapping[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        seen.append(threading.current_thread())
        with correlated(correlation_id=environ["HTTP_X_REQUEST_ID"]):
            counter = outbox.run(increment, attempts=100)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [counter.model_dump_json().encode()]

    with serving(app) as address, ThreadPoolExecutor(THREADS) as clients:

        def post(number: int) -> int:
            request = urllib.request.Request(address, method="POST", headers={"X-Request-Id": str(number)})  # noqa: S310
            with urllib.request.urlopen(request) as response:  # noqa: S310 - our own server
                return json.load(response)["count"]

        counts = list(clients.map(post, range(THREADS * ROUNDS)))

    assert [*range(1, THREADS * ROUNDS + 1)] == sorted(counts)
    assert THREADS * ROUNDS == len(set(seen)) == stored_counter(outbox).count
