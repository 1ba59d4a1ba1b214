"""
Tests of the deviations of the Service Bus emulator: switches that let it behave in one point unlike Azure, for tests of `verify`. A
deviation also applies to entities that are created later. When it is switched off, the emulator behaves like Azure again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmos_outbox_emulators.active_deviation import Deviating
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.deviations import DEVIATIONS
from cosmos_outbox_emulators.servicebus.queue import Outcome
from tests.emulators.servicebus.engine import ManualClock, Recorder, broker, message, scheduled

TOPIC = {
    "name": "t",
    "dedup_window_s": 600,
    "subscriptions": [{"name": "s", "lock_s": 30, "requires_session": True}],
}


def send(of: Broker, *names: str) -> None:
    for name in names:
        of.topic("t").publish([message(name, session_id="a")])


def received(of: Broker, credit: int = 1000) -> Recorder:
    receiver = Recorder(credit)
    queue = of.queue("t/Subscriptions/s")
    queue.pump(receiver, queue.sessions.accept(receiver, "a"))
    return receiver


def settle(of: Broker, token: bytes, outcome: Outcome, reason: str | None = None) -> str:
    try:
        of.queue("t/Subscriptions/s").settle(token, outcome, reason)
    except AmqpError as error:
        return error.condition
    return "settled"


def sent_again(of: Broker, clock: ManualClock) -> object:
    send(of, "1", "1")
    clock.advance(2)
    send(of, "1")
    return received(of).ids


def for_later(of: Broker, clock: ManualClock) -> object:
    of.topic("t").publish([scheduled("1", clock() + 60, session_id="a")])
    of.topic("t").schedule([scheduled("2", clock() + 60, session_id="a")])
    return received(of).ids


def dead_letter(of: Broker, clock: ManualClock) -> object:
    send(of, "1")
    settle(of, received(of).got[0][1], Outcome.DEAD_LETTER, "why")
    (dead,) = of.queue("t/Subscriptions/s/$DeadLetterQueue").peek(0, 9, None)
    return b"why" in dead.application_properties


def abandoned(of: Broker, clock: ManualClock) -> object:
    send(of, "1", "2")
    first = received(of, 1)
    settle(of, first.got[0][1], Outcome.ABANDON)
    of.queue("t/Subscriptions/s").detach(first)
    return [(name, count) for name, _, count in received(of).take()]


def lock_lost(of: Broker, clock: ManualClock) -> object:
    send(of, "1", "2")
    first = received(of, 1)
    clock.advance(31)
    late = settle(of, first.got[0][1], Outcome.COMPLETE)
    return received(of).ids if first.failure else "still locked", late


def renewed(of: Broker, clock: ManualClock) -> object:
    send(of, "1")
    first = received(of)
    clock.advance(20)
    of.queue("t/Subscriptions/s").sessions.renew(of.queue("t/Subscriptions/s").sessions.get("a", first))
    clock.advance(20)
    return settle(of, first.got[0][1], Outcome.COMPLETE)


def twice(of: Broker, clock: ManualClock) -> object:
    received(of)
    try:
        received(of)
    except AmqpError as error:
        return error.condition
    return "accepted"


LOST = "com.microsoft:session-lock-lost"


@pytest.mark.parametrize(
    ("name", "ask", "true", "false"),
    [
        ("duplicates-kept", sent_again, ["1"], ["1", "1", "1"]),
        ("duplicates-forgotten", sent_again, ["1"], ["1", "1"]),
        ("scheduled-at-once", for_later, [], ["1", "2"]),
        ("large-messages", lambda of, _: of.topic("t").largest_message, 262_144, 104_857_600),
        ("dead-letters-silent", dead_letter, True, False),
        ("deliveries-uncounted", abandoned, [("1", 1), ("2", 0)], [("1", 0), ("2", 0)]),
        ("lost-locks-settle", lock_lost, (["1", "2"], LOST), (["1", "2"], "settled")),
        ("abandoned-last", abandoned, [("1", 1), ("2", 0)], [("2", 0), ("1", 1)]),
        ("session-disordered", lock_lost, (["1", "2"], LOST), (["2", "1"], LOST)),
        ("session-reversed", lock_lost, (["1", "2"], LOST), (["2", "1"], LOST)),
        ("session-shared", twice, "com.microsoft:session-cannot-be-locked", "accepted"),
        ("renewals-ignored", renewed, "settled", LOST),
        ("session-endless", lock_lost, (["1", "2"], LOST), ("still locked", LOST)),
        ("bus-ahead", lambda of, clock: of.timers.now() - clock(), 0, 3600),
    ],
)
def test_each_deviation_of_the_emulator_changes_one_behaviour_until_switched_off(
    name: str, ask: Callable[[Broker, ManualClock], object], true: object, false: object
):
    for switched, remade, expected in (
        ([], False, true),
        (["duplicates-kept", name], False, false),
        ([name], True, false),
        ([name, None], False, true),
    ):
        of, clock = broker({"topics": [TOPIC]})
        deviating = Deviating(of, DEVIATIONS)
        for one in switched:
            deviating.switch(one)
        if remade:
            of.delete("t")
            of.add_topic(TOPIC)
        assert expected == ask(of, clock)


def test_every_deviation_is_tested_and_listed_in_the_readme():
    (table,) = test_each_deviation_of_the_emulator_changes_one_behaviour_until_switched_off.pytestmark
    assert [*DEVIATIONS] == [row[0] for row in table.args[1]]
    readme = (Path(__file__).parents[3] / "emulators/README.md").read_text()
    listed = readme.partition("| Deviation of Service Bus | ")[2].partition("\n\n")[0]
    assert [*DEVIATIONS] == re.findall(r"^\| `(\S+)` \|", listed, re.MULTILINE)
