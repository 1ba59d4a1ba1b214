"""
Findings: what is wrong with described resources, each with its fix; rules without any I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from cosmos_outbox.adapters.servicebus.preflight import Inspection
from cosmos_outbox.cli.coverage import Overlap

_SKEW_WARNING, _SKEW_ERROR = timedelta(seconds=30), timedelta(minutes=5)


class Severity(StrEnum):
    """
    How bad a finding is.
    """

    ERROR = "error"  # events are lost, disordered or not sent
    WARNING = "warning"  # works, with less safety than it could
    NOTE = "note"  # could not be looked at, or is good to know


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    Something that should be otherwise, and what to do about it.
    """

    severity: Severity
    check: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDescription:
    """
    A container as it is; error says why it could not be looked at, answered is False where nobody knows.
    """

    name: str
    exists: bool = True
    partition_key: tuple[str, ...] = ()
    default_ttl: int | None = None
    error: str | None = None
    answered: bool = True

    @property
    def seen(self) -> bool:
        """
        Say whether it is known as it is.
        """
        return self.exists and self.answered and self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDescription:
    """
    A lease: nobody works on it where `worked_on` is False.
    """

    token: str
    worked_on: bool
    transactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """
    All that a doctor looks at; denied: what was tried and refused, with the error; unanswered: what the service was too
    busy for, or silent about. What was not looked at is left out.

    leases has those that can be read, and is None where they could not be listed; damaged_leases and damaged_keys say
    what is wrong with each of the others; leases_ahead says which lie ahead of their ranges. old_hosts are those under
    which the processor has leases beside the account's own, account_host; other_processors have leases of the same
    container. strange_keys says of which other processors and containers keys are parked, and how many. deletes is whether
    sent events are to be deleted.
    """

    data: ContainerDescription
    lease_container: ContainerDescription | None = None
    parked: ContainerDescription | None = None
    leases: tuple[LeaseDescription, ...] | None = None
    damaged_leases: tuple[str, ...] = ()
    leases_ahead: tuple[str, ...] = ()
    damaged_keys: tuple[str, ...] = ()
    strange_keys: Mapping[str, int] = field(default_factory=dict)
    overlaps: tuple[Overlap, ...] = ()
    uncovered_ranges: tuple[str, ...] = ()
    denied: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    topics: Inspection = field(default_factory=Inspection)
    clock_skew: timedelta | None = None
    account_host: str = ""
    old_hosts: tuple[str, ...] = ()
    other_processors: tuple[str, ...] = ()
    several_write_regions: bool = False
    deletes: bool = False


def findings_in(resources: Resources) -> tuple[Finding, ...]:
    """
    Return all findings, the worst first.
    """
    order = list(Severity)
    found = [finding for rule in _RULES for finding in rule(resources)]
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def _containers(resources: Resources) -> Iterator[Finding]:
    expected = [
        (resources.data, "data-container", (("/partitionKey",),)),
        (resources.lease_container, "lease-container", (("/id",), ("/partitionKey",))),
        (resources.parked, "parked-container", (("/partitionKey",),)),
    ]
    for container, check, paths in expected:
        if container is None or not container.answered:
            continue
        wanted = " or ".join(path for (path,) in paths)
        if container.error is not None:
            yield _error(
                check,
                f"Container {container.name!r} cannot be read: {container.error}",
                "Grant the identity a data-plane role on the container, or correct the endpoint.",
            )
        elif not container.exists:
            yield _error(
                check,
                f"Container {container.name!r} does not exist.",
                f"Create it with partition key {wanted} and a default time to live of -1.",
            )
        elif container.partition_key not in paths:
            yield _error(
                check,
                f"Container {container.name!r} is partitioned on {', '.join(container.partition_key)}.",
                f"Create a container with partition key {wanted}; it cannot be changed later.",
            )


