"""
Tests of the checks of `cosmos-outbox doctor`. The tests plant one mistake in a healthy outbox, and doctor must report exactly this
mistake. Every check has such a test.

Mistakes of topics and subscriptions are in test_service_bus_checks.py.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox.changefeed.leases import Lease, new_lease
from cosmos_outbox.errors import AccessDenied, StoreUnavailable
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox_worker.causes import cause_of
from cosmos_outbox_worker.doctor import check as check_module
from cosmos_outbox_worker.doctor import containers, leases, programs, service_bus
from cosmos_outbox_worker.doctor.check import Checks, Finding, Findings, Severity, findings_of
from cosmos_outbox_worker.doctor.containers import Container
from cosmos_outbox_worker.doctor.leases import Leases, Overlap, Processors
from cosmos_outbox_worker.doctor.programs import Parked, no_access
from cosmos_outbox_worker.heartbeats import Heartbeat
from cosmos_outbox_worker.shared_health import ParkedSummary

WORDS = tomllib.loads(Path(check_module.__file__).with_name("checks.toml").read_text())
NOW = datetime(2026, 11, 21, tzinfo=UTC)
BEAT = Heartbeat(worker="w", every=timedelta(seconds=15), phase="running")


def lease(token: str) -> Lease:
    return new_lease("p", token, FeedRange(min="", max="FF")).with_changes(now=NOW, owner="w")


def lag(**changes: Any) -> Lag:
    good = LeaseLag(
        lease="p..0",
        token="0",  # noqa: S106 - the name of a range
        owner="w",
        transactions=0,
        oldest_age=None,
    )
    return Lag(leases=(replace(good, **changes),))


def seen(path: str, ttl: int | None) -> Container:
    properties: dict[str, Any] = {"partitionKey": {"paths": [path]}, "defaultTtl": ttl}
    return Container(name="c", database="d", properties=properties)


def parked(count: int, most: int = 0, **about: Any) -> Parked:
    return Parked(seen=ParkedSummary(count=count, **about), most=most)


GOOD = Leases(
    leases=(lease("0"),),
    damaged=(),
    gaps=(),
    overlaps=(),
    lag=lag(),
    heartbeats=(BEAT,),
    skew=timedelta(seconds=1),
    event_ttl=timedelta(days=10),
)
DATA, LEASES, PARKED = containers.DATA, containers.LEASES, containers.PARKED
MISSING = Container(name="c")
Asked = tuple[Checks[Any], Any]


def of_leases(**changes: Any) -> Asked:
    return leases.OF_LEASES, replace(GOOD, **changes)


def of(worker: str, **settings: str) -> Heartbeat:
    return replace(BEAT, worker=worker, settings=settings)


def of_lag(**changes: Any) -> Asked:
    return of_leases(lag=lag(**changes))


def overlapping(*tokens: str, unfinished: bool) -> Asked:
    return of_leases(overlaps=(Overlap(tokens=(tokens[0], tokens[1]), unfinished=unfinished),))


def of_processors(**found: Any) -> Asked:
    return leases.OF_PROCESSORS, Processors(**found)


PLANTED: dict[str, tuple[Asked, str]] = {
    "data-container missing": ((DATA, MISSING), "error"),
    "data-container unreadable": ((DATA, replace(MISSING, error="403.")), "error"),
    "data-container on the id": ((DATA, seen("/id", -1)), "error"),
    "data-container on other paths": ((DATA, seen("/tenantId", -1)), "note"),
    "data-ttl off": ((DATA, seen("/partitionKey", None)), "error"),
    "data-ttl with a default": ((DATA, seen("/partitionKey", 60)), "warning"),
    "lease-container missing": ((LEASES, MISSING), "error"),
    "lease-container unreadable": ((LEASES, replace(MISSING, error="403.")), "error"),
    "lease-container on another key": ((LEASES, seen("/pk", -1)), "error"),
    "lease-ttl off": ((LEASES, seen("/id", None)), "warning"),
    "lease-ttl with a default": ((LEASES, seen("/id", 600)), "error"),
    "parked-container missing": ((PARKED, MISSING), "error"),
    "parked-container unreadable": ((PARKED, replace(MISSING, error="403.")), "error"),
    "parked-container on another key": ((PARKED, seen("/id", None)), "error"),
    "parked-ttl with a default": ((PARKED, seen("/partitionKey", 60)), "error"),
    "damaged-lease": (of_leases(damaged=("Lease '0' is damaged: so.",)), "error"),
    "damaged-lease and no other": (of_leases(leases=(), damaged=("So.",)), "error"),
    "position-ahead": (of_lag(ahead="Lease '0' stands at 9."), "error"),
    "overlapping-leases of a split": (overlapping("0", "2", unfinished=True), "warning"),
    "overlapping-leases of the same keys": (overlapping("0", "00-10", unfinished=False), "error"),
    "standstill": (of_lag(standstill="The topic is full."), "error"),
    "age of minutes": (of_lag(oldest_age=timedelta(minutes=6)), "warning"),
    "age of half a life": (of_lag(oldest_age=timedelta(days=5)), "error"),
    "standstill that begins": (
        of_leases(heartbeats=(replace(BEAT, causes=(cause_of("AccessDenied: No."),)),)),
        "warning",
    ),
    "workers that were killed": (
        of_leases(heartbeats=(replace(BEAT, silent_for=timedelta(minutes=3)),)),
        "note",
    ),
    "workers with an alarm": (of_leases(heartbeats=(replace(BEAT, alarms=("So.",)), BEAT)), "error"),
    "workers that differ": (of_leases(heartbeats=(of("a", topic="t"), of("b", topic="u"))), "warning"),
    "workers of two versions": (of_leases(heartbeats=(BEAT, replace(BEAT, worker="b", version="2"))), "note"),
    "standstill that a heartbeat names": (
        of_leases(
            heartbeats=(replace(BEAT, causes=(cause_of("TopicFull: Topic 'events' is full.", stands=True),)),)
        ),
        "error",
    ),
    "leases not there": (of_leases(leases=()), "warning"),
    "leases with a gap": (of_leases(gaps=(FeedRange(min="05", max="07"),)), "error"),
    "owners gone": (of_lag(owner=None), "warning"),
    "owners gone and events wait": (of_lag(owner=None, transactions=3), "error"),
    "clock ahead": (of_leases(skew=timedelta(minutes=1)), "warning"),
    "clock far behind": (of_leases(skew=timedelta(minutes=-6)), "error"),
    "lease-names": (of_processors(misnamed="They lie under a."), "error"),
    "other-processors": (of_processors(others=("audit",)), "note"),
    "other-processors without a worker": (of_processors(left={"old": 3}), "error"),
    "other-processors and deletion": (of_processors(others=("audit",), deletes=True), "error"),
    "damaged-parked-key": (
        (programs.OF_PARKED, parked(0, unreadable={"k": StoreUnavailable("So.")})),
        "error",
    ),
    "strange-parked-keys": (
        (programs.OF_PARKED, Parked(seen=ParkedSummary(count=0), strangers={"processor 'p'": 2})),
        "note",
    ),
    "parked-keys": ((programs.OF_PARKED, parked(1, 2)), "warning"),
    "parked-keys as many as a lease may have": ((programs.OF_PARKED, parked(2, 2)), "error"),
    "write-regions": ((programs.ACCOUNT, SimpleNamespace(several_write_regions=True)), "warning"),
}


def told(checks: Checks[Any], it: Any) -> list[Finding]:
    return [*findings_of(checks, it)]


def test_doctor_has_no_finding_for_a_healthy_outbox():
    assert [] == told(DATA, seen("/partitionKey", -1))
    assert [] == told(LEASES, seen("/id", -1)) == told(LEASES, seen("/partitionKey", -1))
    assert [] == told(PARKED, seen("/partitionKey", None))
    assert [] == told(leases.OF_LEASES, GOOD)
    assert [] == told(leases.OF_PROCESSORS, Processors(deletes=True))
    assert [] == told(programs.OF_PARKED, parked(0, 2))


@pytest.mark.parametrize(("asked", "severity"), PLANTED.values(), ids=PLANTED.keys())
def test_doctor_reports_exactly_the_planted_mistake(
    asked: Asked, severity: str, request: pytest.FixtureRequest
):
    (finding,) = told(*asked)
    assert (request.node.callspec.id.split()[0], severity) == (finding.check, finding.severity)
    assert finding.message.endswith(".")
    assert finding.fix.endswith((".", ")", "…"))


def test_every_check_has_texts_in_checks_toml_and_no_text_is_unused():
    """
    The test collects the names of all checks. They are in tables of functions, which judge what doctor has read, and in calls of
    `finding(…)`, which report failed requests.
    """
    modules = (check_module, containers, leases, service_bus, programs)
    tables = [table for module in modules for table in vars(module).values() if isinstance(table, dict)]
    keys = {key for table in tables for key, ask in table.items() if callable(ask) and "." in key}
    keys |= {*service_bus.REFUSALS.values()}
    sources = "".join(Path(module.__file__ or "").read_text() for module in modules)
    keys |= {*re.findall(r'finding\("([\w.-]+)"', sources), "sessions.missing", "sessions.required"}
    assert keys == {f"{name}.{part}" for name, parts in WORDS.items() for part in parts}
    for parts in WORDS.values():
        for words in parts.values():
            assert {"question", "severity", "message", "remedy"} == words.keys() - {"sends_tell"}
            assert words["severity"] in set(Severity)


@pytest.mark.parametrize(
    ("refused_by", "fix"),
    [("credential", "OUTBOX_COSMOS_CONNECTION_STRING"), ("roles", "Assign"), ("firewall", "firewall")],
)
def test_doctor_gives_only_one_fix_if_the_reason_of_a_refusal_is_known(
    refused_by: Literal["credential", "roles", "firewall"], fix: str
):
    found = no_access(AccessDenied("Why.", refused_by=refused_by))
    assert (Severity.ERROR, "account") == (found.severity, found.check)
    assert "Why." in found.message
    assert fix in found.fix
    assert "Or:" not in found.fix


def test_doctor_suggests_another_transport_if_service_bus_does_not_answer():
    found = Findings()
    for operation in ("send to topic 'events'", "receive from 'events/all'", "create leases"):
        found.note(operation, StoreUnavailable("No."))
    seen = found.worst_first()
    assert {Severity.UNKNOWN} == {finding.severity for finding in seen}
    assert [True, True, False] == ["OUTBOX_SERVICEBUS_TRANSPORT" in finding.fix for finding in seen]
    assert not found.denied


def test_doctor_sorts_its_findings_by_severity():
    found = Findings()
    found.judge(leases.OF_PROCESSORS, Processors(others=("audit",)))
    found.judge(leases.OF_LEASES, replace(GOOD, leases=()))
    found.judge(DATA, MISSING)
    assert [Severity.ERROR, Severity.WARNING, Severity.NOTE] == [one.severity for one in found.worst_first()]


def test_doctor_reports_the_unsent_events_of_a_processor_without_workers_once():
    said = ("3 changes wait for processor 'old', which has no worker, and 'p' has OUTBOX_START=now.", "So.")
    beat = replace(BEAT, alarms=said)
    checks, seen = of_leases(heartbeats=(beat,))
    assert [*said] == [one.message for one in findings_of(checks, seen)]
    assert ["So."] == [one.message for one in findings_of(checks, replace(seen, left={"old": 3}))]
