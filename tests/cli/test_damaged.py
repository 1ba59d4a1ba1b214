"""
Damage: a lease or parked key that cannot be read is named with its mistake, and the others are shown all the same.
"""

from __future__ import annotations

from typing import Any

import pytest
from azure.cosmos.aio import ContainerProxy, DatabaseProxy

from cosmos_outbox.changefeed.position import AHEAD
from cosmos_outbox.parking import Scope
from tests.cli.test_parked import PARKED, park
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]

MISTAKE = "not an object of strings: {'a': 1}"


def damage(outbox: Local, lease: str = "0", **changes: Any) -> None:
    """Change fields of one lease document; by default, so that no worker can read it."""

    async def change(leases: ContainerProxy) -> None:
        async for item in leases.read_all_items():
            if item.get("LeaseToken") == lease:
                await leases.replace_item(item["id"], item | (changes or {"properties": {"a": 1}}))

    outbox.on_leases(change)


def plant(outbox: Local, token: str, low: str, high: str, **changes: Any) -> None:
    """Create a lease beside those of token 0."""

    async def create(leases: ContainerProxy) -> None:
        (lease,) = [item async for item in leases.read_all_items() if item.get("LeaseToken") == "0"]
        name = lease["id"].removesuffix("0") + token
        feed_range = {"Range": {"min": low, "max": high}}
        await leases.create_item(lease | {"id": name, "LeaseToken": token, "FeedRange": feed_range} | changes)

    outbox.on_leases(create)


@pytest.fixture
def damaged(outbox: Local) -> Local:
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    damage(outbox)
    return outbox


def test_a_damaged_lease_is_listed_with_its_mistake_beside_the_others(damaged: Local) -> None:
    first, second = damaged.json("status", code=2)["leases"]
    assert ("0", "damaged", "worker-1") == (first["range"], first["state"], first["owner"])
    assert MISTAKE in first["error"]
    assert ("1", "owned", None) == (second["range"], second["state"], second["error"])
    text = damaged.run("status", code=2).stdout
    assert "damaged" in text
    assert MISTAKE in text


def test_status_shows_what_can_be_read_and_what_cannot(damaged: Local) -> None:
    damaged.commit(*map(str, range(8)))
    seen = damaged.json("status", code=2)
    first, second = seen["leases"]
    assert ("damaged", None) == (first["state"], first["waiting"])
    assert seen["waiting"] == second["waiting"] > 0
    assert [MISTAKE in mistake for mistake in seen["errors"]] == [True]
    assert ["worker-1"] == seen["workers"]
    text = damaged.run("status", code=2).stdout
    assert MISTAKE in text
    assert f"waiting {second['waiting']}" in text


def test_doctor_names_a_damaged_lease_once_and_how_to_mend_it(damaged: Local) -> None:
    findings = damaged.json("doctor", code=2)["findings"]
    assert [("error", "damaged-lease")] == [(one["severity"], one["check"]) for one in findings]
    assert MISTAKE in findings[0]["message"]
    assert "delete the document" in findings[0]["fix"]


def test_doctor_claims_no_gap_where_a_damaged_lease_does_not_say_what_it_covers(damaged: Local) -> None:
    damage(damaged, FeedRange=None)
    assert "leases" not in [one["check"] for one in damaged.json("doctor", code=2)["findings"]]


def test_a_damaged_lease_that_is_deleted_is_created_again_where_the_first_leases_began(outbox: Local) -> None:
    outbox.run("bootstrap")
    outbox.commit("ada", "grace")
    outbox.pass_all()
    damage(outbox)

    async def delete(leases: ContainerProxy) -> None:
        (lease,) = [item async for item in leases.read_all_items() if item.get("LeaseToken") == "0"]
        await leases.delete_item(lease["id"], lease["id"])

    outbox.on_leases(delete)
    assert [True, False] == [lease["created"] for lease in outbox.rows("bootstrap")]
    first, second = outbox.json("status")["leases"]
    assert ("beginning", None) == (first["start"], first["continuation"])
    assert second["continuation"] is not None