def _time_to_live(resources: Resources) -> Iterator[Finding]:
    data, leases, parked = resources.data, resources.lease_container, resources.parked
    if data.seen and data.default_ttl is None:
        yield _error(
            "data-ttl",
            f"Container {data.name!r} has no default time to live: sent events are never deleted.",
            "Set the container's default time to live to -1 (on, no default).",
        )
    if data.seen and data.default_ttl is not None and data.default_ttl > 0:
        yield _warning(
            "data-ttl",
            f"Container {data.name!r} deletes documents without a `ttl` of their own after {data.default_ttl} s, "
            "also entities that other programs wrote.",
            "Set the container's default time to live to -1 (on, no default).",
        )
    if leases is not None and leases.seen and leases.default_ttl is None:
        yield _warning(
            "lease-ttl",
            f"Container {leases.name!r} has no default time to live: a lock that a crash left behind stays.",
            "Set the container's default time to live to -1 (on, no default).",
        )
    if leases is not None and leases.seen and (leases.default_ttl or 0) > 0:
        yield _error(
            "lease-ttl",
            f"Container {leases.name!r} deletes leases after {leases.default_ttl} s without a write.",
            "Set the container's default time to live to -1 (on, no default).",
        )
    if parked is not None and parked.seen and (parked.default_ttl or 0) > 0:
        yield _error(
            "parked-ttl",
            f"Container {parked.name!r} deletes parked events after {parked.default_ttl} s: they are lost then.",
            "Switch the container's time to live off.",
        )


def _permissions(resources: Resources) -> Iterator[Finding]:
    for what, error in resources.denied:
        fix = next((fix for start, fix in _GRANTS.items() if what.startswith(start)), _ANY_GRANT)
        yield _error("permissions", f"Not allowed, or not possible, to {what}: {error}", fix)


def _silence(resources: Resources) -> Iterator[Finding]:
    for what, error in resources.unanswered:
        yield _warning(
            "no-answer",
            f"Whether it is possible to {what} is not known: {error}",
            "Try again; where it stays like this, raise the throughput if requests are throttled, or else look at the "
            "endpoint, the network and the health of the service.",
        )


_ANY_GRANT = "Grant the identity the role that the operation needs."
_GRANTS = {
    "read the change feed": "Grant readMetadata and readChangeFeed on the data container.",
    "list leases": "Grant executeQuery on the lease container.",
    "delete leases": "Grant items/delete on the lease container; splits and stale locks need it.",
    "delete events": "Grant items/delete on the data container, or unset OUTBOX_DELETE_AFTER_PUBLISH.",
    "query": "Grant executeQuery on that container.",
    "write batches": "Grant items/create, items/replace and items/delete on that container: a batch needs those of its parts.",
    "send to": "Grant Azure Service Bus Data Sender on the topic, and create the topic if it is missing.",
    **{
        verb: f"Grant items/{verb} on that container."
        for verb in ("create", "read", "replace", "upsert", "delete")
    },
}


def _coverage(resources: Resources) -> Iterator[Finding]:
    if resources.leases is None:
        return
    if not resources.leases and not resources.damaged_leases:
        yield _warning(
            "leases",
            "There are no leases yet, so nothing is relayed.",
            "Start a worker, or run `cosmos-outbox bootstrap`.",
        )
        return
    if resources.uncovered_ranges:
        yield _error(
            "leases",
            f"No lease covers the ranges {', '.join(resources.uncovered_ranges)}: their events are not sent.",
            "Restart a worker, or run `cosmos-outbox bootstrap`: both create what is missing.",
        )
    idle = [lease for lease in resources.leases if not lease.worked_on]
    waiting = sum(lease.transactions for lease in idle)
    if idle:
        tokens = ", ".join(lease.token for lease in idle)
        severity = _error if waiting else _warning
        yield severity(
            "owners",
            f"Nobody works on the ranges {tokens}, where {waiting} changes wait.",
            "Start workers, or look at why those that run do not take the leases.",
        )


