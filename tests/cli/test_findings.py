"""
The rules of `cosmos-outbox doctor`: every misconfiguration, planted alone, gives its finding and no other.

Those of topics and subscriptions are planted in tests/unit/adapters/test_service_bus_preflight.py.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Literal

import pytest

from cosmos_outbox.adapters.servicebus.preflight import Inspection, Miss
from cosmos_outbox.cli.doctor.coverage import Overlap
from cosmos_outbox.cli.doctor.rules import (
    ContainerDescription,
    LeaseDescription,
    Resources,
    Severity,
    findings_in,
    unopened,
)
from cosmos_outbox.errors import AccessDenied
from cosmos_outbox.service.fleet import Heartbeat
from cosmos_outbox.service.vitals import ParkedSeen

BEAT = Heartbeat(worker="w", every=timedelta(seconds=15), phase="running")


@pytest.mark.parametrize(
    ("refused_by", "fix"),
    [("credential", "OUTBOX_COSMOS_CONNECTION_STRING"), ("roles", "Assign"), ("firewall", "firewall")],
)
def test_an_account_that_says_who_refuses_gets_that_fix_alone(
    refused_by: Literal["credential", "roles", "firewall"], fix: str
):
    found = unopened(AccessDenied("Why.", refused_by=refused_by))
    assert (Severity.ERROR, "account") == (found.severity, found.check)
    assert "Why." in found.message
    assert fix in found.fix
    assert "Or:" not in found.fix


DATA = ContainerDescription(name="data", partition_key=("/partitionKey",), default_ttl=-1)
LEASES = ContainerDescription(name="leases", partition_key=("/id",), default_ttl=-1)
PARKED = ContainerDescription(name="parked", partition_key=("/partitionKey",))


def lease(name: str, *, worked_on: bool = True, transactions: int = 0) -> LeaseDescription:
    return LeaseDescription(token=name, worked_on=worked_on, transactions=transactions)


HEALTHY = Resources(
    data=DATA,
    lease_container=LEASES,
    parked=PARKED,
    leases=(lease("0"), lease("1")),
    clock_skew=timedelta(seconds=1),
)


GRAVE = Miss(check="sessions", message="It is bad.", fix="Mend it.")


PLANTED = {
    "data container missing": ({"data": replace(DATA, exists=False)}, "data-container", "error"),
    "data container unreadable": ({"data": replace(DATA, error="403")}, "data-container", "error"),
    "data on another key": ({"data": replace(DATA, partition_key=("/id",))}, "data-container", "error"),
    "data without TTL": ({"data": replace(DATA, default_ttl=None)}, "data-ttl", "error"),
    "data with a default TTL": ({"data": replace(DATA, default_ttl=60)}, "data-ttl", "warning"),
    "lease container missing": (
        {"lease_container": replace(LEASES, exists=False)},
        "lease-container",
        "error",
    ),
    "leases on another key": (
        {"lease_container": replace(LEASES, partition_key=("/pk",))},
        "lease-container",
        "error",
    ),
    "leases without TTL": ({"lease_container": replace(LEASES, default_ttl=None)}, "lease-ttl", "warning"),
    "leases that expire": ({"lease_container": replace(LEASES, default_ttl=600)}, "lease-ttl", "error"),
    "parked container missing": ({"parked": replace(PARKED, exists=False)}, "parked-container", "error"),
    "parked on another key": (
        {"parked": replace(PARKED, partition_key=("/id",))},
        "parked-container",
        "error",
    ),
    "parked events that expire": ({"parked": replace(PARKED, default_ttl=60)}, "parked-ttl", "error"),
    "no right to delete leases": ({"denied": (("delete leases", "403"),)}, "permissions", "error"),
    "no right to create leases": ({"denied": (("create leases", "403"),)}, "permissions", "error"),
    "no right to replace leases": ({"denied": (("replace leases", "403"),)}, "permissions", "error"),
    "no right to read leases": ({"denied": (("read leases", "403"),)}, "permissions", "error"),
    "no right to list leases": ({"denied": (("list leases", "403"),)}, "permissions", "error"),
    "no right to read the feed": ({"denied": (("read the change feed", "403"),)}, "permissions", "error"),
    "no right to send": ({"denied": (("send to topic 'events'", "401"),)}, "permissions", "error"),
    "no leases": ({"leases": ()}, "leases", "warning"),
    "a damaged lease": ({"damaged_leases": ("Lease '0' is damaged: so.",)}, "damaged-lease", "error"),
    "a lease ahead of its range": ({"leases_ahead": ("Lease '0' stands at 9.",)}, "position-ahead", "error"),
    "a damaged parked key": ({"damaged_keys": ("It cannot be read.",)}, "damaged-parked-key", "error"),
    "only a damaged lease": (
        {"leases": (), "damaged_leases": ("Lease '0' is damaged: so.",)},
        "damaged-lease",
        "error",
    ),
    "a split that no worker finishes": (
        {"overlaps": (Overlap(tokens=("0", "2"), unfinished=True),)},
        "overlapping-leases",
        "warning",
    ),
    "two leases of the same keys": (
        {"overlaps": (Overlap(tokens=("0", "00-10"), unfinished=False),)},
        "overlapping-leases",
        "error",
    ),
    "leases under an old name": (
        {"misnamed": "The leases lie under a."},
        "lease-names",
        "error",
    ),
    "another processor": ({"other_processors": ("audit",)}, "other-processors", "note"),
    "another processor where sent events are deleted": (
        {"other_processors": ("audit",), "deletes": True},
        "other-processors",
        "error",
    ),
    "several write regions": ({"several_write_regions": True}, "write-regions", "warning"),
    "a range without lease": ({"uncovered_ranges": ("05-07",)}, "leases", "error"),
    "a lease without worker": ({"leases": (lease("0"), lease("1", worked_on=False))}, "owners", "warning"),
    "events without worker": ({"leases": (lease("1", worked_on=False, transactions=3),)}, "owners", "error"),
    "an account that is busy": ({"unanswered": (("create leases", "Busy."),)}, "no-answer", "unknown"),
    "a lease that stands still": (
        {
            "leases": (
                replace(lease("0", transactions=3), standstill="No progress for 60 s: The topic is full."),
            )
        },
        "standstill",
        "error",
    ),
    "a worker that is not ready": ({"heartbeats": (replace(BEAT, unready=("No.",)),)}, "workers", "warning"),
    "a worker that was killed": (
        {"heartbeats": (replace(BEAT, silent_for=timedelta(minutes=3)),)},
        "workers",
        "note",
    ),
    "a change that waits for long": (
        {"leases": (replace(lease("0"), oldest_age=timedelta(minutes=6)),), "event_ttl": timedelta(days=10)},
        "age",
        "warning",
    ),
    "a change that is soon deleted unsent": (
        {"leases": (replace(lease("0"), oldest_age=timedelta(days=5)),), "event_ttl": timedelta(days=10)},
        "age",
        "error",
    ),
    "a parked key": ({"parked_keys": ParkedSeen(count=1), "most_parked_keys": 2}, "parked-keys", "warning"),
    "as many parked keys as a lease may have": (
        {"parked_keys": ParkedSeen(count=2), "most_parked_keys": 2},
        "parked-keys",
        "error",
    ),
    "no right to hold events": ({"denied": (("create parked keys", "403"),)}, "permissions", "error"),
    "a grave miss of a topic": ({"topics": Inspection(misses=(GRAVE,))}, "sessions", "error"),
    "another miss": ({"topics": Inspection(misses=(replace(GRAVE, grave=False),))}, "sessions", "warning"),
    "topics unknown": ({"topics": Inspection(unknown="403.")}, "topic", "note"),
    "clock ahead": ({"clock_skew": timedelta(minutes=1)}, "clock", "warning"),
    "clock far behind": ({"clock_skew": timedelta(minutes=-6)}, "clock", "error"),
}


def test_a_healthy_outbox_has_no_finding():
    assert () == findings_in(HEALTHY)


@pytest.mark.parametrize(("changes", "check", "severity"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_misconfiguration_is_the_one_finding(changes, check, severity):
    (finding,) = findings_in(replace(HEALTHY, **changes))
    assert (check, severity) == (finding.check, finding.severity)
    assert finding.message.rstrip().endswith((".", "403", "401"))
    assert finding.fix.endswith((".", ")."))


def test_a_container_that_is_missing_gets_the_time_to_live_that_a_worker_asks_for():
    nowhere = {"data": DATA, "lease_container": LEASES, "parked": PARKED}
    missing = {name: replace(container, exists=False) for name, container in nowhere.items()}
    fixes = {found.check: found.fix for found in findings_in(replace(HEALTHY, **missing))}
    assert "no time to live" in fixes["parked-container"]
    assert "default time to live of -1" in fixes["data-container"]
    assert "default time to live of -1" in fixes["lease-container"]


def test_a_service_bus_that_does_not_answer_may_do_so_on_another_port():
    asked = (
        ("send to topic 'events'", "No."),
        ("receive from 'events/all'", "No."),
        ("create leases", "No."),
    )
    found = findings_in(replace(HEALTHY, unanswered=asked))
    assert [True, True, False] == ["OUTBOX_SERVICEBUS_TRANSPORT" in finding.fix for finding in found]


def test_the_worst_findings_come_first():
    found = findings_in(
        replace(HEALTHY, topics=Inspection(unknown="x"), leases=(), data=replace(DATA, exists=False))
    )
    assert [Severity.ERROR, Severity.WARNING, Severity.NOTE] == [finding.severity for finding in found]
