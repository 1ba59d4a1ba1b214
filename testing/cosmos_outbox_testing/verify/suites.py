"""
The part "suites" of `cosmos-outbox verify`: run the contract tests of the ports against the real services.

Each test sees only its own documents and messages. Where the library can work without the SDK (to read a change feed, to send or to
receive), the tests run twice: without the SDK and with it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count, product
from traceback import extract_tb
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from cosmos_outbox.adapters.cosmos import CosmosChangeFeed, CosmosStore, account_of
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.adapters.servicebus import ServiceBusPublisher, ServiceBusSubscription
from cosmos_outbox.partition_key import ON_PARTITION_KEY
from cosmos_outbox.ports import StartFrom
from cosmos_outbox_testing.contracts import PublisherContract, SubscriptionContract
from cosmos_outbox_testing.contracts.change_feed import ChangeFeedContract
from cosmos_outbox_testing.contracts.lease_store import LeaseStoreContract
from cosmos_outbox_testing.contracts.parked_store import ParkedStoreContract
from cosmos_outbox_testing.contracts.store import StoreContract
from cosmos_outbox_testing.verify.claims import NotHere, NotRun, denial_of, is_excused
from cosmos_outbox_testing.verify.own_session import OwnSession
from cosmos_outbox_testing.verify.own_subscription import opener_for
from cosmos_outbox_testing.verify.own_views import OwnFeed, OwnLeases, OwnParked, OwnStore, OwnTopic
from cosmos_outbox_testing.verify.results import Cost, Held, Outcome, Tell
from cosmos_outbox_testing.verify.site import OWN_METER, Meter, Site

AREA = "suites"
NAMES = (
    *("store", "leases", "parked", "publisher", "publisher-sdk-only"),
    *("change-feed", "change-feed-sdk-only", "subscription", "subscription-sdk-only"),
)
_TRIES, _PAUSE_SECONDS = 4, 3.0
_LONGEST_SECONDS = 120.0  # the time limit of a test
_LANES = 3
_KEYS_OF_FEEDS = ("k", *(f"key-{number}" for number in range(40)))
_PARAMETERS = type(pytest.param())
# The contract tests that `verify` leaves out. They would mix their documents or messages with those of other tests. Or they need ranges or
# settings that the containers and the topic of the user may not have.
_LEFT_OUT = {
    "test_ranges_cover_every_key_once_and_have_different_ids",
    "test_a_part_of_a_physical_range_can_be_read",
    "test_the_latest_lsn_shows_that_a_saved_position_is_beyond_the_feed",
    "test_a_document_is_gone_when_its_ttl_has_passed",
    "test_ids_may_have_128_characters_of_any_script",
}

Fixtures = Callable[[], AbstractAsyncContextManager[dict[str, Any]]]


def cost(seconds: float) -> Cost:
    """Return what the contract tests cost, which `verify --dry-run` prints."""
    touches = "documents of the run in all containers, and messages of the run in the topic"
    return Cost(requests=6_000, request_units=25_000, seconds=300, touches=touches)


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Run the suites that `--only` asks for, several at the same time. Return an outcome for each suite."""
    if not __debug__:
        raise NotRun("The contract suites need assertions: start Python without -O.")
    together = (
        _Suite("store", "G1", StoreContract, lambda: _store(site), _COMMITS),
        _Suite("leases", "G5", LeaseStoreContract, lambda: _leases(site), _LEASES),
        _Suite("parked", "G2", ParkedStoreContract, lambda: _open_parked(site), _PARKED),
        _Suite("publisher", "G3", PublisherContract, lambda: _topic(site, sdk_only=False), _SENDS),
        _Suite("publisher-sdk-only", "G3", PublisherContract, lambda: _topic(site, sdk_only=True), _BY_SDK),
    )
    # Run these suites after the others: each of their tests reads all changes of the container, or all sessions of the subscription.
    feeds = (
        _Suite("change-feed", "G2", ChangeFeedContract, lambda: _feed(site, sdk_only=False), _POLLS),
        _Suite(
            "change-feed-sdk-only", "G2", ChangeFeedContract, lambda: _feed(site, sdk_only=True), _COMMITS
        ),
    )
    receives = SubscriptionContract, lambda: _sessions(site, sdk_only=False), _RECEIVES
    by_sdk = SubscriptionContract, lambda: _sessions(site, sdk_only=True), _BY_SDK
    subscriptions = _Suite("subscription", "I2", *receives), _Suite("subscription-sdk-only", "I2", *by_sdk)

    async def in_turn(*suites: _Suite) -> list[Outcome]:
        found = []
        for suite in suites:
            if site.wants(AREA, suite.name):
                found.append(outcome := await _run_of(suite, site))
                tell(outcome)
        return found

    ran = await asyncio.gather(*map(in_turn, together))
    ran += await asyncio.gather(in_turn(*feeds), in_turn(*subscriptions))
    return [outcome for some in ran for outcome in some]


