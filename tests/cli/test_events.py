"""
`cosmos-outbox events tail` and `replay` on live containers and a live topic.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

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
    assert {"dry_run": True, "events": 4, "left_out": 0, "refused": [], "resumed": False} == alone.json(
        "replay", "--since", "beginning", "--dry-run"
    )
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


@pytest.mark.parametrize("since", ["now", "2099-01-01T00:00:00Z"])
def test_a_replay_of_what_is_not_written_yet_is_refused(outbox: Local, since):
    assert since in outbox.run("replay", "--since", since, "--yes", code=1).stderr


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
    assert 0 == outbox.json("replay", "--since", "beginning", "--dry-run")["events"], "there are no leases"
    outbox.run("bootstrap")
    assert 0 == outbox.json("replay", "--since", "beginning", "--dry-run")["events"], "nothing is sent yet"
    outbox.pass_all()
    assert 2 == outbox.json("replay", "--since", "beginning", "--dry-run")["events"]


def test_replay_asks_first(outbox: Local):
    assert "repeat with --yes" in outbox.run("replay", "--since", "beginning", code=1).stderr


def test_an_interrupted_replay_goes_on_where_it_was(alone: Local, tmp_path):
    alone.commit(*(f"contact-{number}" for number in range(60)))
    alone.pass_all()
    state = tmp_path / "state.json"
    # Two reads ask the ranges for their ids, one gets all of the first range, and the next one is refused.
    alone.steer("/cosmos/faults", operation="changefeed", container="data", status=403, skip=3)
    alone.run("replay", "--since", "beginning", "--state", str(state), "--yes", code=1)
    first = alone.accepted
    assert 0 < first < 120
    alone.steer_delete("/cosmos/faults")
    again = alone.json("replay", "--since", "beginning", "--state", str(state), "--yes")
    assert (True, 120 - first) == (again["resumed"], again["events"])
    assert 120 == alone.accepted
    assert not state.exists()


def test_the_state_of_another_replay_is_refused(outbox: Local, tmp_path):
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"asked": {"since": "now"}, "position": {}}))
    assert (
        "another replay"
        in outbox.run("replay", "--since", "beginning", "--state", str(state), "--yes", code=1).stderr
    )


@pytest.mark.parametrize("position", [[1], {"00-FF": 7}, {"zz-yy": None}, {"00": None}])
def test_a_file_that_is_no_state_is_refused(outbox: Local, tmp_path, position):
    state = tmp_path / "state.json"
    asked = {"since": "beginning", "key": None, "action": None}
    for content in ("[1]", "nonsense", json.dumps({"asked": asked, "position": position})):
        state.write_text(content)
        result = outbox.run("replay", "--since", "beginning", "--state", str(state), "--yes", code=1)
        assert "state" in result.stderr


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
