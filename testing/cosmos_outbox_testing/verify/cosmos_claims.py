"""
The probes of `cosmos_claims.toml`, which test what Cosmos DB answers.

The probes use only Microsoft's SDK, except those about the library's own change feed reader.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from math import ceil, inf
from typing import Any

from aiohttp import ClientSession
from azure.core import MatchConditions

from cosmos_outbox.adapters.cosmos import CosmosChangeFeed, account_of
from cosmos_outbox.errors import RangeGone
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox_testing.verify.claims import NotHere, NotRun, ask_all, claims_in
from cosmos_outbox_testing.verify.results import Cost, Outcome, Tell
from cosmos_outbox_testing.verify.site import TTL_SECONDS, Site

AREA = "cosmos"
_MEGABYTE, _TRIES = 1024 * 1024, 20
_MOST_PAGES, _PAGE_SECONDS = 1_000, 15
_OLD_ETAG: dict[str, Any] = {"etag": '"old"', "match_condition": MatchConditions.IfNotModified}


def cost(seconds: float) -> Cost:
    """Return what testing all claims about Cosmos DB costs, which `verify --dry-run` prints."""
    touches = "documents in the data container, under partition keys of the run"
    return Cost(requests=250, request_units=2_500, seconds=30, touches=touches)


async def _batch(site: Site, name: str, operations: list[Any], **options: Any) -> str:
    async def send() -> Any:
        # Copy the operations for each attempt: the SDK removes the etag from the dictionaries that it gets, so a retry would lack it.
        fresh = [(kind, arguments, *map(dict, conditions)) for kind, arguments, *conditions in operations]
        return await site.data.execute_item_batch(fresh, site.sdk_key(name), **options)

    said, error = await site.answer_of(send)
    index = getattr(error, "error_index", None)
    return said if said == "ok" or index is None else f"{said} at {index}"


def _creates(*documents: dict[str, Any]) -> list[Any]:
    return [("create", (document,)) for document in documents]


async def _create(site: Site, document: dict[str, Any]) -> str:
    return await site.answer(partial(site.data.create_item, document))


async def _read(site: Site, document: Mapping[str, Any], name: str, **options: Any) -> str:
    return await site.answer(partial(site.data.read_item, document["id"], site.sdk_key(name), **options))


async def _query(site: Site, name: str) -> list[dict[str, Any]]:
    return await site.all_of(
        lambda: site.data.query_items("SELECT * FROM c", partition_key=site.sdk_key(name))
    )


async def _changes(site: Site, name: str, start: Any = "Beginning") -> list[dict[str, Any]]:
    pages = count(1)

    def turn(*_: object) -> None:
        # If Cosmos DB returned no position, the SDK would ask for the same page for ever.
        if next(pages) > _MOST_PAGES:
            raise RuntimeError(f"The change feed did not end: the SDK read {_MOST_PAGES} pages of it.")

    options: Any = {"partition_key": site.sdk_key(name), "start_time": start, "response_hook": turn}
    return await site.all_of(lambda: site.data.query_items_change_feed(**options))


async def batch_atomic(site: Site) -> str:
    name = site.name()
    first, taken = site.document(name), site.document(name)
    await site.must(partial(site.data.create_item, taken))
    said = await _batch(site, name, _creates(first, taken))
    return f"{said}, then {(await _read(site, first, name)).partition('/')[0]}"


async def batch_other_key(site: Site) -> str:
    name, other = site.name(), site.name()
    said = await _batch(site, name, _creates(site.document(name), site.document(other)))
    stored = len(await _query(site, name)) + len(await _query(site, other))
    return f"{said}, {stored} of 2 stored"


async def batch_of_101(site: Site) -> str:
    name = site.name()
    said = await _batch(site, name, _creates(*(site.document(name) for _ in range(101))))
    return f"{said.partition(' ')[0]}, {len(await _query(site, name))} stored"


async def lost_answer(site: Site) -> str:
    name = site.name()
    entity, event = site.document(name), site.document(name, type="verifyEvent")

    def lose(*_: object) -> None:
        raise ConnectionError("This probe drops the answer on purpose.")

    with suppress(ConnectionError):
        await _batch(site, name, _creates(entity, event), response_hook=lose)
    again = await _batch(site, name, _creates(entity, event))
    read = await _read(site, event, name)
    return f"{again}, the event is {'read' if read == 'ok' else read}"


async def read_own_write(site: Site) -> str:
    name, seen = site.name(), 0
    for _ in range(20):
        document, token = site.document(name), ""

        def note(headers: Mapping[str, str], _: object) -> None:
            nonlocal token
            token = headers.get("x-ms-session-token", "")

        await _batch(site, name, _creates(document), response_hook=note)
        seen += await _read(site, document, name, session_token=token) == "ok"
    return f"{seen} of 20"


async def read_newest(site: Site) -> str:
    seen = 0
    for _ in range(20):
        document = site.document(name := site.name())
        await site.must(partial(site.data.create_item, document))
        seen += await _batch(site, name, [("read", (document["id"],))]) == "ok"
    return f"{seen} of 20"


async def conflict(site: Site) -> str:
    name = site.name()
    document = site.document(name)
    await site.must(partial(site.data.create_item, document))
    alone = await _create(site, document)
    return f"{alone}, in a batch {await _batch(site, name, _creates(document))}"


async def precondition(site: Site) -> str:
    name = site.name()
    document = site.document(name)
    await site.must(partial(site.data.create_item, document))
    replaced = await site.answer(partial(site.data.replace_item, document["id"], document, **_OLD_ETAG))
    deleted = await site.answer(
        partial(site.data.delete_item, document["id"], site.sdk_key(name), **_OLD_ETAG)
    )
    operation = ("replace", (document["id"], document), {"if_match_etag": _OLD_ETAG["etag"]})
    return f"{replaced}, {deleted}, in a batch {await _batch(site, name, [operation])}"


async def not_found(site: Site) -> str:
    name = site.name()
    return await _read(site, site.document(name), name)


async def one_lsn(site: Site) -> str:
    name = site.name()
    batches = [[site.document(name) for _ in range(3)] for _ in range(2)]
    for batch in batches:
        await site.must(partial(site.data.execute_item_batch, _creates(*batch), site.sdk_key(name)))
    lsns = {item["id"]: int(item["_lsn"]) for item in await _changes(site, name)}
    first, second = ({lsns[document["id"]] for document in batch} for batch in batches)
    higher = "higher" if min(second) > max(first) else "not higher"
    return f"{len(first)} _lsn, then {len(second)} {higher}"


async def feed_order(site: Site) -> str:
    name = site.name()
    documents = [site.document(name) for _ in range(20)]
    for document in documents:
        await site.must(partial(site.data.create_item, document))
    seen = [item["id"] for item in await _changes(site, name)]
    return "in order" if seen == [one["id"] for one in documents] else "another order"


async def _range_of(site: Site, name: str) -> FeedRange:
    feed = site.connection.feed
    place = (await retry_reads(partial(feed.range_of, site.key(name)), RetryOptions())).min
    ranges = await retry_reads(feed.physical_ranges, RetryOptions())
    return next(one for one in ranges if one.min <= place < one.max)


async def _after(site: Site, where: FeedRange, position: str | None) -> tuple[str, list[str]]:
    """Read the change feed of a range to its end. Return the position of the end, and the ids of this run's documents that were read."""
    feed, ids = site.connection.feed, []
    rid = (await retry_reads(feed.describe, RetryOptions())).container_rid
    options: Any = {"container_rid": rid, "start": StartFrom.NOW, "max_items": 100}
    for _ in range(_MOST_PAGES):
        read = partial(feed.read_page, where, continuation=position, **options)
        async with asyncio.timeout(_PAGE_SECONDS):
            page = await retry_reads(read, RetryOptions())
        ids += [item["id"] for item in page.documents if site.run in item["id"]]
        position = page.continuation
        if not page.documents and not page.skipped:
            return position, ids
    raise NotRun(
        "Other programs keep writing to the data container: name a container that nothing else uses."
    )