class _Suite(NamedTuple):
    name: str
    promise: str
    contract: type
    fixtures: Fixtures
    meaning: str


_COMMITS = "Commits and reads do not work on this account as the library expects. Do not use the outbox until this is explained."
_LEASES = "Two workers may own the same lease. Run only one worker until this is explained."
_SENDS = (
    "Messages may be lost, doubled or out of order. If `publisher-sdk-only` holds, set OUTBOX_SDK_ONLY=true."
)
_BY_SDK = "Messages may be lost, doubled or out of order, although the SDK sends and receives them."
_PARKED = "Events of a parked key may be lost, or released in the wrong order. Do not use the outbox until this is explained."
_POLLS = "Events may be left out, sent twice, or out of order. If `change-feed-sdk-only` holds, set OUTBOX_SDK_ONLY=true."
_RECEIVES = "The lean receiver does not work with this namespace. If `subscription-sdk-only` holds, leave OUTBOX_RECEIVER at sdk."


async def _run_of(suite: _Suite, site: Site) -> Outcome:
    started = time.monotonic()
    OWN_METER.set(meter := Meter())
    failed, tests, left_out = [], 0, Counter[str]()
    excused = False
    try:
        for label, function, arguments in tests_of(suite.contract()):
            try:
                why = await _try_test(function, suite.fixtures, arguments)
            except pytest.skip.Exception as skipped:
                left_out[str(skipped)] += 1
                continue
            tests += 1
            failed += [f"{label}: {site.without_secrets(why)}"] if why else []
        held = Held.BROKEN if failed else Held.HELD
        found = f"{len(failed)} of {tests} fail: {'; '.join(failed)[:1_500]}" if failed else f"{tests} pass"
        found += "".join(f"; {number} skipped: {reason}" for reason, number in left_out.items())
    except NotRun as why_not:
        held, found = Held.BROKEN if failed else Held.NOT_RUN, "; ".join([*failed, str(why_not)])[:1_500]
        excused = is_excused(why_not, site, AREA, suite.name)
    return Outcome(
        name=suite.name,
        area=AREA,
        held=held,
        statement=f"All contract tests pass: {(suite.contract.__doc__ or '').strip()}".partition(
            ". Override"
        )[0],
        expected="each test that can be run here passes",
        found=found,
        meaning="" if held is Held.NOT_RUN else suite.meaning,
        promise=suite.promise,
        excused=excused,
        seconds=time.monotonic() - started,
        request_units=meter.request_units,
    )


async def _try_test(function: Any, fixtures: Fixtures, arguments: dict[str, Any]) -> str:
    """
    Run a test. Return an empty text if it passes, and the reason if it fails. After an error that a retry may mend, such as 429, try
    again.
    """
    for number in range(_TRIES):
        try:
            async with asyncio.timeout(_LONGEST_SECONDS), fixtures() as given:
                asked = inspect.signature(function).parameters
                await function(**{name: value for name, value in given.items() if name in asked}, **arguments)
        except NotRun:
            raise
        except (Exception, pytest.fail.Exception) as error:
            if denied := denial_of(error):
                raise NotRun(denied) from error
            # Try again after an error such as 429, which says that the service is busy.
            if getattr(error, "retriable", False) and number + 1 < _TRIES:
                await asyncio.sleep(_PAUSE_SECONDS * (number + 1))
                continue
            where = extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} {error} at `{where.line}`"[:400]
        else:
            break
    return ""