@pytest.mark.parametrize(
    "arguments", [("leases", "reset", "--to", "now"), ("bootstrap",), ("replay", "--since", "beginning")]
)
def test_what_needs_all_leases_names_the_damaged_one_before_anybody_is_asked(
    damaged: Local, arguments: tuple[str, ...]
) -> None:
    damage(damaged, Owner=None)
    damage(damaged, "1", Owner=None)
    assert MISTAKE in damaged.run(*arguments, code=2).stderr


def test_a_lease_of_a_stranger_with_keys_of_another_is_an_error(outbox: Local) -> None:
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    plant(outbox, "stranger", "1", "3")
    findings = [one for one in outbox.json("doctor", code=2)["findings"] if one["severity"] == "error"]
    assert ["overlapping-leases"] * 2 == [one["check"] for one in findings]
    # Leases are listed in no order.
    named = [one["message"].removeprefix("Leases ").partition(" have")[0] for one in findings]
    assert [["0", "stranger"], ["1", "stranger"]] == sorted(sorted(pair.split(" and ")) for pair in named)


def test_a_split_that_no_worker_finishes_is_a_warning_and_one_in_progress_is_nothing(outbox: Local) -> None:
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    plant(outbox, "2", "", "1")
    assert [] == outbox.json("doctor")["findings"]
    damage(outbox, Owner=None)
    checks = [one["check"] for one in outbox.json("doctor", code=1)["findings"]]
    assert ["overlapping-leases", "owners"] == checks


def tamper(outbox: Local, partition_key: str, document_id: str, **changes: Any) -> None:
    """Change fields of a document in the parked container."""

    async def change(database: DatabaseProxy) -> None:
        container = database.get_container_client("parked")
        events = await database.get_container_client("data").read()
        scope = Scope(processor="outbox", container=str(events["_rid"]))
        item = await container.read_item(document_id, scope.partition_of(partition_key))
        await container.replace_item(document_id, dict(item) | changes)

    outbox.on_database(change)


def test_a_parked_key_that_cannot_be_read_is_named_behind_the_others(outbox: Local) -> None:
    ids = park(outbox, "ada", "grace")
    tamper(outbox, "ada", "outbox.key", state="quarantined")
    first, second = outbox.rows("parked", "list", code=2, **PARKED)
    assert first.keys() == second.keys()
    assert ("grace", "parked", 2) == (first["key"], first["state"], first["held"])
    assert ("ada", "unreadable", None) == (second["key"], second["state"], second["held"])
    assert "quarantined" in second["error"]
    assert "unreadable" in outbox.run("parked", "list", code=2, **PARKED).stdout
    seen = outbox.json("status", code=2, **PARKED)
    assert (2, None) == (seen["parked_keys"], seen["parked_events"])
    assert ["quarantined" in mistake for mistake in seen["errors"]] == [True]
    outbox.pass_all()
    assert 4 == outbox.json("replay", "--since", "beginning", "--dry-run", **PARKED)["left_out"]
    tamper(outbox, "ada", f"event.{ids[1]}", status="lost")
    assert "'lost'" in outbox.run("replay", "--since", "beginning", "--dry-run", code=2, **PARKED).stderr


def test_an_event_that_cannot_be_read_hides_no_other_and_holds_its_key(alone: Local) -> None:
    ids = park(alone, "ada", "grace")
    tamper(alone, "ada", f"event.{ids[1]}", status="lost")
    shown = alone.json("parked", "show", "ada", code=2, **PARKED)
    assert ("parked", 2) == (shown["state"], shown["held"])
    whole, damaged = shown["events"]
    assert whole.keys() == damaged.keys()
    assert ((ids[0], "held"), (ids[1], "unreadable")) == (
        (whole["event"], whole["status"]), (damaged["event"], damaged["status"]),
    )  # fmt: skip
    assert "'lost'" in damaged["note"]
    assert "'lost'" in alone.run("parked", "show", "ada", code=2, **PARKED).stdout
    assert "'lost'" in alone.run("parked", "drop", "ada", ids[1], "--reason", "a test", "--yes", code=2, **PARKED).stdout  # fmt: skip
    assert alone.json("parked", "drop", "ada", ids[0], "--reason", "a test", "--yes", **PARKED)[
        "events_dropped"
    ]
    assert 0 == alone.accepted
    tamper(alone, "ada", f"event.{ids[1]}", status="held")
    assert 1 == alone.json("parked", "release", "ada", "--yes", **PARKED)["events_sent"]


