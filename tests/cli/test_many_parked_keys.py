"""
Tests of commands for many parked keys: `parked list` groups them by cause, one `parked release` or `parked drop` takes them all, and
`parked purge` erases the payloads of dropped events.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmos_outbox.errors import KeyNotParked, ReleaseTakenOver, UsageError
from cosmos_outbox.parking import Failure, ParkedKey
from cosmos_outbox.parking.keys_by_cause import by_cause
from cosmos_outbox_worker.cli.many_parked_keys import Choice, StillParked, for_each
from tests.cli.test_parked import PARKED, park
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def key(name: str, error: str, *, held: int = 1) -> ParkedKey:
    failure = Failure(event_id="e", reason="MessageRejected", error=error, attempts=1)
    return ParkedKey(
        partition_key=name, partition=name, scope=None, epoch="e", parked_at="t", failure=failure, held=held
    )


def test_parked_list_groups_failures_that_differ_only_in_names_and_numbers():
    keys = [
        key("a", "Topic 'events' takes 262144 bytes, not 300000", held=2),
        key("b", "Topic 'other' takes 1 bytes, not 2"),
        key("c", "It is malformed"),
    ]
    first, second = by_cause(keys)
    assert (2, 3, "a") == (first.keys, first.held, first.example)
    assert (1, "MessageRejected: It is malformed") == (second.keys, second.error)
    assert ["a", "b"] == Choice(key=None, all=False, error=first.error, file=None).of(keys)
    assert ["c"] == Choice(key=None, all=False, error="malformed", file=None).of(keys)


@pytest.mark.parametrize(
    ("one", "every", "error"), [(None, False, None), ("a", True, None), (None, True, "malformed")]
)
def test_a_release_needs_exactly_one_option_that_chooses_the_keys(
    one: str | None, every: bool, error: str | None
):
    with pytest.raises(UsageError, match="--file"):
        Choice(key=one, all=every, error=error, file=None)


async def test_the_result_of_a_release_gives_a_code_for_each_key_that_stays_parked():
    """
    So a program can see whether the topic refused the key's event again, or another release is at work on the key.
    """
    failures = {
        "gone": KeyNotParked("gone"),
        "taken": ReleaseTakenOver("another runs"),
        "refused": StillParked("too large"),
    }

    async def act(one: str) -> int:
        raise failures[one]

    results = await for_each(list(failures), act, ceiling=None)
    assert 1 == results.gone
    assert [
        {"key": "taken", "code": "ReleaseTakenOver", "error": "another runs"},
        {"key": "refused", "code": "StillParked", "error": "too large"},
    ] == results.left


def test_one_command_releases_all_keys_that_were_parked_for_one_cause(alone: Local, tmp_path: Path):
    """An operator may run the command again: it only counts the keys that are no longer parked."""
    park(alone, "ada", "grace")
    (group,) = alone.json("parked", "list", "--by-error", **PARKED)["errors"]
    assert (2, 4) == (group["keys"], group["held"])
    assert "MessageRejected" in alone.run("parked", "list", "--by-error", **PARKED).stdout
    planned = alone.json("parked", "release", "--error", "MessageRejected", "--dry-run", **PARKED)
    assert {"ada", "grace"} == set(planned["keys"])
    none = alone.json("parked", "release", "--error", "no such", "--yes", code=5, **PARKED)["error"]
    assert "No key is parked with error 'no such'" in none["message"]
    done = alone.json("parked", "release", "--error", "MessageRejected", "--yes", **PARKED)
    assert {"released": 2, "events_sent": 4, "gone": 0, "left": []} == done
    file = tmp_path / "keys"
    file.write_text("ada\ngrace\n")
    again = alone.json("parked", "release", "--file", str(file), "--yes", **PARKED)
    assert {"released": 0, "events_sent": 0, "gone": 2, "left": []} == again


def test_a_key_that_stays_parked_does_not_stop_the_release_of_others(alone: Local):
    park(alone, "ada", "grace")
    alone.steer("/servicebus/faults", action="reject", condition="amqp:not-allowed", count=2)
    done = alone.json("parked", "release", "--all", "--yes", code=4, **PARKED)
    assert (1, 1) == (done["released"], len(done["left"]))
    assert "StillParked" == done["left"][0]["code"]
    assert done["left"][0]["error"]


def test_parked_drop_all_drops_the_failed_event_of_each_key(alone: Local):
    """
    The record of each dropped event has the reason and the operator's name, which are options of the command.
    """
    ids = park(alone, "ada", "grace")
    asked = ("parked", "drop", "--all", "--reason", "malformed since 2.3", "--as", "Grace H.")
    assert {"ada", "grace"} == set(alone.json(*asked, "--dry-run", **PARKED)["keys"])
    assert {"keys": 2, "events_dropped": 2, "gone": 0, "left": []} == alone.json(*asked, "--yes", **PARKED)
    shown = alone.json("parked", "show", "ada", **PARKED)
    (decision,) = next(one for one in shown["events"] if one["event"] == ids[0])["decisions"]
    assert ("Grace H.", "dropped", "malformed since 2.3") == (
        decision["by"],
        decision["did"],
        decision["reason"],
    )
    left = alone.json(*asked, "--yes", code=4, **PARKED)["left"]
    assert {"ada", "grace"} == {row["key"] for row in left}, (
        "they wait for a release now, for no event failed"
    )
    assert {"released": 2, "events_sent": 2, "gone": 0, "left": []} == alone.json(
        "parked", "release", "--all", "--yes", **PARKED
    )


def test_parked_purge_erases_the_payload_and_reason_of_a_dropped_event(alone: Local):
    """The record itself stays, so a replay still leaves out the dropped event."""
    ids = park(alone, "ada")
    alone.run("parked", "drop", "ada", ids[0], "--reason", "Ada Lovelace wants it", "--yes", **PARKED)
    held = alone.run("parked", "purge", "ada", ids[1], "--reason", "erasure 7", "--yes", code=2, **PARKED)
    assert "drop it" in held.stderr
    alone.run("parked", "purge", "ad", "--reason", "erasure 7", "--yes", code=5, **PARKED)
    alone.run("parked", "purge", "ada", "other", "--reason", "erasure 7", "--yes", code=5, **PARKED)
    purged = alone.json("parked", "purge", "ada", "--reason", "erasure 7", "--yes", **PARKED)
    assert [ids[0]] == purged["purged"]
    alone.run("parked", "release", "ada", "--yes", **PARKED)
    (record,) = alone.json("parked", "show", "ada", **PARKED)["events"]
    assert ("purged", None, None) == (record["status"], record["data"], record["note"])
    assert "Lovelace" not in str(record)
    assert [None, "erasure 7"] == [one["reason"] for one in record["decisions"]]
    assert [] == alone.json("parked", "purge", "ada", "--reason", "again", "--yes", **PARKED)["purged"]
    alone.pass_all()
    replayed = alone.json("replay", "--since", "beginning", "--dry-run", **PARKED)
    assert (1, 1) == (replayed["events"], replayed["left_out"])
