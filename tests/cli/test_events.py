"""
`cosmos-outbox events tail` and `replay` on live containers and a live topic.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import DatabaseProxy

from tests.cli.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def tail(outbox: Local, *arguments: str) -> list[dict[str, object]]:
    output = outbox.run("events", "tail", "--no-follow", "--since", "beginning", "--json", *arguments).stdout
    return [json.loads(line) for line in output.splitlines()]


def test_tail_prints_the_events_that_are_asked_for(outbox: Local):
    ids = outbox.commit("ada", "grace")
    assert set(ids) == {event["id"] for event in tail(outbox)}
    assert ids[:2] == [event["id"] for event in tail(outbox, "--key", "ada")]
    assert {"ContactNameUpdatedEvent"} == {
        event["action"] for event in tail(outbox, "--action", "ContactNameUpdatedEvent")
    }
    assert "" == outbox.run("events", "tail", "--no-follow").stdout
    line = outbox.run(
        "events", "tail", "--no-follow", "--since", "beginning", "--key", "ada"
    ).stdout.splitlines()[0]
    assert ids[0] in line


def test_replay_sends_the_same_messages_again_so_the_topic_drops_what_it_remembers(alone: Local):
    alone.commit("ada", "grace")
    alone.pass_all()
    assert {
        "dry_run": True,
        "events": 4,
        "left_out": 0,
        "left_to_workers": False,
        "refused": [],
        "resumed": False,
    } == alone.json("replay", "--since", "beginning", "--dry-run")
    assert 0 == alone.accepted
    assert 4 == alone.json("replay", "--since", "beginning", "--yes")["events"]
    assert 4 == alone.accepted
    assert 2 == alone.json("replay", "--since", "beginning", "--key", "ada", "--yes")["events"]
    assert 4 == alone.accepted, "message ids are the same, so the topic's duplicate detection drops them"


def test_replay_leaves_out_what_was_written_before_its_start(alone: Local):
    alone.commit("ada")
    alone.pass_all()
    alone.steer("/cosmos/clock", advance_s=60)
    since = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    assert 0 == alone.json("replay", "--since", since, "--dry-run")["events"]
    assert 2 == alone.json("replay", "--since", "beginning", "--dry-run")["events"]


def test_a_replay_of_what_is_not_written_yet_is_refused(outbox: Local):
    outbox.run("bootstrap")
    assert "'now'" in outbox.run("replay", "--since", "now", "--yes", code=1).stderr


def test_an_event_that_the_topic_refuses_holds_up_no_other_and_is_told(alone: Local):
    async def write(database):
        data = {"action": "Grown", "text": "x" * 300_000}
        event = {"id": "big", "partitionKey": "ada", "type": "domainEvent", "data": data}
        await database.get_container_client("data").create_item(event)

    alone.commit("ada")
    alone.on_database(write)
    alone.commit("ada-after", "grace")
    alone.pass_all()
    result = alone.json("replay", "--since", "beginning", "--yes", code=1)
    assert (6, [("ada", "big")]) == (
        result["events"], [(one["key"], one["event"]) for one in result["refused"]],
    )  # fmt: skip
    assert 6 == alone.accepted
    assert "'big'" in alone.run("replay", "--since", "beginning", "--yes", code=1).stdout


def test_replay_leaves_to_the_workers_what_they_have_not_sent_yet(outbox: Local):
    outbox.commit("ada")
    outbox.run("bootstrap")
    dry_run = ("replay", "--since", "beginning", "--dry-run")
    result = outbox.json(*dry_run)
    assert (0, True) == (result["events"], result["left_to_workers"]), "nothing is sent yet"
    assert "The workers are behind" in outbox.run(*dry_run).stdout
    outbox.pass_all()
    assert not outbox.json(*dry_run)["left_to_workers"]
    assert 2 == outbox.json("replay", "--since", "beginning", "--dry-run")["events"]


def test_a_processor_without_leases_is_not_taken_for_one_with_nothing_to_send(outbox: Local):
    outbox.commit("ada")
    outbox.pass_all()
    replay = ("replay", "--since", "beginning", "--dry-run")
    said = outbox.run(*replay, code=1, OUTBOX_PROCESSOR_NAME="outbocks").stderr
    assert "'outbocks' has no leases" in said
    assert 2 == outbox.json(*replay)["events"]


def test_replay_asks_first(outbox: Local):
    outbox.run("bootstrap")
    assert "repeat with --yes" in outbox.run("replay", "--since", "beginning", code=1).stderr


def test_an_interrupted_replay_goes_on_where_it_was(alone: Local, tmp_path):
    alone.commit(*(f"contact-{number}" for number in range(60)))
    alone.pass_all()
    state = tmp_path / "state.json"
    # One read gets all of the first range, and the next one is refused.
    alone.steer("/cosmos/faults", operation="changefeed", container="data", status=403, skip=1)
    alone.run("replay", "--since", "beginning", "--state", str(state), "--yes", code=1)
    first = alone.accepted
    assert 0 < first < 120
    alone.steer_delete("/cosmos/faults")
    again = alone.json("replay", "--since", "beginning", "--state", str(state), "--yes")
    assert (True, 120 - first) == (again["resumed"], again["events"])
    assert 120 == alone.accepted
    assert not state.exists()


def interrupted(outbox: Local, state: Path, **variables: str) -> dict[str, Any]:
    """
    Have a replay end after its first range; return what its state file holds.
    """
    outbox.commit(*map(str, range(8)))
    outbox.pass_all()
    outbox.steer("/cosmos/faults", operation="changefeed", container="data", status=403, skip=1)
    outbox.run("replay", "--since", "beginning", "--state", str(state), "--yes", code=1, **variables)
    outbox.steer_delete("/cosmos/faults")
    return dict(json.loads(state.read_text()))


OTHERS: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
    ("since 'beginning'", ("--since", "2026-01-01"), {}),
    ("key None", ("--key", "1"), {}),
    ("action None", ("--action", "Grown"), {}),
    ("topic 'events'", (), {"OUTBOX_TOPIC": "other"}),
    ("routes ''", (), {"OUTBOX_ROUTES": "entity:contact=other"}),
    ("namespace '127.0.0.1", (), {"OUTBOX_SERVICEBUS_CONNECTION_STRING": "Endpoint=sb://other/;a=b"}),
    ("outbox 'outbox", (), {"OUTBOX_COSMOS_CONTAINER": "data2"}),
    ("outbox 'outbox", (), {"OUTBOX_PROCESSOR_NAME": "two"}),
]


def test_the_state_of_another_replay_is_refused_and_kept(outbox: Local, tmp_path: Path):
    async def create(database: DatabaseProxy) -> None:
        await database.create_container("data2", PartitionKey("/partitionKey"), default_ttl=-1)

    outbox.on_database(create)
    state = tmp_path / "state.json"
    before = interrupted(outbox, state)
    replay = ("replay", "--since", "beginning", "--state", str(state), "--yes")
    for named, arguments, variables in OTHERS:
        outbox.run("bootstrap", **variables)
        said = outbox.run(*replay, *arguments, code=1, **variables).stderr
        assert f"another replay, with {named}" in said
    assert before == json.loads(state.read_text())
    assert outbox.json(*replay)["resumed"]


def test_a_file_that_is_no_state_is_refused(outbox: Local, tmp_path: Path):
    state = tmp_path / "state.json"
    asked = interrupted(outbox, state)["asked"]
    positions: list[object] = [[1], {"00-FF": 7}, {"zz-yy": None}, {"00": None}]
    for content in (
        "[1]",
        "nonsense",
        *(json.dumps({"asked": asked, "position": position}) for position in positions),
    ):
        state.write_text(content)
        result = outbox.run("replay", "--since", "beginning", "--state", str(state), "--yes", code=1)
        assert "no state of a replay" in result.stderr or "no range of keys" in result.stderr


@pytest.mark.parametrize("state", [".", "missing/state.json"])
def test_a_state_that_cannot_be_kept_ends_a_replay_before_anything_is_sent(
    outbox: Local, tmp_path, monkeypatch, state
):
    monkeypatch.chdir(tmp_path)
    outbox.commit("ada")
    outbox.pass_all()
    before = outbox.accepted
    assert (
        "directory" in outbox.run("replay", "--since", "beginning", "--state", state, "--yes", code=1).stderr
    )
    assert before == outbox.accepted