async def feed_position(site: Site) -> str:
    name = site.name()
    where = await _range_of(site, name)
    start, _ = await _after(site, where, None)
    await site.must(partial(site.data.create_item, site.document(name)))
    then, seen = await _after(site, where, start)
    _, again = await _after(site, where, then)
    return f"a position, {len(seen)} document, {len(again)} documents"


async def lean_poll(site: Site) -> str:
    account = account_of(site.client)
    polls = account.polls()
    feed = CosmosChangeFeed(site.data, account_host=account.host, polls=polls)
    rid = (await retry_reads(feed.describe, RetryOptions())).container_rid
    where = await _range_of(site, site.name())
    position, _ = await _after(site, where, None)
    options: Any = {"container_rid": rid, "start": StartFrom.NOW, "max_items": 100}
    page = await retry_reads(partial(feed.read_page, where, continuation=position, **options), RetryOptions())
    for _ in range(_TRIES):
        if await polls.nothing_new((rid, where), page.continuation, session_token="") is not None:
            return "304 with the same etag"
        await asyncio.sleep(0.5)
    return "another answer"


async def modified_since(site: Site) -> str:
    name = site.name()
    first = await site.must(partial(site.data.create_item, site.document(name)))
    second = first
    while second["_ts"] == first["_ts"]:
        await asyncio.sleep(0.2)
        second = await site.must(
            partial(site.data.create_item, second | {"id": site.name(), "ttl": TTL_SECONDS})
        )
    seen = {item["id"] for item in await _changes(site, name, datetime.fromtimestamp(first["_ts"], UTC))}
    of_it = "also" if first["id"] in seen else "not"
    return f"{of_it} of that second, {int(second['id'] in seen)} after it"


