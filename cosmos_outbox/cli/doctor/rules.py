"""
Rules: what is wrong with the resources of an outbox, each with its fix; pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial

from cosmos_outbox.adapters.servicebus.preflight import Inspection
from cosmos_outbox.cli.doctor.coverage import Overlap
from cosmos_outbox.errors import AccessDenied, StoreUnavailable
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, key_paths_of
from cosmos_outbox.service.fleet import Heartbeat
from cosmos_outbox.service.vitals import LATE, ParkedSeen

_SKEW_WARNING, _SKEW_ERROR = timedelta(seconds=30), timedelta(minutes=5)
_SWITCH_TTL_ON = "Set the container's default time to live to -1 (on, no default)."


class Severity(StrEnum):
    """
    How bad a finding is.
    """

    ERROR = "error"  # events are lost, disordered or not sent
    UNKNOWN = "unknown"  # a service did not answer, so this could not be looked at
    WARNING = "warning"  # it works, with less safety than it could
    NOTE = "note"  # needs other rights to be checked, or is good to know


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    Something that should be different, and what to do about it.
    """

    severity: Severity
    check: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDescription:
    """
    A container as it is; `error` says why it could not be read, `answered` is False if the service did not answer.
    """

    name: str
    exists: bool = True
    partition_key: tuple[str, ...] = ()
    default_ttl: int | None = None
    error: str | None = None
    answered: bool = True

    @property
    def key_paths(self) -> KeyPaths | None:
        """
        Return the paths of a container that can hold an outbox; None if it cannot, or is not known.
        """
        try:
            return key_paths_of(self.partition_key)
        except ValueError:
            return None

    @property
    def known(self) -> bool:
        """
        Return whether its properties could be read.
        """
        return self.exists and self.answered and self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDescription:
    """
    A lease: whether a worker owns it, how many transactions wait in its range and since when, and why its owner does not move.
    """

    token: str
    worked_on: bool
    transactions: int
    oldest_age: timedelta | None = None
    standstill: str | None = None


@dataclass(slots=True, kw_only=True)
class Resources:
    """
    What the rules judge; an inspection fills it in.

    leases: None if they could not be read.
    heartbeats: of the workers.
    denied, unanswered: each operation that was refused, or got no answer, with the error.
    parked_keys, most_parked_keys: what is parked, and how many keys of one lease may be.
    event_ttl: how long events live.
    strange_keys: parked keys of other processors and containers, by the name of their owner.
    clock_skew: this machine's clock less the service's.
    deletes: sent events are to be deleted.
    misnamed: that the processor's leases lie under another name of the account.
    """

    data: ContainerDescription
    lease_container: ContainerDescription | None = None
    parked: ContainerDescription | None = None
    leases: tuple[LeaseDescription, ...] | None = None
    heartbeats: tuple[Heartbeat, ...] = ()
    damaged_leases: tuple[str, ...] = ()
    leases_ahead: tuple[str, ...] = ()
    damaged_keys: tuple[str, ...] = ()
    parked_keys: ParkedSeen | None = None
    most_parked_keys: int = 0
    event_ttl: timedelta | None = None
    strange_keys: Mapping[str, int] = field(default_factory=dict)
    overlaps: tuple[Overlap, ...] = ()
    uncovered_ranges: tuple[str, ...] = ()
    denied: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    topics: Inspection = field(default_factory=Inspection)
    clock_skew: timedelta | None = None
    misnamed: str | None = None
    other_processors: tuple[str, ...] = ()
    several_write_regions: bool = False
    deletes: bool = False


def unopened(error: AccessDenied | StoreUnavailable) -> Finding:
    """
    Return the finding of an account that cannot be opened, so that nothing else can be checked.
    """
    if isinstance(error, StoreUnavailable):
        return _unknown("no-answer", f"The account does not answer: {error}", _REACH)
    fix = _ADMISSIONS.get(error.refused_by or "", " Or: ".join(_ADMISSIONS.values()))
    return _error("account", f"The account refuses this program: {error}", fix)


