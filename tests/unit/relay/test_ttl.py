"""
The TTL guard: who is told when, and which configurations are refused.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.records import EventAgeing, EventExpiring, EventTtlShort, Record
from cosmos_outbox.relay.ttl import TtlGuard, require_ttls
from tests.unit.relay.factories import batch, entity, event

WRITTEN_AT = 1_800_000_000
TTL = 1000


class Situation:
    """
    A guard around a handler that works until it is let go, on a wall clock that follows the loop's.
    """

    def __init__(self, *, age: float = 0, tolerated: float = 100) -> None:
        self.records: list[Record] = []
        self.go = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._begun, self._age = self._loop.time(), age
        self.guard = TtlGuard(
            self.handle,
            tolerated_outage=timedelta(seconds=tolerated),
            notify=self.records.append,
            now=self.now,
        )

    def now(self) -> float:
        return WRITTEN_AT + self._age + self._loop.time() - self._begun

    async def handle(self, _):
        await self.go.wait()

    async def hold(self, *documents, seconds):
        """
        Have a batch handled for so long.
        """
        handling = asyncio.create_task(self.guard(batch(*documents)))
        await asyncio.sleep(seconds)
        self.go.set()
        await handling
        self.go.clear()

    def told(self, kind):
        return [(each.event_id, round(each.age_seconds)) for each in self.records if isinstance(each, kind)]


def dying(number: int = 1, *, ttl: int | None = TTL, age: int = 0):
    document = {**event(number=number), "_ts": WRITTEN_AT - age}
    return {**document, "ttl": ttl} if ttl is not None else {k: v for k, v in document.items() if k != "ttl"}


async def test_nothing_is_told_of_events_that_are_sent_in_time():
    situation = Situation()
    await situation.hold(dying(), seconds=TTL * 0.49)
    assert [] == situation.records


async def test_half_of_the_ttl_spent_is_a_warning_and_four_fifths_an_alarm():
    situation = Situation()
    await situation.hold(dying(), seconds=TTL * 0.8 + 1)
    assert ("contact-1/1", 500) == situation.told(EventAgeing)[0]
    assert [("contact-1/1", 800)] == situation.told(EventExpiring)


async def test_the_alarm_is_repeated_every_minute_while_it_lasts():
    situation = Situation(age=800)
    await situation.hold(dying(), seconds=125)
    assert [800, 860, 920] == [age for _, age in situation.told(EventExpiring)]


async def test_after_the_page_is_sent_nothing_more_is_told():
    situation = Situation(age=450)
    await situation.hold(dying(), seconds=10)
    await asyncio.sleep(1000)
    assert [] == situation.records


async def test_the_event_that_dies_first_is_named_not_the_oldest():
    situation = Situation()
    await situation.hold(dying(1, ttl=10_000, age=50), dying(2, ttl=200), seconds=170)
    assert ("contact-1/2", 100) == situation.told(EventAgeing)[0]
    assert ("contact-1/2", 160) == situation.told(EventExpiring)[0]


async def test_pages_that_are_old_when_they_come_are_told_of_once_a_minute():
    situation = Situation(age=600)
    for number in range(20):
        await situation.hold(dying(number), seconds=1)
    assert 1 == len(situation.told(EventAgeing))


@pytest.mark.parametrize("ttl", [None, -1])
async def test_events_that_live_for_ever_or_as_the_container_says_are_not_judged(ttl):
    situation = Situation()
    await situation.hold(dying(ttl=ttl), entity(), seconds=10_000)
    assert [] == situation.records


async def test_the_age_of_the_oldest_unsent_event_is_known_while_its_page_is_at_hand():
    situation = Situation(age=5)
    handling = asyncio.create_task(situation.guard(batch(dying(1), dying(2, age=20), lease="7")))
    await asyncio.sleep(10)
    assert {"7": pytest.approx(35, abs=0.1)} == situation.guard.oldest_unsent_seconds()
    situation.go.set()
    await handling
    assert {} == situation.guard.oldest_unsent_seconds()


async def test_an_action_whose_events_live_too_short_is_told_of_once():
    situation = Situation(tolerated=2000)
    situation.go.set()
    for number in (1, 2):
        await situation.guard(batch(dying(number)))
    expected = EventTtlShort(action="Renamed", ttl_seconds=TTL, tolerated_outage_seconds=2000.0)
    assert [expected] == [each for each in situation.records if isinstance(each, EventTtlShort)]


async def test_an_error_of_the_handler_passes_and_ends_the_watch():
    async def fail(_):
        raise ValueError("no")

    situation = Situation()
    guard = TtlGuard(fail, notify=situation.records.append, now=situation.now)
    with pytest.raises(ValueError, match="no"):
        await guard(batch({**dying(), "ttl": 864_000}))
    assert {} == guard.oldest_unsent_seconds()
    await asyncio.sleep(864_000)
    assert [] == situation.records


def test_a_ttl_shorter_than_the_tolerated_outage_is_refused_by_name():
    ttls = {"Renamed": timedelta(days=10), "Pinged": timedelta(hours=1)}
    with pytest.raises(ConfigurationError, match=r"Pinged \(1:00:00\)") as refused:
        require_ttls(ttls, tolerated_outage=timedelta(days=2))
    assert "Renamed" not in str(refused.value)


def test_a_ttl_as_long_as_the_tolerated_outage_is_accepted():
    require_ttls({"Renamed": timedelta(days=2)}, tolerated_outage=timedelta(days=2))