def tests_of(contract: object) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """
    Return the name, method and arguments of each test of a contract (a test class for a port). A parametrized test is returned once for
    each combination of its parameters, as pytest would run it.
    """
    for name, function in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if not name.startswith("test_") or name in _LEFT_OUT:
            continue
        marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        for number, chosen in enumerate(product(*(mark.args[1] for mark in marks))):
            arguments: dict[str, Any] = {}
            for mark, value in zip(marks, chosen, strict=True):
                names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
                values = value.values if isinstance(value, _PARAMETERS) else (value,)
                arguments |= zip(names, values, strict=True)
            yield f"{name}[{number}]" if marks else name, function, arguments


@asynccontextmanager
async def _store(site: Site) -> AsyncIterator[dict[str, Any]]:
    yield {"store": OwnStore(_data_of(site), f"{site.name()}-")}


def _data_of(site: Site) -> CosmosStore:
    if site.key_paths != ON_PARTITION_KEY:
        raise NotRun("This suite needs a data container that is partitioned on /partitionKey.")
    return CosmosStore(site.data, site.key_paths)


@asynccontextmanager
async def _open_parked(site: Site) -> AsyncIterator[dict[str, Any]]:
    if site.parked is None:
        raise NotRun("No container for parked keys is named: set OUTBOX_PARKED_CONTAINER.")
    yield {"store": OwnParked(CosmosParked(site.parked), f"{site.name()}-")}


@asynccontextmanager
async def _feed(site: Site, *, sdk_only: bool) -> AsyncIterator[dict[str, Any]]:
    store, name = _data_of(site), f"{site.name()}-"
    feed = site.connection.feed
    if sdk_only:
        feed = CosmosChangeFeed(site.data, account_host=account_of(site.client).host)
    rid = (await feed.describe()).container_rid
    options: Any = {"container_rid": rid, "start": StartFrom.NOW, "max_items": 1, "continuation": None}
    begins = {
        one: (await feed.read_page(one, **options)).continuation for one in await feed.physical_ranges()
    }
    first = next(iter(begins))
    keys = {}
    for key in _KEYS_OF_FEEDS:  # append a number to each key so that the key is in the first range
        for number in count():
            keys[key] = f"{key}-{number}"
            if first.min <= (await feed.range_of(name + keys[key])).min < first.max:
                break
    part, whole = (
        SimpleNamespace(
            store=OwnStore(store, name, own_keys), feed=OwnFeed(feed, name, own), split=None, recreate=None
        )
        for own_keys, own in ((keys, {first: begins[first]}), ({}, begins))
    )
    yield {"container": part, "wide": whole}


@asynccontextmanager
async def _leases(site: Site) -> AsyncIterator[dict[str, Any]]:
    yield {"leases": OwnLeases(site.connection.leases, f"{site.name()}-")}


@asynccontextmanager
async def _topic(site: Site, *, sdk_only: bool) -> AsyncIterator[dict[str, Any]]:
    own = OwnSession(site)
    async with ServiceBusPublisher(own.bus, site.topic, lanes=_LANES, sdk_only=sdk_only) as publisher:
        yield {"backend": OwnTopic(own.bus, site.topic, site.sessions, publisher), "session": own.id}


@asynccontextmanager
async def _sessions(site: Site, *, sdk_only: bool) -> AsyncIterator[dict[str, Any]]:
    if sdk_only:
        # Skip the tests that wait until a lock ends. The probes in `service_bus_claims.py` already test the end of locks with the SDK.
        yield {"opened": opener_for(site, ServiceBusSubscription, waits=False)}
        return
    if not site.lean:
        raise NotHere(
            "To test the lean receiver, install the extra `amqp`, and set neither OUTBOX_SDK_ONLY nor WebSockets."
        )
    from cosmos_outbox_amqp import AmqpSubscription  # noqa: PLC0415 - an extra

    yield {"opened": opener_for(site, AmqpSubscription, waits=True)}
