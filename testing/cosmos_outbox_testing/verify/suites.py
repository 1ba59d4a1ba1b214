"""Suites: the contracts of the ports over the real services, in views of the run's own, with what bypasses the SDK and with the SDK alone."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product
from traceback import extract_tb
from typing import Any, NamedTuple

import pytest

from cosmos_outbox.adapters.cosmos import CosmosStore
from cosmos_outbox.adapters.servicebus import ServiceBusPublisher
from cosmos_outbox.partition_key import ON_PARTITION_KEY
from cosmos_outbox_testing.contracts import PublisherContract
from cosmos_outbox_testing.contracts.lease_store import LeaseStoreContract
from cosmos_outbox_testing.contracts.store import StoreContract
from cosmos_outbox_testing.verify.claims import NotRun
from cosmos_outbox_testing.verify.own_session import OwnSession
from cosmos_outbox_testing.verify.own_views import OwnLeases, OwnStore, OwnTopic
from cosmos_outbox_testing.verify.results import Cost, Held, Outcome, Tell
from cosmos_outbox_testing.verify.site import Site

AREA = "suites"
NAMES = ("store", "leases", "publisher", "publisher-sdk-only")
_TRIES, _PAUSE_SECONDS = 4, 3.0
_LANES = 3
# Their documents and messages could not be told from those of others, or live by what the caller need not have set.
_LEFT_OUT = {
    "test_a_document_is_gone_when_its_ttl_has_passed",
    "test_ids_may_have_128_characters_of_any_script",
}

Fixtures = Callable[[], AbstractAsyncContextManager[dict[str, Any]]]


def cost(seconds: float) -> Cost:
    """Return what the suites take."""
    touches = "documents of the data and lease containers and messages of the topic, of the run's own"
    return Cost(requests=2_500, request_units=12_000, seconds=150, touches=touches)


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Run the suites side by side."""
    if not __debug__:
        raise NotRun("The contract suites are made of assertions: start Python without -O.")
    suites = (
        _Suite("store", "G1", StoreContract, lambda: _store(site), _COMMITS),
        _Suite("leases", "G5", LeaseStoreContract, lambda: _leases(site), _LEASES),
        _Suite("publisher", "G3", PublisherContract, lambda: _topic(site, sdk_only=False), _SENDS),
        _Suite("publisher-sdk-only", "G3", PublisherContract, lambda: _topic(site, sdk_only=True), _BY_SDK),
    )

    async def one(suite: _Suite) -> Outcome:
        outcome = await _run_of(suite, site)
        tell(outcome)
        return outcome

    return list(await asyncio.gather(*(one(suite) for suite in suites if site.wants(AREA, suite.name))))


class _Suite(NamedTuple):
    name: str
    promise: str
    contract: type
    fixtures: Fixtures
    meaning: str


_COMMITS = "What the library takes for granted about commits and reads does not hold here: do not go on before it is explained."
_LEASES = "Two workers may hold one lease: run one worker only, before it is explained."
_SENDS = (
    "Messages may be lost, doubled or out of order: set OUTBOX_SDK_ONLY=true if `publisher-sdk-only` holds."
)
_BY_SDK = "Messages may be lost, doubled or out of order, although the SDK sends them."


async def _run_of(suite: _Suite, site: Site) -> Outcome:
    started = time.monotonic()
    failed, tests, left_out = [], 0, 0
    held = Held.HELD
    try:
        for label, function, arguments in tests_of(suite.contract()):
            why = await _tried(function, suite.fixtures, arguments)
            left_out += why is None
            tests += why is not None
            failed += [f"{label}: {site.without_secrets(why)}"] if why else []
        expected = f"{tests} tests pass, {left_out} need faults that no service has"
        held = Held.BROKEN if failed else Held.HELD
        found = f"{len(failed)} of {tests} fail: {'; '.join(failed)[:1_500]}" if failed else expected
    except NotRun as why_not:
        held, expected, found = Held.NOT_RUN, "", str(why_not)
    return Outcome(
        name=suite.name,
        area=AREA,
        held=held,
        statement=f"The contract of the port holds: {suite.contract.__doc__ or ''}".partition(": override")[
            0
        ],
        expected=expected,
        found=found,
        meaning=suite.meaning,
        promise=suite.promise,
        seconds=time.monotonic() - started,
    )


async def _tried(function: Any, fixtures: Fixtures, arguments: dict[str, Any]) -> str | None:
    """Return "" where a test passes, else why not; None where it is skipped. What passes by itself is tried again."""
    for number in range(_TRIES):
        try:
            async with fixtures() as given:
                asked = inspect.signature(function).parameters
                await function(**{name: value for name, value in given.items() if name in asked}, **arguments)
        except pytest.skip.Exception:
            return None
        except NotRun:
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever fails is the finding
            if getattr(error, "retriable", False) and number + 1 < _TRIES:  # as 429
                await asyncio.sleep(_PAUSE_SECONDS * (number + 1))
                continue
            where = extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} {error} at `{where.line}`"[:400]
        else:
            return ""
    return None


def tests_of(contract: object) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Return name, method and arguments of each test of a contract, as pytest would make them of its parameters."""
    for name, function in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if not name.startswith("test_") or name in _LEFT_OUT:
            continue
        marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        for number, chosen in enumerate(product(*(mark.args[1] for mark in marks))):
            arguments: dict[str, Any] = {}
            for mark, value in zip(marks, chosen, strict=True):
                names = [mark.args[0]] if isinstance(mark.args[0], str) else [*mark.args[0]]
                names = names[0].replace(" ", "").split(",") if len(names) == 1 else names
                values = getattr(value, "values", None)
                single = (value,) if len(names) == 1 else value
                arguments |= zip(names, single if values is None or callable(values) else values, strict=True)
            yield f"{name}[{number}]" if marks else name, function, arguments


@asynccontextmanager
async def _store(site: Site) -> AsyncIterator[dict[str, Any]]:
    if site.key_paths != ON_PARTITION_KEY:
        raise NotRun("The suite of stores needs a container that is partitioned on /partitionKey.")
    yield {"store": OwnStore(CosmosStore(site.data, site.key_paths), f"{site.name()}-")}


@asynccontextmanager
async def _leases(site: Site) -> AsyncIterator[dict[str, Any]]:
    yield {"leases": OwnLeases(site.connection.leases, f"{site.name()}-")}


@asynccontextmanager
async def _topic(site: Site, *, sdk_only: bool) -> AsyncIterator[dict[str, Any]]:
    bus = OwnSession(site).bus
    async with ServiceBusPublisher(bus, site.topic, lanes=_LANES, sdk_only=sdk_only) as publisher:
        yield {
            "backend": OwnTopic(bus, site.topic, site.sessions, publisher),
            "session": site.name(),
        }
