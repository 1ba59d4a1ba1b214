"""Tests of `cosmos-outbox bootstrap`, `status` and `leases …` on emulators."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.cosmos.aio import DatabaseProxy

from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.parking import Scope
from cosmos_outbox.parking.seen_leases_note import note_first_run
from cosmos_outbox_worker.causes import cause_of
from cosmos_outbox_worker.heartbeats import Fleet, Heartbeat
from tests.cli.test_parked import PARKED
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_bootstrap_creates_a_lease_for_every_range_once(outbox: Local):
    assert [{"range": "0", "created": True}, {"range": "1", "created": True}] == outbox.rows("bootstrap")
    assert [False, False] == [lease["created"] for lease in outbox.rows("bootstrap")]


def test_status_shows_the_lag_and_the_owner_of_each_lease(outbox: Local):
    empty = outbox.json("status")
    assert ([], 0, None) == (empty["leases"], empty["waiting"], empty["oldest_age_seconds"])
    outbox.run("bootstrap")
    outbox.commit("ada", "grace", "alan", "edsger")
    seen = outbox.json("status")
    assert 8 == seen["waiting"] == sum(lease["waiting"] for lease in seen["leases"])
    assert seen["oldest_age_seconds"] >= 0
    assert {"free"} == {lease["state"] for lease in seen["leases"]}
    outbox.own_leases("worker-7")
    seen = outbox.json("status")
    assert (["worker-7"], {"owned"}) == (seen["workers"], {lease["state"] for lease in seen["leases"]})
    text = outbox.run("status").stdout
    assert "workers 1, waiting 8" in text
    assert "worker-7" in text


def test_status_does_not_count_the_owner_of_an_expired_lease_as_a_worker(alone: Local):
    alone.run("bootstrap")
    alone.own_leases("worker-7")
    alone.steer("/cosmos/clock", advance_s=120)
    seen = alone.json("status")
    assert ([], {("expired", "worker-7")}) == (
        seen["workers"],
        {(lease["state"], lease["owner"]) for lease in seen["leases"]},
    )


def test_status_and_doctor_show_workers_without_a_lease(outbox: Local):
    outbox.run("bootstrap")
    beat = Heartbeat(worker="worker-8", every=timedelta(seconds=15), phase="running")
    away = cause_of("StoreUnavailable: The leases could not be listed.", unready=True)
    unwell = replace(beat, worker="worker-9", unready=(str(away),), causes=(away,))

    async def write(container):
        fleet = Fleet(CosmosLeases(container), processor="outbox", container=f"{outbox.database}/data")
        await fleet.beat(beat)
        await fleet.beat(unwell)

    outbox.on_leases(write)
    seen = outbox.json("status", code=4)
    assert [str(away)] == seen["errors"]
    assert {"worker-8": "stand-by", "worker-9": "not ready"} == {
        one["worker"]: one["state"] for one in seen["heartbeats"]
    }
    assert [] == seen["workers"]
    shown = outbox.run("status", code=4).stdout
    assert shown.startswith(f"{away} Wait: it goes on by itself."), "the cause comes first"
    assert "Worker worker-9: not ready, seen" in shown
    findings = [one for one in outbox.json("doctor", code=None)["findings"] if one["check"] == "standstill"]
    assert [str(away)] == [one["message"] for one in findings]


CONTESTED = "Live workers take leases from each other: 1 came back to"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alarms": ("Processor 'typo' (workers: b) sends the same.",)}, "Processor 'typo' (workers: b) sends the same."),
        ({"alarms": (f"{CONTESTED} a. So.",)}, f"{CONTESTED} a. So."),
        ({"alarms": (f"{CONTESTED} a. So.",), "settings": {"start": "now"}}, "The workers differ in OUTBOX_START: beginning (b), now (a)."),
    ],
    ids=["a second processor", "a contest", "a contest for what they differ in"],
)  # fmt: skip
def test_status_names_a_problem_of_the_whole_fleet_once(outbox: Local, changes: dict[str, Any], said: str):
    outbox.run("bootstrap")
    beat = Heartbeat(worker="a", every=timedelta(seconds=15), phase="running", **changes)
    other = replace(beat, worker="b", settings={"start": "beginning"} if "settings" in changes else {})
    if said.startswith(CONTESTED):
        other = replace(other, alarms=(f"{CONTESTED} b. So.",))

    async def write(container):
        fleet = Fleet(CosmosLeases(container), processor="outbox", container=f"{outbox.database}/data")
        await fleet.beat(beat)
        await fleet.beat(other)

    outbox.on_leases(write)
    assert [said] == outbox.json("status", code=4)["errors"]


def starts(outbox: Local) -> set[tuple[object, object]]:
    return {(lease["start"], lease["continuation"]) for lease in outbox.json("status")["leases"]}


@pytest.mark.parametrize("arguments", [("leases", "reset", "--yes", "--to"), ("bootstrap", "--start")])
def test_the_service_s_clock_decides_whether_a_start_time_is_in_the_future(alone: Local, arguments):
    soon = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    if "bootstrap" not in arguments:
        alone.run("bootstrap")
    alone.run(*arguments, soon, code=2)
    alone.steer("/cosmos/clock", advance_s=120)
    alone.run(*arguments, soon)
    assert {(soon[:19], None)} == {(str(start)[:19], position) for start, position in starts(alone)}


def test_reset_replaces_the_position_of_all_leases_by_a_start_time(outbox: Local):
    outbox.run("bootstrap")
    outbox.run("leases", "reset", "--to", "2026-11-21T08:00:00Z", "--yes")
    assert {("2026-11-21T08:00:00.000000Z", None)} == starts(outbox)
    outbox.run("leases", "reset", "--to", "beginning", "--yes")
    assert {("beginning", None)} == starts(outbox)
    outbox.run("leases", "reset", "--to", "now", "--yes")
    ((moment, _),) = starts(outbox)
    assert datetime.fromisoformat(str(moment))


def test_a_dry_run_of_reset_changes_nothing(outbox: Local):
    outbox.run("bootstrap")
    before = starts(outbox)
    assert outbox.json("leases", "reset", "--to", "now", "--dry-run")["dry_run"]
    assert before == starts(outbox)


def test_reset_refuses_a_start_time_that_it_cannot_read(outbox: Local):
    assert "'yesterday'" in outbox.run("leases", "reset", "--to", "yesterday", "--yes", code=2).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("leases", "reset", "--yes", "--to"),
        ("bootstrap", "--start"),
        ("replay", "--yes", "--since"),
    ],
)
def test_reset_refuses_a_start_in_the_future_or_before_cosmos_db_existed(outbox: Local, arguments):
    if "bootstrap" not in arguments:
        outbox.run("bootstrap")
    before = starts(outbox)
    for moment in ("2099-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"):
        assert f"{moment[:10]}T" in outbox.run(*arguments, moment, code=2).stderr
    said = outbox.run(*arguments, "0001-01-01T00:00:00+14:00", code=2).stderr
    assert "give 'beginning'" in said
    assert before == starts(outbox)


def test_reset_refuses_leases_that_a_worker_owns(outbox: Local):
    outbox.run("bootstrap")
    outbox.own_leases("worker-7")
    assert "worker-7" in outbox.run("leases", "reset", "--to", "beginning", "--yes", code=2).stderr
    assert {"worker-7"} == {lease["owner"] for lease in outbox.json("status")["leases"]}


def test_leases_reset_accepts_leases_whose_owner_no_longer_renews_them(alone: Local):
    alone.run("bootstrap")
    alone.own_leases("worker-7")
    alone.steer("/cosmos/clock", advance_s=61)
    alone.run("leases", "reset", "--to", "beginning", "--yes")
    assert {None} == {lease["owner"] for lease in alone.json("status")["leases"]}


def test_reset_changes_nothing_without_a_confirmation(outbox: Local):
    outbox.run("bootstrap")
    before = starts(outbox)
    assert "again with --yes" in outbox.run("leases", "reset", "--to", "now", code=6).stderr
    assert before == starts(outbox)


def test_status_names_a_missing_container_and_ends_with_exit_code_2(outbox: Local):
    assert "'nowhere'" in outbox.run("status", code=2, OUTBOX_COSMOS_CONTAINER="nowhere").stderr
    assert "'nowhere'" in outbox.run("status", code=2, OUTBOX_LEASE_CONTAINER="nowhere").stderr
    assert "of database 'nowhere'" in outbox.run("status", code=2, OUTBOX_COSMOS_DATABASE="nowhere").stderr
    without = outbox.json("status", code=4, OUTBOX_PARKED_CONTAINER="nowhere")
    assert "'nowhere'" in without["errors"][0]
    assert 0 == without["waiting"], "the rest is known"


ASKED_OF_A_PROCESSOR = (
    "status",
    "where ada",
    "parked list",
    "parked release --all --yes",
    "parked release ada --yes",
    "parked drop --all --reason x --yes",
    "parked park ada --reason x --yes",
    "replay --since beginning --dry-run",
    "leases reset --to beginning --dry-run",
)


def test_commands_refuse_the_name_of_a_processor_without_leases(outbox: Local):
    """
    The name may be misspelt. Before the first processor has leases, no name is refused, and a processor with parked keys is never
    refused.
    """
    misspelled = {"OUTBOX_PROCESSOR_NAME": "outbocks", **PARKED}
    outbox.commit("ada")
    for command in ("status", "where ada", "parked list"):
        outbox.run(*command.split(), **misspelled)
    outbox.run("bootstrap")
    for command in ASKED_OF_A_PROCESSOR:
        said = outbox.json(*command.split(), code=5, **misspelled)["error"]["message"]
        assert "'outbocks' has no leases" in said, command
        assert "These have leases: outbox. Set OUTBOX_PROCESSOR_NAME" in said, command
    found = outbox.json("doctor", code=5, **misspelled)["findings"]
    assert [("error", "processor-name"), ("note", "other-processors")] == [
        (one["severity"], one["check"]) for one in found
    ]
    outbox.run("doctor", code=4, **misspelled | {"OUTBOX_TOPIC": ""})
    outbox.run("bootstrap", **misspelled)
    outbox.run(*ASKED_OF_A_PROCESSOR[6].split(), **misspelled)

    async def delete(leases: Any) -> None:
        for item in [item async for item in leases.read_all_items()]:
            if item["id"].startswith("outbocks"):
                await leases.delete_item(item["id"], item["id"])

    outbox.on_leases(delete)
    assert ["ada"] == [row["key"] for row in outbox.rows("parked", "list", **misspelled)]
    outbox.run("parked", "release", "ada", "--yes", **misspelled)
    outbox.run("parked", "list", code=5, **misspelled)

    async def note(database: DatabaseProxy) -> None:
        data, parked = map(database.get_container_client, ("data", "parked"))
        rid = (await CosmosChangeFeed(data, account_host="localhost").describe()).container_rid
        await note_first_run(CosmosParked(parked), Scope(processor="outbocks", container=rid))

    outbox.on_database(note)
    assert [] == outbox.rows("parked", "list", **misspelled), "there may be records of its events"


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--expiration"),
        ("replay", "--since", "beginning", "--rate"),
    ],
)
def test_options_of_commands_refuse_an_infinite_or_too_large_number(outbox: Local, arguments, seconds):
    assert arguments[-1] in outbox.run(*arguments, seconds, code=2).stderr