def findings_in(resources: Resources) -> tuple[Finding, ...]:
    """
    Return all findings, the worst first.
    """
    order = list(Severity)
    found = [finding for rule in _RULES for finding in rule(resources)]
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def _containers(resources: Resources) -> Iterator[Finding]:
    expected = [
        (resources.data, "data-container", None),
        (resources.lease_container, "lease-container", (("/id",), ("/partitionKey",))),
        (resources.parked, "parked-container", (("/partitionKey",),)),
    ]
    for container, check, paths in expected:
        if container is None or not container.answered:
            continue
        name = f"Container {container.name!r}"
        wanted = " or ".join(path for (path,) in paths or (("/partitionKey",),))
        if container.error is not None:
            fix = (
                "Grant the identity a data-plane role on the container, let this machine through the firewall of the account, or "
                "correct the endpoint."
            )
            yield _error(check, f"{name} cannot be read: {container.error}", fix)
        elif not container.exists:
            ttl = "no time to live" if container is resources.parked else "a default time to live of -1"
            fix = f"Create it with partition key {wanted} and {ttl}."
            yield _error(check, f"{name} does not exist.", fix)
        elif paths is None:
            yield from _data_paths(container)
        elif container.partition_key not in paths:
            fix = f"Create a container with partition key {wanted}; it cannot be changed later."
            yield _error(check, f"{name} is partitioned on {', '.join(container.partition_key)}.", fix)


def _data_paths(container: ContainerDescription) -> Iterator[Finding]:
    try:
        paths = key_paths_of(container.partition_key)
    except ValueError as error:
        message = f"Container {container.name!r} cannot hold an outbox, for {error}."
        yield _error(
            "data-container", message, "Create another container; the paths cannot be changed later."
        )
        return
    if paths != ON_PARTITION_KEY:
        message = f"Container {container.name!r} is partitioned on {paths}."
        fix = "Nothing, if the entities of the application make such keys."
        yield _note("data-container", message, fix)


def _time_to_live(resources: Resources) -> Iterator[Finding]:
    data, leases, parked = resources.data, resources.lease_container, resources.parked
    if data.known and data.default_ttl is None:
        message = f"Container {data.name!r} has no default time to live: sent events, and what consumers remember, are never deleted."
        yield _error("data-ttl", message, _SWITCH_TTL_ON)
    elif data.known and (data.default_ttl or 0) > 0:
        yield _warning(
            "data-ttl",
            f"Container {data.name!r} deletes documents without a `ttl` of their own after {data.default_ttl} s, "
            "also entities that other programs wrote.",
            _SWITCH_TTL_ON,
        )
    if leases is not None and leases.known and leases.default_ttl is None:
        message = (
            f"Container {leases.name!r} has no default time to live: the lock of a crashed worker stays."
        )
        yield _warning("lease-ttl", message, _SWITCH_TTL_ON)
    elif leases is not None and leases.known and (leases.default_ttl or 0) > 0:
        message = f"Container {leases.name!r} deletes leases after {leases.default_ttl} s without a write."
        yield _error("lease-ttl", message, _SWITCH_TTL_ON)
    if parked is not None and parked.known and (parked.default_ttl or 0) > 0:
        message = f"Container {parked.name!r} deletes parked events after {parked.default_ttl} s: they are lost then."
        yield _error("parked-ttl", message, "Switch the container's time to live off.")


def _permissions(resources: Resources) -> Iterator[Finding]:
    for operation, error in resources.denied:
        fix = next((fix for start, fix in _GRANTS.items() if operation.startswith(start)), _ANY_GRANT)
        # Only a program that deletes entities for good needs it; doctor cannot see which one does.
        found = _note if operation.startswith("delete entities") else _error
        yield found("permissions", f"Not allowed, or not possible, to {operation}: {error}", fix)


def _silence(resources: Resources) -> Iterator[Finding]:
    for operation, error in resources.unanswered:
        yield _unknown(
            "no-answer",
            f"Whether it is possible to {operation} is not known: {error}",
            _REACH + (_OTHER_PORT if operation.startswith(("send", "receive")) else ""),
        )