async def expiry(site: Site) -> str:
    name = site.name()
    document = site.document(name, ttl=1)
    await site.must(partial(site.data.create_item, document))
    for _ in range(60):
        await asyncio.sleep(0.5)
        if (said := await _read(site, document, name)) != "ok":
            break
    return f"{said.partition('/')[0]}, {len(await _changes(site, name))} changes"


async def too_large(site: Site) -> str:
    name = site.name()
    document = site.document(name, text="x" * (2 * _MEGABYTE + 1000))
    alone = await _create(site, document)
    return f"{alone}, in a batch {(await _batch(site, name, _creates(document))).partition(' ')[0]}"


async def large_batch(site: Site) -> str:
    name = site.name()
    said = await _batch(
        site, name, _creates(*(site.document(name, text="x" * (_MEGABYTE * 3 // 4)) for _ in "abc"))
    )
    return f"{said.partition(' ')[0]}, {len(await _query(site, name))} stored"


async def deep_item(site: Site) -> str:
    answers = []
    for levels in (128, 129):
        deep: dict[str, Any] = {}
        for _ in range(levels - 2):
            deep = {"d": deep}
        answers.append(await _create(site, site.document(site.name(), deep=deep)))
    return ", ".join(answers)


async def ids(site: Site) -> str:
    answers = []
    for kind, end in (("space", " "), ("tab", "\t"), ("line end", "\n"), ("escape", "%20x")):
        name = site.name()
        document = site.document(name, name + end)
        # Create the document in a batch. `create_item` of the SDK refuses such an id itself, so Cosmos DB would never see it.
        created = await _batch(site, name, _creates(document))
        read = partial(site.data.read_item, document["id"], site.sdk_key(name))
        said, item = await site.answer_of(read)
        answers.append(
            f"{kind}: {created}, {said if said != 'ok' or item['id'] == document['id'] else 'another id'}"
        )
    return "; ".join(answers)


async def ids_refused(site: Site) -> str:
    name = site.name()
    return (await _batch(site, name, _creates(site.document(name, f"{name}/x")))).partition(" ")[0]


async def whole_numbers(site: Site) -> str:
    name = site.name()
    document = site.document(name, large=2**53 + 1, negative=1 - 2**63)
    await site.must(partial(site.data.create_item, document))
    item = await site.must(partial(site.data.read_item, document["id"], site.sdk_key(name)))
    return f"{item['large']}, {item['negative']}"


async def long_keys(site: Site) -> str:
    name, length = site.name(), 2047 // len(site.key_paths.levels)
    names = [name.ljust(length - 1, "x") + last for last in "ab"]
    answers = [await _create(site, site.document(one, name)) for one in names]
    counts = {len(await _query(site, one)) for one in names}
    return f"{', '.join(answers)}, {'/'.join(map(str, sorted(counts)))} document each"


async def upsert_if_match(site: Site) -> str:
    return await site.answer(partial(site.data.upsert_item, site.document(site.name()), **_OLD_ETAG))


async def query_of_key(site: Site) -> str:
    name = site.name()
    documents = [site.document(name), site.document(name), site.document(site.name())]
    for document in documents:
        await site.must(partial(site.data.create_item, document))
    found = [item["id"] for item in await _query(site, name)]
    return f"{sum(document['id'] in found for document in documents[:2])} of {len(found)}"


async def query_without_from(site: Site) -> str:
    return f"{len(await site.all_of(lambda: site.data.query_items('SELECT VALUE 1')))} row"


async def throughput_bucket(site: Site) -> str:
    name = site.name()
    return await _read(site, site.document(name), name, throughput_bucket=6)


async def full_feed(site: Site) -> str:
    async def read() -> None:
        async for _ in site.data.query_items_change_feed(mode="AllVersionsAndDeletes"):
            break

    said, error = await site.answer_of(read)
    words = all(part in str(error) for part in ("All Versions and Deletes", "must be enabled"))
    return f"{said.partition('/')[0]}, {'All Versions and Deletes must be enabled' if words else 'in other words'}"


async def uncompressed(site: Site) -> str:
    name, encodings = site.name(), set()
    document = site.document(name, text="x" * 10_000)
    await site.must(partial(site.data.create_item, document))

    def note(headers: Mapping[str, str], _: object) -> None:
        encodings.add({key.lower(): value for key, value in headers.items()}.get("content-encoding"))

    await _read(site, document, name, response_hook=note)
    return " ".join(one or "no Content-Encoding" for one in encodings)


async def charges(site: Site) -> str:
    name, unnamed = site.name(), 0
    document = site.document(name)

    def note(headers: Mapping[str, str], _: object) -> None:
        nonlocal unnamed
        unnamed += "x-ms-request-charge" not in {key.lower() for key in headers}

    await _batch(site, name, _creates(document), response_hook=note)
    await _read(site, document, name, response_hook=note)
    return f"{unnamed} of 2 answers without"


async def near(site: Site) -> str:
    name, fastest = site.name(), inf
    for _ in range(10):
        started = time.monotonic()
        await _read(site, site.document(name), name)
        fastest = min(fastest, time.monotonic() - started)
    return f"less than {max(100, ceil(fastest * 10) * 100)} ms"


async def split(site: Site) -> str:
    feed, control = site.connection.feed, os.environ.get("EMULATORS_CONTROL")
    if control is None or account_of(site.client).host not in ("127.0.0.1", "localhost"):
        raise NotHere("A split can be forced only on the emulators, and only if EMULATORS_CONTROL is set.")
    where = await _range_of(site, site.name())
    position, _ = await _after(site, where, None)
    written: list[str] = []
    while len(written) < _TRIES:
        if await _range_of(site, name := site.name()) == where:
            document = await site.must(partial(site.data.create_item, site.document(name)))
            written.append(document["id"])
    settings = site.connection.settings
    half = {"database": settings.cosmos_database, "container": settings.cosmos_container}
    half["range"] = await feed.partition_id(where)
    async with ClientSession() as session, session.post(f"{control}/cosmos/split", json=half) as answer:
        answer.raise_for_status()
    try:
        await _after(site, where, position)
        gone = "not gone"
    except RangeGone:
        gone = "gone"
    seen: list[str] = []
    for one in await retry_reads(feed.physical_ranges, RetryOptions()):
        if where.min <= one.min < where.max:
            seen += (await _after(site, one, position))[1]
    return f"{gone}, {len({*seen} & {*written})} of {len(seen)} once"


async def throttled(site: Site) -> str:
    return f"{site.throttled} requests with 429"


CLAIMS = claims_in(__file__, AREA, globals(), lambda site: site)
NAMES = [one.name for one in CLAIMS]


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Test all claims about Cosmos DB except "throttled" (no request is refused with 429), which is judged at the end of the run."""
    return await ask_all([one for one in CLAIMS if one.name != "throttled"], site, tell)


async def judge_throttling(site: Site, tell: Tell) -> list[Outcome]:
    """Test the claim "throttled", which says that the account refused no request with 429. Do this after all parts of the run."""
    return await ask_all([one for one in CLAIMS if one.name == "throttled"], site, tell)
