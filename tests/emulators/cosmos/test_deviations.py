"""
Tests that each deviation of the Cosmos DB emulator changes one answer, and that the answer is Azure's again afterwards.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosmos_outbox_emulators.active_deviation import Deviating
from cosmos_outbox_emulators.cosmos import hybrid_row
from cosmos_outbox_emulators.cosmos.deviations import DEVIATIONS
from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.emulators.cosmos.driver import Driver, documents, put, substatus

NUMBERS = {"Create": 0, "Replace": 5}  # how the SDK for .NET numbers operations in its binary rows


class Deviated(Driver):
    """A driver whose requests go through the server, because deviations take effect only there."""

    def __init__(self) -> None:
        super().__init__()
        self.server = CosmosServer(self.account)
        self.true, self.gateway = self.gateway, self  # type: ignore[assignment]
        self.deviating = Deviating(self.server, DEVIATIONS)

    def answer(self, request: Request) -> Reply:
        try:
            return self.server.answer(request, self.true.admit(request))
        except CosmosError as error:
            return self.true.refuse(request, error)


def batch(of: Deviated, *operations: object) -> list[int]:
    reply = of.batch("k", list(operations))
    return [one["statusCode"] for one in json.loads(reply.body)] if reply.status < 300 else [reply.status]


def in_rows(of: Deviated, *operations: dict[str, Any]) -> list[hybrid_row.Row]:
    """Send a batch in the binary rows of the SDK for .NET, and return the rows of the result."""
    given = [{**one, "resourceType": 2, "operationType": NUMBERS[one["operationType"]]} for one in operations]
    encoded = [{**one, "resourceBody": json.dumps(one["resourceBody"]).encode()} for one in given]
    reply = of.batch("k", hybrid_row.write(hybrid_row.OPERATION, encoded))
    return hybrid_row.read(hybrid_row.RESULT, reply.body)


def of_dotnet(of: Deviated) -> object:
    """
    Return what a .NET client sees: the results of a batch that fails, the status of a read of the item that this batch would have
    created, and whether the result of a successful batch has a request charge.
    """
    failed = {**put("Replace", "none"), "id": "c", "ifMatch": '"old"'}
    of.upsert("k", "c")
    rows = in_rows(of, put("Create", "a"), failed)
    kept = of.item("GET", "k", "a").status
    (written,) = in_rows(of, put("Create", "b"))
    assert "b" == json.loads(written["resourceBody"])["id"]
    return [row["statusCode"] for row in rows], kept, "requestCharge" in written


def half(of: Deviated) -> object:
    batch(of, put("Create", "a"), put("Create", "b"), put("Replace", "none"))
    return of.item("GET", "k", "a").status


def large(of: Deviated) -> object:
    text = "x" * 1_000_000
    return batch(of, *(put("Create", name, text=text) for name in "abc")), of.item("GET", "k", "c").status


def created_twice(of: Deviated) -> object:
    twice = [of.item("POST", "k", None, {"id": "a", "pk": "k"}).status for _ in range(2)]
    return twice, batch(of, put("Create", "a"))


def conditional(of: Deviated) -> object:
    of.upsert("k", "a")
    stale = of.item("PUT", "k", "a", {"id": "a", "pk": "k"}, if_match='"old"').status
    return stale, batch(of, {**put("Replace", "a"), "id": "a", "ifMatch": '"old"'})


def number(of: Deviated) -> object:
    of.upsert("k", "a", n=2**53 + 1)
    return json.loads(of.item("GET", "k", "a").body)["n"] - 2**53


def spaced(of: Deviated) -> object:
    of.upsert("k", "a ")
    return json.loads(of.item("GET", "k", "a ").body)["id"]


def escaped(of: Deviated) -> object:
    return of.upsert("k", "a%20").status, of.item("GET", "k", "a%20").status


def long_key(of: Deviated) -> object:
    return of.upsert("k" * 2047, "a").status, of.upsert("k" * 1000, "a").status


def expired(of: Deviated) -> object:
    of.upsert("k", "a", ttl=5)
    of.clock.now += 6
    return of.item("GET", "k", "a").status


def administered(of: Deviated) -> object:
    return tuple(
        of.send(*request).status
        for request in (("POST", "/dbs", {"id": "e"}), ("GET", "/offers"), ("GET", "/dbs/d/colls/c"))
    )


def feed(of: Deviated) -> object:
    batch(of, put("Create", "a"), put("Create", "b"))
    reply = of.changes("0")
    changed = documents(reply)
    assert str(len(changed)) == reply.headers["x-ms-item-count"]
    return [one["id"] for one in changed], len({one["_lsn"] for one in changed})


def etags(of: Deviated) -> object:
    of.upsert("k", "a")
    page = of.changes("0")
    return tuple(reply.headers.get("etag") for reply in (page, of.changes("0", '"9"')))


def stale(of: Deviated) -> object:
    of.upsert("k", "a")
    of.clock.now += 10
    of.upsert("k", "b")
    return of.item("GET", "k", "b").status


def read_in_a_batch(of: Deviated) -> object:
    of.upsert("k", "a")
    return batch(of, {"operationType": "Read", "id": "a"})


def charged(of: Deviated) -> object:
    results = json.loads(of.batch("k", [put("Create", "b")]).body)
    return "x-ms-request-charge" in of.upsert("k", "a").headers, "requestCharge" in results[0]


def plain(of: Deviated) -> object:
    reply = of.upsert("k", "a")
    packed = reply.headers.get("content-encoding") == "gzip"
    return packed, json.loads(gzip.decompress(reply.body) if packed else reply.body)["id"]


@pytest.mark.parametrize(
    ("name", "ask", "true", "false"),
    [
        ("half-batches", half, 404, 200),
        ("large-batches", large, ([413], 404), ([201, 201, 201], 200)),
        ("creations-overwrite", created_twice, ([201, 409], [409]), ([201, 200], [200])),
        ("etags-ignored", conditional, (412, [412]), (200, [200])),
        ("412-is-409", conditional, (412, [412]), (409, [409])),
        ("numbers-rounded", number, 1, 0),
        ("ids-trimmed", spaced, "a ", "a"),
        ("ids-refused", escaped, (201, 200), (201, 401)),
        ("long-keys-refused", long_key, (201, 201), (400, 201)),
        ("items-never-expire", expired, 404, 200),
        ("missing-is-1003", lambda of: substatus(of.item("GET", "k", "a")), (404, 0), (404, 1003)),
        ("control-plane-refused", administered, (201, 200, 200), (403, 403, 200)),
        ("metadata-refused", administered, (201, 200, 200), (403, 403, 403)),
        ("throttled", lambda of: [of.upsert("k", "a").status for _ in range(20)].count(429), 0, 2),
        ("lsn-within-batch", feed, (["a", "b"], 1), (["a", "b"], 2)),
        ("feed-skips", feed, (["a", "b"], 1), (["a"], 1)),
        ("feed-reversed", feed, (["a", "b"], 1), (["b", "a"], 1)),
        ("304-without-etag", etags, ('"2"', '"9"'), ('"2"', None)),
        ("empty-etag", etags, ('"2"', '"9"'), ("", "")),
        ("stale-reads", stale, 200, 404),
        ("stale-batches", read_in_a_batch, [200], [404]),
        ("charges-hidden", charged, (True, True), (False, False)),
        ("compressed", plain, (False, "a"), (True, "a")),
        ("half-batches", of_dotnet, ([424, 412], 404, True), ([424, 412], 200, True)),
        ("412-is-409", of_dotnet, ([424, 412], 404, True), ([424, 409], 404, True)),
        ("charges-hidden", of_dotnet, ([424, 412], 404, True), ([424, 412], 404, False)),
        ("slow", lambda of: of.server.latency_s, 0.0, 0.2),
        ("clock-ahead", lambda of: of.account.clock() - of.clock(), 0.0, 3600.0),
    ],
)
def test_a_deviation_changes_an_answer_of_the_emulator_until_switched_off(
    name: str, ask: Callable[[Deviated], object], true: object, false: object
):
    assert true == ask(Deviated())
    of = Deviated()
    of.deviating.switch("throttled")  # a deviation that the next call replaces
    of.deviating.switch(name)
    assert false == ask(of)
    of.deviating.switch(None)
    assert (None, 0.0, False, 0.0, of.clock.now) == (
        of.server.around, of.server.latency_s, of.account.strict_ids, of.account.replication.lag_s, of.account.clock(),
    )  # fmt: skip


def test_every_deviation_is_tested_and_listed_in_the_readme():
    (table,) = test_a_deviation_changes_an_answer_of_the_emulator_until_switched_off.pytestmark
    assert {*DEVIATIONS} == {row[0] for row in table.args[1]}
    readme = (Path(__file__).parents[3] / "emulators/README.md").read_text()
    listed = readme.partition("| Deviation of Cosmos DB | ")[2].partition("\n\n")[0]
    assert [*DEVIATIONS] == re.findall(r"^\| `(\S+)` \|", listed, re.MULTILINE)
