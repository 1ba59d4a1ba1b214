"""The plan of a page: how the relay divides the events of a page among its lanes, which send in parallel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.relay.sending_lanes import LANE_BYTES, Delivery, assign_lanes, event_page, group_by_key
from cosmos_outbox.stored_documents import Document
from tests.support.event_documents import batch, entity, event


def plan(documents: Sequence[Document], *, lanes: int, lane_bytes: int = LANE_BYTES) -> list[list[Delivery]]:
    streams = group_by_key(event_page(batch(*documents)).events)
    return assign_lanes(streams.values(), lanes=lanes, lane_bytes=lane_bytes)


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.event.id for delivery in deliveries]


def test_only_documents_that_are_events_are_delivered() -> None:
    documents = [
        entity("k"),
        {"id": "no type", "partitionKey": "k", "data": {}},
        {"id": "no data", "partitionKey": "k", "type": "domainEvent"},
        event("k", 1),
    ]
    assert [["k/1"]] == [ids(due) for due in plan(documents, lanes=1)]


def test_events_of_one_commit_are_sent_in_the_order_in_which_they_were_raised() -> None:
    """Documents of one transactional batch share an LSN, and the change feed may return them in any order."""
    documents = [event("k", number, lsn=5, sequence=number) for number in (2, 0, 1)]
    assert ["k/0", "k/1", "k/2"] == ids(plan(documents, lanes=1)[0])


def test_events_of_the_dotnet_sample_keep_the_order_of_the_feed() -> None:
    documents = [event("k", number, lsn=5, sequence=None) for number in (3, 1, 2)]
    assert ["k/3", "k/1", "k/2"] == ids(plan(documents, lanes=1)[0])


def test_events_that_fit_one_batch_are_sent_on_one_lane() -> None:
    """A batch costs as much as several messages, so many small batches on several lanes would be slower."""
    assert 1 == len(plan([event(f"k{number}", 1, size=500) for number in range(100)], lanes=8))


def test_a_larger_page_is_sent_on_as_many_parallel_lanes_as_it_has_full_batches() -> None:
    shares = plan([event(f"k{number:03d}", 1, size=10_000) for number in range(60)], lanes=8)
    assert [19, 18, 19, 4] == [len(share) for share in shares]


def test_a_key_with_very_many_events_has_a_lane_of_its_own() -> None:
    giant = [event("giant", number, size=10_000) for number in range(90)]
    small = [event(f"k{number:03d}", 1, size=10_000) for number in range(10)]
    shares = plan([*giant, *small], lanes=4)
    assert [90, 10] == [len(share) for share in shares]


KEYS = st.sampled_from(["a", "b", "c", "d", "ж", "\ud800"])


@given(
    commits=st.lists(st.tuples(KEYS, st.integers(1, 3)), max_size=20),
    lanes=st.integers(1, 9),
    lane_bytes=st.sampled_from([1, 1500, 5000]),
    data=st.data(),
)
def test_each_key_keeps_its_order_on_one_lane(
    commits: list[tuple[str, int]], lanes: int, lane_bytes: int, data: st.DataObject
) -> None:
    documents: list[Document] = []
    committed: dict[str, list[str]] = defaultdict(list)
    for lsn, (key, size) in enumerate(commits, start=1):
        for sequence in range(size):
            document = event(key, len(committed[key]), lsn=lsn, sequence=sequence)
            documents.append(document)
            committed[key].append(document["id"])
    shares = plan(data.draw(st.permutations(documents)), lanes=lanes, lane_bytes=lane_bytes)
    assert len(shares) <= lanes
    sent: dict[str, list[str]] = defaultdict(list)
    lanes_of_key: dict[str, set[int]] = defaultdict(set)
    for lane, share in enumerate(shares):
        for delivery in share:
            sent[delivery.event.partition_key].append(delivery.event.id)
            lanes_of_key[delivery.event.partition_key].add(lane)
    assert committed == sent
    assert all(1 == len(found) for found in lanes_of_key.values())