_REACH = (
    "Try again. If this stays, raise the throughput if requests are throttled, or else check the endpoint, the network and "
    "the health of the service."
)
_OTHER_PORT = " A network that closes port 5671 may leave 443 open: OUTBOX_SERVICEBUS_TRANSPORT=websockets."
_ADMISSIONS = {
    "credential": "Correct the key of OUTBOX_COSMOS_CONNECTION_STRING, or the identity that this runs as.",
    "roles": "Assign the identity Cosmos DB Built-in Data Contributor on the account of OUTBOX_COSMOS_ENDPOINT.",
    "firewall": "Let the address, subnet or private endpoint of this machine through the firewall of the account (networking).",
}
_ANY_GRANT = "Grant the identity the role that the operation needs."
_GRANTS = {
    "read the change feed": "Grant readMetadata and readChangeFeed on the data container.",
    "list leases": "Grant executeQuery on the lease container.",
    "delete leases": "Grant items/delete on the lease container; splits and stale locks need it.",
    "delete events": "Grant items/delete on the data container, or unset OUTBOX_DELETE_AFTER_PUBLISH.",
    "delete entities": "Nothing; or, for a program that deletes entities for good, grant items/delete on the data container.",
    "query": "Grant executeQuery on that container.",
    "write batches": "Grant items/create and items/replace on that container, and items/delete for programs that delete: a batch needs the rights of all its operations.",
    "send to": "Correct the key of Service Bus, or grant Azure Service Bus Data Sender on the topic; create the topic if it is missing.",
    **{verb: f"Grant items/{verb} on that container." for verb in ("create", "read", "replace", "delete")},
}


def _coverage(resources: Resources) -> Iterator[Finding]:
    if resources.leases is None:
        return
    if not resources.leases and not resources.damaged_leases:
        fix = "Start a worker, or run `cosmos-outbox bootstrap`."
        yield _warning("leases", "There are no leases yet, so no event is sent.", fix)
        return
    if resources.uncovered_ranges:
        yield _error(
            "leases",
            f"No lease covers the ranges {', '.join(resources.uncovered_ranges)}: their events are not sent.",
            "Restart a worker, or run `cosmos-outbox bootstrap`: both create what is missing.",
        )
    idle = [lease for lease in resources.leases if not lease.worked_on]
    if idle:
        waiting = sum(lease.transactions for lease in idle)
        yield (_error if waiting else _warning)(
            "owners",
            f"No worker owns the ranges {', '.join(lease.token for lease in idle)}, where {waiting} changes wait.",
            "Start workers, or find out why those that run do not take the leases.",
        )


def _movement(resources: Resources) -> Iterator[Finding]:
    leases = resources.leases or ()
    for lease in leases:
        if lease.worked_on and lease.standstill:
            message = (
                f"Range {lease.token} stands still, and {lease.transactions} changes wait: {lease.standstill}"
            )
            yield _error("standstill", message, "Remove the cause; the worker tries again by itself.")
    ages = {lease.token: lease.oldest_age for lease in leases if lease.oldest_age is not None}
    late = {token: age for token, age in ages.items() if age >= LATE}
    if late:
        oldest, ttl = max(late.values()), resources.event_ttl
        grave = ttl is not None and oldest >= ttl / 2
        yield (_error if grave else _warning)(
            "age",
            f"The oldest unsent change waits for {oldest.total_seconds():.0f} s, in the ranges {', '.join(late)}."
            + (f" Events are deleted after {ttl.total_seconds():.0f} s." if ttl is not None else ""),
            "See the findings beside this one, and the log of the workers. If they move and are too slow, start more.",
        )


def _workers(resources: Resources) -> Iterator[Finding]:
    for one in resources.heartbeats:
        if one.troubled:
            message = f"Worker {one.worker} is not ready: {' '.join(one.unready)}"
            yield _warning("workers", message, "Remove the cause; the worker goes on by itself.")
        elif one.silent:
            since = f"{one.silent_for.total_seconds():.0f} s"
            message = (
                f"Worker {one.worker} gave its last sign of life {since} ago; it did not end as it should."
            )
            fix = "Nothing, if it was killed. Else look at its log: it may not reach Cosmos DB."
            yield _note("workers", message, fix)


