"""Tests of `cosmos-outbox replay` on emulators."""

from __future__ import annotations

from collections import Counter

import pytest

from cosmos_outbox.relay.ceiling import Ceiling
from tests.cli.test_parked import PARKED, park
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_replay_sends_events_again_with_the_same_message_ids(alone: Local):
    """
    The topic's duplicate detection drops a replayed message if the first copy was sent within its window.
    """
    alone.commit("ada", "grace")
    alone.pass_all()
    assert {
        "dry_run": True,
        "events": 4,
        "left_out": 0,
        "left_to_workers": False,
        "refused": [],
    } == alone.json("replay", "--since", "beginning", "--dry-run")
    assert 0 == alone.accepted
    assert 4 == alone.json("replay", "--since", "beginning", "--yes")["events"]
    assert 4 == alone.accepted
    assert 2 == alone.json("replay", "--since", "beginning", "--key", "ada", "--yes")["events"]
    assert 4 == alone.accepted, "message ids are the same, so the topic's duplicate detection drops them"


def test_a_replay_and_a_release_keep_to_the_configured_send_rate(
    alone: Local, monkeypatch: pytest.MonkeyPatch
):
    turns: list[tuple[float, int]] = []
    reserve = Ceiling.reserve

    def noted(ceiling: Ceiling, number: int, *, now: float) -> float:
        turns.append((ceiling.per_second, number))
        return 0 * reserve(ceiling, number, now=now)

    monkeypatch.setattr(Ceiling, "reserve", noted)
    park(alone, "ada")
    alone.run("parked", "release", "ada", "--yes", OUTBOX_SEND_RATE="3", **PARKED)
    assert [(3, 1)] * 2 == turns
    alone.pass_all()
    for rate, arguments in ((3, ()), (7, ("--rate", "7"))):
        turns.clear()
        alone.run("replay", "--since", "beginning", "--yes", *arguments, OUTBOX_SEND_RATE="3", **PARKED)
        assert [(rate, 1)] * 2 == turns


def test_replay_takes_only_events_with_the_given_action(outbox: Local):
    outbox.commit("ada", "grace")
    outbox.pass_all()
    asked = ("replay", "--since", "beginning", "--dry-run", "--action")
    assert 2 == outbox.json(*asked, "ContactNameUpdatedEvent")["events"]
    assert "NothingMatches" == outbox.json(*asked, "Unheard", code=5)["error"]["code"]


def test_replay_queries_the_parked_store_once_for_all_keys(outbox: Local):
    """
    With thousands of parked keys, one query for each key would take most of the time of a replay.

    The test also checks that with `--key`, replay reads only the changes of this key.
    """

    def asked(*of: str, **variables: str) -> Counter[str]:
        before = outbox.steer("/cosmos/stats")["requests"]
        outbox.run("replay", "--since", "beginning", "--dry-run", *of, **variables)
        return Counter(outbox.steer("/cosmos/stats")["requests"]) - Counter(before)

    outbox.commit("ada", *map(str, range(20)))
    outbox.pass_all()
    queries = asked(OUTBOX_PARKED_CONTAINER="parked")["query"] - asked()["query"]
    assert queries <= 4, "an attempt, its plan, and one for each physical partition"
    assert 2 == asked("--key", "ada")["changefeed"], "its two events, and nothing more"


def test_replay_refuses_the_word_now_as_its_start(outbox: Local):
    outbox.run("bootstrap")
    assert "'now'" in outbox.run("replay", "--since", "now", "--yes", code=2).stderr


def test_replay_reports_a_refused_event_and_sends_all_others(alone: Local):
    async def write(database):
        data = {"action": "Grown", "text": "x" * 300_000}
        event = {"id": "big", "partitionKey": "ada", "type": "domainEvent", "data": data}
        await database.get_container_client("data").create_item(event)

    alone.commit("ada")
    alone.on_database(write)
    alone.commit("ada-after", "grace")
    alone.pass_all()
    result = alone.json("replay", "--since", "beginning", "--yes", code=4)
    assert (6, [("ada", "big")]) == (
        result["events"], [(one["key"], one["event"]) for one in result["refused"]],
    )  # fmt: skip
    assert 6 == alone.accepted
    assert "'big'" in alone.run("replay", "--since", "beginning", "--yes", code=4).stdout


def test_replay_leaves_unsent_events_to_the_workers(outbox: Local):
    outbox.commit("ada")
    outbox.run("bootstrap")
    dry_run = ("replay", "--since", "beginning", "--dry-run")
    result = outbox.json(*dry_run)
    assert (0, True) == (result["events"], result["left_to_workers"]), "nothing is sent yet"
    assert "The workers are behind" in outbox.run(*dry_run).stdout
    outbox.pass_all()
    assert not outbox.json(*dry_run)["left_to_workers"]
    assert 2 == outbox.json("replay", "--since", "beginning", "--dry-run")["events"]


def test_replay_refuses_the_name_of_a_processor_without_leases(outbox: Local):
    outbox.commit("ada")
    outbox.pass_all()
    replay = ("replay", "--since", "beginning", "--dry-run")
    said = outbox.run(*replay, code=5, OUTBOX_PROCESSOR_NAME="outbocks").stderr
    assert "'outbocks' has no leases" in said
    assert 2 == outbox.json(*replay)["events"]


def test_replay_asks_for_a_confirmation(outbox: Local):
    outbox.run("bootstrap")
    assert "again with --yes" in outbox.run("replay", "--since", "beginning", code=6).stderr
