"""
Watching what is parked, which many workers do every few seconds.
"""

from __future__ import annotations

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.relay import Parking, Relay
from tests.unit.relay.factories import batch, event
from worker.watching import look_at_parked


async def test_looking_at_what_is_parked_counts_it_and_writes_nothing() -> None:
    store = MemoryParked()
    relay = Relay(
        MemoryBroker(rejects=lambda message: True).publisher(),
        parking=Parking(store),
        notify=lambda record: None,
    )
    await relay(batch(event("a", 1), event("a", 2), event("b", 1)))
    before = store.documents()
    seen = await look_at_parked(store)
    assert (2, 3) == (seen.count, seen.events)
    assert {"a", "b"} == {key.partition_key for key in seen.keys}
    assert before == store.documents()


async def test_of_very_many_parked_keys_only_their_number_is_told() -> None:
    store = MemoryParked()
    relay = Relay(
        MemoryBroker(rejects=lambda message: True).publisher(),
        parking=Parking(store),
        notify=lambda record: None,
    )
    await relay(batch(*(event(f"k{number}", 1) for number in range(101))))
    seen = await look_at_parked(store)
    assert (101, None, ()) == (seen.count, seen.events, seen.keys)
