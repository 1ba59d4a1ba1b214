"""
Tests of a relay that parks keys, with random faults, which Hypothesis draws: no event is lost, and the events
of a key enter the topic in order (the promises G2 and G3).
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.stored_documents import Document
from tests.simulation.relay import Act, Operator, Owner, Script, Simulation
from tests.support.effort import examples
from tests.support.event_documents import event
from tests.support.versioned_parked import Link, StoreFault

times = st.floats(0, 12).map(lambda seconds: round(seconds, 1))
links = st.builds(
    Link,
    seconds=st.sampled_from([0.0, 0.05, 0.4]),
    behind=st.sampled_from([0.0, 0.3, 3.0]),
    faults=st.lists(st.none() | st.sampled_from(StoreFault), max_size=5).map(tuple),
)
owners = st.builds(
    Owner,
    starts_at=times,
    lives_for=times,
    worker=st.integers(0, 1),
    processor=st.sampled_from([0, 0, 1]),
    faults=st.lists(st.none() | st.sampled_from(Fault), max_size=3).map(tuple),
    link=links,
)
operators = st.builds(
    Operator,
    starts_at=times,
    lives_for=times | st.just(1000.0),
    act=st.sampled_from(Act),
    processor=st.sampled_from([0, 0, 1]),
    link=links,
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    committed: dict[str, list[str]] = defaultdict(list)
    pages: list[tuple[float, tuple[Document, ...]]] = []
    lsn, available_at = 0, 0.0
    commits = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2)), min_size=1, max_size=3)
    for page in draw(st.lists(st.tuples(commits, st.sampled_from([0.0, 0.2, 2.0])), min_size=1, max_size=8)):
        documents: list[Document] = []
        for key, size in page[0]:
            lsn += 1
            for sequence in range(size):
                documents.append(event(key, len(committed[key]), lsn=lsn, sequence=sequence))
                committed[key].append(documents[-1]["id"])
        available_at += page[1]
        pages.append((available_at, tuple(documents)))
    ids = [event_id for key in committed.values() for event_id in key]
    return Script(
        pages=tuple(pages),
        rejected=draw(st.frozensets(st.sampled_from(ids), min_size=1, max_size=3)),
        rejected_too=draw(st.frozensets(st.sampled_from(ids), max_size=2)),
        chokes=draw(st.frozensets(st.sampled_from(ids), max_size=1)),
        refuses_all=draw(st.sampled_from([(0.0, 0.0), (0.0, 3.0), (1.5, 9.0)])),
        rejects_until=draw(st.sampled_from([2.0, 6.0, 1e9])),
        latency=draw(st.sampled_from([0.0, 0.1, 0.5])),
        owners=tuple(draw(st.lists(owners, max_size=4))),
        operators=tuple(draw(st.lists(operators, max_size=3))),
        committed=dict(committed),
    )


@settings(max_examples=examples(60, many=300), suppress_health_check=list(HealthCheck), deadline=None)
@given(script=scripts())
async def test_a_relay_loses_no_event_and_keeps_each_keys_order_under_any_faults(script: Script) -> None:
    await Simulation(script).play()