def _damage(resources: Resources) -> Iterator[Finding]:
    for mistake in resources.damaged_leases:
        yield _error(
            "damaged-lease",
            f"{mistake} Nobody sends the events of its range.",
            "Stop the workers, put a backup in its place (`cosmos-outbox leases import`) or delete the document, and start "
            "them: what is deleted is created anew, and reads its range again from where new leases begin.",
        )
    for mistake in resources.leases_ahead:
        yield _error(
            "position-ahead",
            mistake,
            "Stop the workers, `cosmos-outbox leases reset --to` a time before the restore, the failover or the edit, and start "
            "them: what was sent since then is sent again. Where a replica only lagged, this is gone at the next look.",
        )
    for mistake in resources.damaged_keys:
        yield _error(
            "damaged-parked-key",
            f"{mistake} Until then no event of the key is sent or held, and the lease that has one stands still.",
            "Upgrade what reads it, or correct the document by hand; the others can be released (`cosmos-outbox parked`).",
        )
    for whose, keys in resources.strange_keys.items():
        yield Finding(
            severity=Severity.NOTE,
            check="strange-parked-keys",
            message=f"The parked container holds {keys} keys of {whose}; `parked list` does not show them here.",
            fix="Nothing, where that is in use. Else release them with its OUTBOX_PROCESSOR_NAME, for no other command shows them.",
        )
    for overlap in resources.overlaps:
        first, second = overlap.tokens
        if overlap.unfinished:
            yield _warning(
                "overlapping-leases",
                f"Lease {first} stands beside {second}, which takes its place: a split or merge was not finished.",
                "Start workers: the one that takes it finishes that.",
            )
        else:
            yield _error(
                "overlapping-leases",
                f"Leases {first} and {second} have keys in common: the events of these are sent twice.",
                "Stop the workers and delete the lease that does not belong here, the one without a range of the container.",
            )


def _names(resources: Resources) -> Iterator[Finding]:
    if resources.old_hosts:
        yield _error(
            "lease-names",
            f"The processor has leases under {', '.join(resources.old_hosts)}, which is not the account's own name "
            f"{resources.account_host}: workers refuse to start where there are leases under two names.",
            "Stop all workers, and run `cosmos-outbox leases rename-host`.",
        )
    others = ", ".join(resources.other_processors)
    if others and resources.deletes:
        yield _error(
            "other-processors",
            f"OUTBOX_DELETE_AFTER_PUBLISH is set, and other processors read the same container: {others}. What one has "
            "sent would be deleted before another reads it, so workers refuse to start, and delete nothing.",
            "Unset OUTBOX_DELETE_AFTER_PUBLISH; or, where a processor is no longer in use, delete its leases.",
        )
    elif others:
        yield Finding(
            severity=Severity.NOTE,
            check="other-processors",
            message=f"Other processors have leases of the same container: {others}.",
            fix="Nothing, where they are meant to be there; each gets every event.",
        )


def _regions(resources: Resources) -> Iterator[Finding]:
    if resources.several_write_regions:
        yield _warning(
            "write-regions",
            "The account takes writes in several regions: order, leases and the batch of entity and event hold inside "
            "one region only.",
            "Have all programs that commit events write to one region, or give the account a single write region.",
        )


def _topics(resources: Resources) -> Iterator[Finding]:
    for miss in resources.topics.misses:
        yield Finding(
            severity=Severity.ERROR if miss.grave else Severity.WARNING,
            check=miss.check,
            message=miss.message,
            fix=miss.fix,
        )
    if resources.topics.unknown is not None:
        yield Finding(
            severity=Severity.NOTE,
            check="topic",
            message=resources.topics.unknown,
            fix="Run this with an identity that may manage the namespace.",
        )


def _clock(resources: Resources) -> Iterator[Finding]:
    skew = resources.clock_skew
    if skew is not None and abs(skew) >= _SKEW_WARNING:
        severity = _error if abs(skew) >= _SKEW_ERROR else _warning
        yield severity(
            "clock",
            f"This machine's clock is {abs(skew).total_seconds():.0f} s {'ahead of' if skew > timedelta(0) else 'behind'} "
            "the service's: signatures fail from 15 minutes on, and times in logs and leases mislead.",
            "Synchronise the clock (NTP).",
        )


_RULES: tuple[Callable[[Resources], Iterator[Finding]], ...] = (
    _containers,
    _time_to_live,
    _permissions,
    _silence,
    _damage,
    _coverage,
    _names,
    _regions,
    _topics,
    _clock,
)


def _error(check: str, message: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, check=check, message=message, fix=fix)


def _warning(check: str, message: str, fix: str) -> Finding:
    return Finding(severity=Severity.WARNING, check=check, message=message, fix=fix)