def _parked(resources: Resources) -> Iterator[Finding]:
    parked, most = resources.parked_keys, resources.most_parked_keys
    if parked is None or not parked.count:
        return
    full = bool(most) and parked.count >= most
    since = (
        ""
        if parked.oldest_at is None
        else f" The oldest is parked since {parked.oldest_at:%Y-%m-%d %H:%M:%S} UTC."
    )
    limit = f" A lease that parks {most} halts at the next rejection." if full else ""
    message = f"Parked keys: {parked.count}. What they hold waits for an operator.{since}{limit}"
    fix = "Remove the cause, then `cosmos-outbox parked list` and `parked release`, or drop what is given up."
    yield (_error if full else _warning)("parked-keys", message, fix)


def _damage(resources: Resources) -> Iterator[Finding]:
    for error in resources.damaged_leases:
        yield _error(
            "damaged-lease",
            f"{error} No worker sends the events of its range.",
            "Stop the workers, correct or delete the document, and start them: a deleted lease is created again, and its range is "
            "read from where the first leases began. What was sent before is sent again.",
        )
    for error in resources.leases_ahead:
        yield _error(
            "position-ahead",
            error,
            "Stop the workers, `cosmos-outbox leases reset --to` a time before the restore, the failover or the edit, and start "
            "them: events sent since are sent again. If a replica only lagged, this is gone at the next run.",
        )
    for error in resources.damaged_keys:
        yield _error(
            "damaged-parked-key",
            f"{error} Until then nothing of the key is sent, handled or held, and a lease that has an event of it is stalled.",
            "Upgrade the program that reads it, or correct the document by hand; other keys can be released (`cosmos-outbox parked`).",
        )
    for owner, keys in resources.strange_keys.items():
        yield _note(
            "strange-parked-keys",
            f"The parked container holds {keys} keys of {owner}; `parked list` does not show them here.",
            "Nothing, if that is in use. Else release them with its OUTBOX_PROCESSOR_NAME, or with --consumer, for no other command "
            "shows them.",
        )
    for overlap in resources.overlaps:
        first, second = overlap.tokens
        if overlap.unfinished:
            yield _warning(
                "overlapping-leases",
                f"Lease {first} stands beside its child {second}: a split or merge was not finished.",
                "Start workers: the one that takes the lease finishes the split.",
            )
        else:
            yield _error(
                "overlapping-leases",
                f"Leases {first} and {second} have keys in common: their events are sent twice.",
                "Stop the workers and delete the lease that does not belong here, the one without a range of the container.",
            )


def _names(resources: Resources) -> Iterator[Finding]:
    if resources.misnamed is not None:
        fix = "Delete them while no worker runs, and start with OUTBOX_START before their last write."
        yield _error("lease-names", f"{resources.misnamed} Workers refuse to start.", fix)
    others = ", ".join(resources.other_processors)
    if others and resources.deletes:
        yield _error(
            "other-processors",
            f"OUTBOX_DELETE_AFTER_PUBLISH is set, and other processors read the same container: {others}. Events would be "
            "deleted before these read them, so workers refuse to start, and delete nothing.",
            "Unset OUTBOX_DELETE_AFTER_PUBLISH; or delete the leases of a processor that is no longer in use.",
        )
    elif others:
        message = f"Other processors have leases of the same container: {others}."
        yield _note("other-processors", message, "Nothing, if they are in use; each gets every event.")


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
        yield (_error if miss.grave else _warning)(miss.check, miss.message, miss.fix)
    if resources.topics.unknown is not None:
        fix = "Run this with an identity that may manage the namespace."
        yield _note("topic", resources.topics.unknown, fix)


def _clock(resources: Resources) -> Iterator[Finding]:
    skew = resources.clock_skew
    if skew is not None and abs(skew) >= _SKEW_WARNING:
        yield (_error if abs(skew) >= _SKEW_ERROR else _warning)(
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
    _movement,
    _workers,
    _parked,
    _coverage,
    _names,
    _regions,
    _topics,
    _clock,
)


def _finding(severity: Severity, check: str, message: str, fix: str) -> Finding:
    return Finding(severity=severity, check=check, message=message, fix=fix)


_error = partial(_finding, Severity.ERROR)
_unknown = partial(_finding, Severity.UNKNOWN)
_warning = partial(_finding, Severity.WARNING)
_note = partial(_finding, Severity.NOTE)
