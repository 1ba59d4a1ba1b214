"""
The plan of a page.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.documents import Document
from cosmos_outbox.relay.delivery import Delivery, lane_of, plan
from tests.unit.relay.factories import entity, event


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.event.id for delivery in deliveries]


def test_only_events_are_delivered() -> None:
    documents = [
        entity("k"),
        {"id": "no type", "partitionKey": "k", "data": {}},
        {"id": "no data", "partitionKey": "k", "type": "domainEvent"},
        event("k", 1),
    ]
    assert {0: ["k/1"]} == {lane: ids(due) for lane, due in plan(documents, lanes=1).items()}


def test_events_of_one_commit_go_out_in_the_order_they_were_raised() -> None:
    """
    Documents of one transactional batch share an LSN, and the feed sorts them by something else.
    """
    documents = [event("k", number, lsn=5, sequence=number) for number in (2, 0, 1)]
    assert ["k/0", "k/1", "k/2"] == ids(plan(documents, lanes=1)[0])


def test_commits_go_out_in_the_order_of_their_lsn() -> None:
    documents = [event("k", 9, lsn=9), event("k", 10, lsn=10), event("k", 8, lsn=8)]
    assert ["k/8", "k/9", "k/10"] == ids(plan(documents, lanes=1)[0])


def test_events_of_the_dotnet_sample_keep_the_order_of_the_feed() -> None:
    documents = [event("k", number, lsn=5, sequence=None) for number in (3, 1, 2)]
    assert ["k/3", "k/1", "k/2"] == ids(plan(documents, lanes=1)[0])


def test_events_of_one_partition_key_lie_next_to_each_other() -> None:
    """
    For partitioned topics a batch holds one session; scattered keys would mean batches of one.
    """
    documents = [event(key, number) for number in range(3) for key in ("a", "b")]
    assert ["a/0", "a/1", "a/2", "b/0", "b/1", "b/2"] == ids(plan(documents, lanes=1)[0])


def test_what_the_topic_has_already_is_left_out() -> None:
    documents = [event("a", 1), event("a", 2), event("b", 1)]
    accepted = {("a", "a/1"), ("b", "b/1")}
    assert {0: ["a/2"]} == {
        lane: ids(due) for lane, due in plan(documents, lanes=1, accepted=accepted).items()
    }


def test_the_lane_of_a_key_is_the_same_in_every_process() -> None:
    assert [6, 4, 1, 0] == [lane_of(key, 8) for key in ("contact-1", "contact-2", "ж", "")]


def test_keys_spread_over_all_lanes() -> None:
    lanes = {lane_of(f"contact-{number}", 8) for number in range(200)}
    assert set(range(8)) == lanes


KEYS = st.sampled_from(["a", "b", "c", "d", "ж", "\ud800"])


@given(
    commits=st.lists(st.tuples(KEYS, st.integers(1, 3)), max_size=20), lanes=st.integers(1, 9), data=st.data()
)
def test_whatever_the_feed_shuffles_each_key_keeps_its_order_on_one_lane(
    commits: list[tuple[str, int]], lanes: int, data: st.DataObject
) -> None:
    documents: list[Document] = []
    committed: dict[str, list[str]] = defaultdict(list)
    for lsn, (key, size) in enumerate(commits, start=1):
        for sequence in range(size):
            document = event(key, len(committed[key]), lsn=lsn, sequence=sequence)
            documents.append(document)
            committed[key].append(document["id"])
    planned = plan(data.draw(st.permutations(documents)), lanes=lanes)
    sent: dict[str, list[str]] = defaultdict(list)
    lanes_of_key: dict[str, set[int]] = defaultdict(set)
    for lane, due in planned.items():
        for delivery in due:
            sent[delivery.event.partition_key].append(delivery.event.id)
            lanes_of_key[delivery.event.partition_key].add(lane)
    assert committed == sent
    assert all(1 == len(found) for found in lanes_of_key.values())
