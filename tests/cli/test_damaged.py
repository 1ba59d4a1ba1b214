"""
Tests of commands that meet an unreadable lease or parked key: they say what is wrong with it, and still show all other leases and keys.
"""

from __future__ import annotations

from typing import Any

import pytest
from azure.cosmos.aio import ContainerProxy, DatabaseProxy

from cosmos_outbox.changefeed.lease_ahead import AHEAD
from cosmos_outbox.parking import Scope
from tests.cli.test_parked import PARKED, park
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]

MISTAKE = "not an object of strings: {'a': 1}"


def damage(outbox: Local, lease: str = "0", **changes: Any) -> None:
    """Change fields of one lease document. Without `changes`, make the lease unreadable for workers."""

    async def change(leases: ContainerProxy) -> None:
        async for item in leases.read_all_items():
            if item.get("LeaseToken") == lease:
                await leases.replace_item(item["id"], item | (changes or {"properties": {"a": 1}}))

    outbox.on_leases(change)


@pytest.fixture
def damaged(outbox: Local) -> Local:
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    damage(outbox)
    return outbox


def test_status_shows_the_readable_leases_and_the_mistake_of_a_damaged_lease(damaged: Local) -> None:
    damaged.commit(*map(str, range(8)))
    seen = damaged.json("status", code=4)
    first, second = seen["leases"]
    assert ("damaged", None) == (first["state"], first["waiting"])
    assert seen["waiting"] == second["waiting"] > 0
    assert [MISTAKE in mistake for mistake in seen["errors"]] == [True]
    assert ["worker-1"] == seen["workers"]
    text = damaged.run("status", code=4).stdout
    assert MISTAKE in text
    assert f"waiting {second['waiting']}" in text


def test_doctor_names_a_damaged_lease_and_how_to_repair_it(damaged: Local) -> None:
    findings = damaged.json("doctor", code=4)["findings"]
    assert [("error", "damaged-lease")] == [(one["severity"], one["check"]) for one in findings]
    assert MISTAKE in findings[0]["message"]
    assert "delete the document" in findings[0]["fix"]


@pytest.mark.parametrize(
    "arguments", [("leases", "reset", "--to", "now"), ("bootstrap",), ("replay", "--since", "beginning")]
)
def test_a_damaged_lease_is_refused_before_the_operator_is_asked_to_confirm(
    damaged: Local, arguments: tuple[str, ...]
) -> None:
    """
    A command that needs all leases names the damaged lease in its error, and asks for no confirmation first.
    """
    damage(damaged, Owner=None)
    damage(damaged, "1", Owner=None)
    assert MISTAKE in damaged.run(*arguments, code=2).stderr


def tamper(outbox: Local, partition_key: str, document_id: str, **changes: Any) -> None:
    """Change fields of a document in the parked container."""

    async def change(database: DatabaseProxy) -> None:
        container = database.get_container_client("parked")
        events = await database.get_container_client("data").read()
        scope = Scope(processor="outbox", container=str(events["_rid"]))
        item = await container.read_item(document_id, scope.partition_of(partition_key))
        await container.replace_item(document_id, dict(item) | changes)

    outbox.on_database(change)


def test_parked_list_shows_an_unreadable_key_after_the_other_keys(outbox: Local) -> None:
    ids = park(outbox, "ada", "grace")
    tamper(outbox, "ada", "outbox.key", state="quarantined")
    first, second = outbox.rows("parked", "list", code=4, **PARKED)
    assert first.keys() == second.keys()
    assert ("grace", "parked", 2) == (first["key"], first["state"], first["held"])
    assert ("ada", "unreadable", None) == (second["key"], second["state"], second["held"])
    assert "quarantined" in second["error"]
    assert "unreadable" in outbox.run("parked", "list", code=4, **PARKED).stdout
    seen = outbox.json("status", code=4, **PARKED)
    assert (2, None) == (seen["parked_keys"], seen["parked_events"])
    assert ["quarantined" in mistake for mistake in seen["errors"]] == [True]
    outbox.pass_all()
    assert 4 == outbox.json("replay", "--since", "beginning", "--dry-run", **PARKED)["left_out"]
    tamper(outbox, "ada", f"event.{ids[1]}", status="lost")
    assert "'lost'" in outbox.run("replay", "--since", "beginning", "--dry-run", code=4, **PARKED).stderr


def test_an_unreadable_parked_event_does_not_hide_the_key_s_other_events(alone: Local) -> None:
    """`parked show` shows the other events of the key. The key stays parked while an event is unreadable."""
    ids = park(alone, "ada", "grace")
    tamper(alone, "ada", f"event.{ids[1]}", status="lost")
    shown = alone.json("parked", "show", "ada", code=4, **PARKED)
    assert ("parked", 2) == (shown["state"], shown["held"])
    whole, damaged = shown["events"]
    assert whole.keys() == damaged.keys()
    assert ((ids[0], "held"), (ids[1], "unreadable")) == (
        (whole["event"], whole["status"]), (damaged["event"], damaged["status"]),
    )  # fmt: skip
    assert "'lost'" in damaged["note"]
    assert "'lost'" in alone.run("parked", "show", "ada", code=4, **PARKED).stdout
    assert "'lost'" in alone.run("parked", "drop", "ada", ids[1], "--reason", "a test", "--yes", code=4, **PARKED).stdout  # fmt: skip
    assert alone.json("parked", "drop", "ada", ids[0], "--reason", "a test", "--yes", **PARKED)[
        "events_dropped"
    ]
    assert 0 == alone.accepted
    tamper(alone, "ada", f"event.{ids[1]}", status="held")
    assert 1 == alone.json("parked", "release", "ada", "--yes", **PARKED)["events_sent"]


def test_status_reports_a_position_ahead_of_its_range_until_a_reset(outbox: Local) -> None:
    outbox.run("bootstrap")
    outbox.commit("ada", "grace")
    damage(outbox, ContinuationToken='"5000"', properties={"start": "beginning", AHEAD: "1"})
    seen = outbox.json("status", code=4)
    assert any('stands at "5000"' in mistake for mistake in seen["errors"])
    findings = outbox.json("doctor", code=4)["findings"]
    (finding,) = [one for one in findings if one["check"] == "position-ahead"]
    assert ("error", True) == (finding["severity"], "leases reset --to" in finding["fix"])
    # `status` reports a position ahead of the range even before a worker has marked the lease with AHEAD. It also reports a lease with
    # AHEAD whose position looks right.
    damage(outbox, ContinuationToken='"5000"', properties={"start": "beginning"})
    assert outbox.json("status", code=4)["errors"]
    damage(outbox, ContinuationToken='"0"', properties={"start": "beginning", AHEAD: "1"})
    assert outbox.json("status", code=4)["errors"]
    outbox.run("leases", "reset", "--to", "beginning", "--yes")
    assert [] == outbox.json("status")["errors"]
