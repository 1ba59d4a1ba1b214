"""Random scripts for the simulation of relays. The same random seed gives the same script."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.stored_documents import Document
from tests.simulation.relay import Act, Operator, Owner, Script
from tests.support.event_documents import event
from tests.support.versioned_parked import Link, StoreFault

_FEW, _MANY = ("a", "b", "c"), tuple(f"k{number}" for number in range(25))


def random_relay_script(chance: Random) -> Script:
    """
    Return a random script. One script in three has 25 keys, to test that the relay parks only a few of them while a topic refuses
    everything.

    In half of the scripts with 25 keys, the topic refuses most keys for good, so that many keys are parked at once (a parking storm).
    """
    committed: dict[str, list[str]] = defaultdict(list)
    keys = _MANY if chance.random() < 1 / 3 else _FEW
    pages: list[tuple[float, tuple[Document, ...]]] = []
    lsn, available_at = 0, 0.0
    for _ in range(chance.randint(1, 10)):
        documents: list[Document] = []
        for _ in range(chance.randint(1, len(keys))):
            key, lsn = chance.choice(keys), lsn + 1
            for sequence in range(chance.choice((1, 1, 2))):
                documents.append(event(key, len(committed[key]), lsn=lsn, sequence=sequence))
                committed[key].append(documents[-1]["id"])
        available_at += chance.choice((0.0, 0.2, 2.0))
        pages.append((available_at, tuple(documents)))
    ids = [event_id for of_key in committed.values() for event_id in of_key]
    script = Script(
        pages=tuple(pages),
        rejected=_some(chance, ids, most=3),
        rejected_too=_some(chance, ids, most=2),
        chokes=_some(chance, ids, most=1),
        refuses_all=chance.choice(((0.0, 0.0), (0.0, 3.0), (1.5, 9.0))),
        rejects_until=chance.choice((2.0, 6.0, 1e9)),
        latency=chance.choice((0.0, 0.1, 0.5)),
        owners=tuple(_owner(chance) for _ in range(chance.randint(0, 5))),
        operators=tuple(_operator(chance) for _ in range(chance.randint(0, 3))),
        committed=dict(committed),
    )
    # Whether the topic refuses most keys is drawn last. So this newer choice does not change the draws before it, and the other seeds keep
    # their scripts.
    return _storm(chance, script) if keys is _MANY and chance.random() < 1 / 2 else script


def _storm(chance: Random, script: Script) -> Script:
    """
    Return the script with most keys refused for good. Each page also gets an event that the topic accepts, because the worker parks
    no key if the topic refuses a whole page.
    """
    calm = [event("calm", number) for number in range(len(script.pages))]
    pages = zip(script.pages, calm, strict=True)
    return replace(
        script,
        pages=tuple((at, (*documents, one)) for (at, documents), one in pages),
        rejected=frozenset(f"{key}/{number}" for key in chance.sample(_MANY, 20) for number in range(2)),
        committed={**script.committed, "calm": [one["id"] for one in calm]},
    )


def _some(chance: Random, ids: list[str], *, most: int) -> frozenset[str]:
    return frozenset(chance.sample(ids, min(len(ids), chance.randint(0, most))))


def _owner(chance: Random) -> Owner:
    return Owner(
        starts_at=round(chance.uniform(0, 12), 1),
        lives_for=round(chance.uniform(0, 12), 1),
        worker=chance.randint(0, 1),
        processor=chance.choice((0, 0, 1)),
        faults=tuple(chance.choice((None, *Fault)) for _ in range(chance.randint(0, 3))),
        link=_link(chance),
    )


def _operator(chance: Random) -> Operator:
    return Operator(
        starts_at=round(chance.uniform(0, 12), 1),
        lives_for=chance.choice((1000.0, round(chance.uniform(0, 12), 1))),
        act=chance.choice(list(Act)),
        processor=chance.choice((0, 0, 1)),
        link=_link(chance),
    )


def _link(chance: Random) -> Link:
    return Link(
        seconds=chance.choice((0.0, 0.05, 0.4)),
        behind=chance.choice((0.0, 0.3, 3.0)),
        faults=tuple(chance.choice((None, *StoreFault)) for _ in range(chance.randint(0, 5))),
    )