def test_a_record_of_an_earlier_time_that_cannot_be_read_holds_nothing_up(alone: Local) -> None:
    ids = park(alone, "ada")
    alone.run("parked", "drop", "ada", ids[0], "--reason", "a test", "--yes", **PARKED)
    alone.run("parked", "release", "ada", "--yes", **PARKED)
    park(alone)  # what was sent comes again, as from leases that were reset, and is refused
    tamper(alone, "ada", f"event.{ids[0]}", status="lost")
    assert ["held", "unreadable"] == [
        event["status"] for event in alone.json("parked", "show", "ada", code=2, **PARKED)["events"]
    ]
    assert 1 == alone.json("parked", "release", "ada", "--yes", **PARKED)["events_sent"]
    shown = alone.json("parked", "show", "ada", code=2, **PARKED)
    assert ("released", ["unreadable"]) == (shown["state"], [event["status"] for event in shown["events"]])


def test_doctor_names_parked_keys_that_cannot_be_read(outbox: Local) -> None:
    park(outbox, "ada", "grace")
    doctor = {"OUTBOX_TOPIC": "", **PARKED}
    outbox.run("bootstrap")
    damaged = ("error", "damaged-parked-key")
    assert damaged not in [(one["severity"], one["check"]) for one in outbox.json("doctor", code=2, **doctor)["findings"]]  # fmt: skip
    tamper(outbox, "ada", "outbox.key", state="quarantined")
    (found,) = [one for one in outbox.json("doctor", code=2, **doctor)["findings"] if one["check"] == damaged[1]]  # fmt: skip
    assert "'outbox.key' of partition key 'ada'" in found["message"]


def test_times_are_shown_to_the_second_in_utc_and_are_exact_for_programs(outbox: Local) -> None:
    park(outbox, "ada")
    outbox.run("bootstrap", "--start", "2026-11-21T08:00:00.5+02:00")
    assert "2026-11-21 06:00:00 UTC" in outbox.run("status").stdout
    assert {"2026-11-21T06:00:00.500000Z"} == {one["start"] for one in outbox.json("status")["leases"]}
    (row,) = outbox.rows("parked", "list", **PARKED)
    shown = row["parked_at"][:19].replace("T", " ") + " UTC"
    assert shown in outbox.run("parked", "list", **PARKED).stdout
    assert 3 == outbox.run("parked", "show", "ada", **PARKED).stdout.count(shown[:13])


def test_a_lease_that_lies_ahead_of_its_range_is_an_error_until_it_is_set_back(outbox: Local) -> None:
    outbox.run("bootstrap")
    outbox.commit("ada", "grace")
    damage(outbox, ContinuationToken='"5000"', properties={"start": "beginning", AHEAD: "1"})
    seen = outbox.json("status", code=2)
    assert any('stands at "5000"' in mistake for mistake in seen["errors"])
    findings = outbox.json("doctor", code=2)["findings"]
    (finding,) = [one for one in findings if one["check"] == "position-ahead"]
    assert ("error", True) == (finding["severity"], "leases reset --to" in finding["fix"])
    # Also where nothing was marked yet, and where nothing but the mark tells of it.
    damage(outbox, ContinuationToken='"5000"', properties={"start": "beginning"})
    assert outbox.json("status", code=2)["errors"]
    damage(outbox, ContinuationToken='"0"', properties={"start": "beginning", AHEAD: "1"})
    assert outbox.json("status", code=2)["errors"]
    outbox.run("leases", "reset", "--to", "beginning", "--yes")
    assert [] == outbox.json("status")["errors"]
