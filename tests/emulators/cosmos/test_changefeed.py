"""Tests of the emulated change feed against a model, with overwrites, deletions, splits and merges."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.emulators.cosmos.driver import Driver, documents, put, substatus
from tests.support.effort import examples

KEYS = [f"k{i}" for i in range(12)]


class FeedMachine(RuleBasedStateMachine):
    """
    Reads each range as a change feed processor does, across splits and merges, and compares the changes with a model.
    """

    def __init__(self):
        super().__init__()
        self.driver = Driver(partitions=2)
        self.version = 0
        self.newest: dict[tuple[str, str], int] = {}
        self.seen: dict[tuple[str, str], int] = {}
        # Each lease is a tuple: the lowest and the highest key of its range, the id of the partition that holds the range, and the
        # continuation of its reader.
        self.leases = [(p.low, p.high, p.range_id, None) for p in self.driver.container.partitions]

    @rule(
        key=st.sampled_from(KEYS), ids=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True)
    )
    def write(self, key, ids):
        operations = []
        for item_id in ids:
            self.version += 1
            self.newest[key, item_id] = self.version
            operations.append(put("Upsert", item_id, key, v=self.version))
        assert 200 == self.driver.batch(key, operations).status

    @rule(key=st.sampled_from(KEYS), item_id=st.sampled_from("abcd"))
    def delete(self, key, item_id):
        expected = 204 if self.newest.pop((key, item_id), None) else 404
        self.seen.pop((key, item_id), None)
        assert expected == self.driver.item("DELETE", key, item_id).status

    @rule(data=st.data(), limit=st.integers(1, 5))
    def read_a_page(self, data, limit):
        index = data.draw(st.integers(0, len(self.leases) - 1))
        self._read(index, limit)

    @precondition(lambda self: len(self.driver.container.partitions) < 8)
    @rule(data=st.data())
    def split(self, data):
        partition = data.draw(st.sampled_from(self.driver.container.partitions))
        self.driver.container.split(partition.range_id)

    @precondition(lambda self: len(self.driver.container.partitions) > 1)
    @rule(data=st.data())
    def merge(self, data):
        partitions = self.driver.container.partitions
        first = data.draw(st.integers(0, len(partitions) - 2))
        self.driver.container.merge(partitions[first + 1].range_id, partitions[first].range_id)

    @invariant()
    def a_full_drain_from_here_shows_every_newest_version(self):
        copy, seen = list(self.leases), dict(self.seen)
        self._drain()
        assert self.newest == self.seen
        self.leases, self.seen = copy, seen

    def _drain(self):
        index = 0
        while index < len(self.leases):
            if not self._read(index, 3):
                index += 1

    def _read(self, index, limit):
        """
        Read one page of one lease. Return False if nothing changed since the last read. A range that was split or merged counts
        as a change.
        """
        low, high, range_id, continuation = self.leases[index]
        epks = {
            "x_ms_start_epk": low,
            "x_ms_end_epk": high,
            "x_ms_read_key_type": "EffectivePartitionKeyRange",
        }
        reply = self.driver.changes(range_id, continuation, x_ms_max_item_count=str(limit), **epks)
        if reply.status == 410:
            assert (410, 1002) == substatus(reply)
            self.leases[index : index + 1] = [
                (max(low, p.low), min(high, p.high), p.range_id, continuation)
                for p in self.driver.container.overlapping(low, high)
            ]
            return True
        page = documents(reply)
        self._check_whole_transactions(page, limit)
        for item in page:
            key = (item["pk"], item["id"])
            assert self.seen.get(key, 0) < item["v"], "a change was shown twice or out of order"
            self.seen[key] = item["v"]
        self.leases[index] = (low, high, range_id, reply.headers["etag"])
        assert reply.status == (200 if page else 304)
        assert reply.headers["x-ms-item-count"] == str(len(page)), "the SDK for .NET reads that of a 304 too"
        return reply.status == 200

    @staticmethod
    def _check_whole_transactions(page, limit):
        lsns = [item["_lsn"] for item in page]
        assert sorted(lsns) == lsns
        if len(page) > limit:
            assert lsns.index(lsns[-1]) < limit, (
                "a page beyond its limit went on after the end of a transaction"
            )


FeedMachine.TestCase.settings = settings(
    max_examples=examples(30, many=60), stateful_step_count=30, deadline=None
)
TestFeed = FeedMachine.TestCase


def test_expired_items_are_removed_from_the_feed_and_from_memory():
    driver = Driver()
    for i in range(50):
        driver.upsert("k", f"event{i}", ttl=10)
    driver.upsert("k", "entity", ttl=-1)
    driver.clock.now += 10
    assert ["entity"] == [item["id"] for item in documents(driver.changes("0"))]
    assert 1 == len(driver.container.partitions[0])
    assert 404 == driver.item("GET", "k", "event0").status
    assert ["entity"] == driver.rows("SELECT VALUE c.id FROM c")
    assert 201 == driver.upsert("k", "event0").status


def test_a_default_ttl_that_is_set_later_expires_items_without_a_ttl():
    driver = Driver(default_ttl=None)
    driver.upsert("k", "plain")
    driver.upsert("k", "own", ttl=5)
    driver.clock.now += 60
    assert ["plain", "own"] == driver.rows("SELECT VALUE c.id FROM c")
    driver.ok("PUT", "/dbs/d/colls/c", {"id": "c", "partitionKey": {"paths": ["/pk"]}, "defaultTtl": 100})
    assert ["plain"] == driver.rows("SELECT VALUE c.id FROM c")
    driver.clock.now += 40
    assert [] == driver.rows("SELECT VALUE c.id FROM c")


@pytest.mark.parametrize("ttl", [-1, 100_000])
def test_rewriting_an_item_does_not_grow_the_log_of_changes(ttl):
    """The log of changes and the queue of expiries stay short, however often an item is written."""
    driver = Driver()
    for n in range(5000):
        driver.upsert("k", "lease", n=n, ttl=ttl)
    partition = driver.container.partitions[0]
    assert partition.log_length <= 1100
    assert len(partition._expiries) <= 1100
    (item,) = documents(driver.changes("0"))
    assert 4999 == item["n"]


def test_deleting_items_does_not_grow_the_log_of_changes():
    driver = Driver()
    for n in range(5000):
        driver.upsert("k", str(n))
        driver.item("DELETE", "k", str(n))
    partition = driver.container.partitions[0]
    assert partition.log_length <= 1100
    assert [] == driver.rows("SELECT * FROM c")


def test_requests_for_a_split_range_get_410_1007_and_later_410_1002():
    """The sub-status 1007 of a 410 says that the split is under way, and 1002 says that the range is gone."""
    driver = Driver()
    driver.container.split("0", completing=2)
    assert [(410, 1007), (410, 1007), (410, 1002)] == [substatus(driver.changes("0")) for _ in range(3)]


def test_a_range_lists_all_of_its_ancestors_as_parents():
    driver = Driver()
    driver.container.split("0")
    driver.container.merge("2", "1")
    driver.container.split("3")
    ranges = driver.ok("GET", "/dbs/d/colls/c/pkranges")["PartitionKeyRanges"]
    assert [("4", ["0", "1", "2", "3"]), ("5", ["0", "1", "2", "3"])] == [
        (r["id"], r["parents"]) for r in ranges
    ]


def test_the_list_of_ranges_is_answered_with_304_until_a_split():
    driver = Driver()
    etag = driver.send("GET", "/dbs/d/colls/c/pkranges").headers["etag"]
    assert 304 == driver.send("GET", "/dbs/d/colls/c/pkranges", if_none_match=etag).status
    driver.container.split("0")
    assert 200 == driver.send("GET", "/dbs/d/colls/c/pkranges", if_none_match=etag).status


def test_a_page_of_the_change_feed_ends_at_four_megabytes():
    driver = Driver()
    for n in range(6):
        driver.upsert("k", str(n), text="x" * 1_500_000)
    page = driver.changes("0", x_ms_max_item_count="-1")
    assert ["0", "1", "2"] == [item["id"] for item in json.loads(page.body)["Documents"]]


def test_a_new_ttl_of_an_item_replaces_its_old_ttl():
    driver = Driver()
    driver.upsert("k", "lease", ttl=10)
    driver.upsert("k", "lease", ttl=100)
    driver.clock.now += 50
    assert ["lease"] == driver.rows("SELECT VALUE c.id FROM c")
    driver.clock.now += 50
    assert [] == driver.rows("SELECT VALUE c.id FROM c")


def test_an_item_deleted_and_created_in_one_batch_is_a_new_item():
    driver = Driver()
    old = json.loads(driver.upsert("k", "a").body)
    driver.upsert("k", "b")
    assert 200 == driver.batch("k", [{"operationType": "Delete", "id": "a"}, put("Create", "a")]).status
    (b, a) = driver.rows("SELECT * FROM c")
    assert (["b", "a"], True) == ([b["id"], a["id"]], a["_rid"] != old["_rid"])


def test_items_of_a_batch_appear_in_the_order_of_their_last_write():
    driver = Driver()
    driver.batch("k", [put("Upsert", item_id) for item_id in "aba"])
    assert ["b", "a"] == [item["id"] for item in documents(driver.changes("0"))]


def test_an_item_read_from_the_change_feed_can_be_written_back():
    driver = Driver()
    driver.upsert("k", "a")
    (item,) = documents(driver.changes("0"))
    written = driver.item("PUT", "k", "a", item)
    assert (200, False) == (written.status, b"_lsn" in written.body)
    page = driver.changes("0")
    assert (1, item["_lsn"] + 1) == (page.body.count(b'"_lsn"'), documents(page)[0]["_lsn"])


def test_a_change_feed_request_for_several_ranges_is_refused():
    driver = Driver(partitions=2)
    assert 400 == driver.send("GET", "/dbs/d/colls/c/docs", a_im="Incremental Feed").status
    low = driver.container.partitions[0]
    window = {"x_ms_start_epk": low.low, "x_ms_end_epk": low.high}
    assert 304 == driver.send("GET", "/dbs/d/colls/c/docs", a_im="Incremental Feed", **window).status


def test_a_change_feed_with_a_start_time_has_only_later_changes():
    driver = Driver()
    driver.upsert("k", "old")
    driver.clock.now += 10
    driver.upsert("k", "new")
    since = "Fri, 15 Jan 2027 08:00:05 GMT"  # five seconds after the test's clock started
    page = driver.changes("0", if_modified_since=since)
    assert ["new"] == [item["id"] for item in documents(page)]
    with_continuation = driver.changes("0", '"0"', if_modified_since=since)
    assert ["old", "new"] == [item["id"] for item in documents(with_continuation)]
