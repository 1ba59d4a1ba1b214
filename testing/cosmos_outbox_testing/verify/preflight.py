"""Preflight: the worker's own checks of what a run works on: rights, partition keys, times to live, duplicate detection, the clock."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from cosmos_outbox.adapters.servicebus.administration import Refusal, receiving_refused
from cosmos_outbox.errors import InvalidRequest, SubscriptionUnavailable
from cosmos_outbox_testing.verify.claims import NotRun
from cosmos_outbox_testing.verify.results import Cost, Held, Outcome, Tell
from cosmos_outbox_testing.verify.site import RUN, Site
from cosmos_outbox_worker.doctor.check import Finding, Findings, Severity
from cosmos_outbox_worker.doctor.programs import check_application, check_worker

AREA = "preflight"
_TRIES = 3
_EXPIRATION = timedelta(seconds=60)
# No worker runs, and none should. Messages that expire need not be kept.
_MEANT = {"leases", "owners", "dead-lettering"}
_STATEMENT = "The resources are as `cosmos-outbox doctor` wants them."
_RELAYED = (
    "The processor {!r} has leases of the data container, so its worker would send what this run commits."
)
_OTHERS: Any = {
    "severity": Severity.ERROR,
    "check": "processors",
    "fix": "Name containers that nothing else uses; or delete the leases of a processor that is no longer in use.",
}
_CREATE = "Create it as a subscription {kind}, or correct {option}, which names one."
_REFUSALS = {
    Refusal.MISSING: ("does not exist.", _CREATE),
    Refusal.SESSIONS: ("is not one {kind}.", _CREATE),
    Refusal.DISABLED: ("is disabled.", "Set its status to Active."),
    Refusal.DENIED: ("refuses this: {said}", "Grant Azure Service Bus Data Receiver, or correct the key."),
}
_HELD = {Severity.ERROR: Held.NOT_RUN, Severity.UNKNOWN: Held.NOT_RUN, Severity.WARNING: Held.DIFFERENT}


def cost(seconds: float) -> Cost:
    """Return the cost of the checks."""
    touches = "a document in each container, created and deleted; settings of the topic are read, where the identity may"
    return Cost(requests=60, request_units=200, seconds=5, touches=touches)


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Check as `doctor` and `doctor --api` do. After an error, no other part runs."""
    started, charged = time.monotonic(), site.request_units
    busy, known, unknown = site.throttled, dict[str, Finding](), dict[str, Finding]()
    for number in range(_TRIES):  # if a busy service did not answer, ask again
        found = (await _findings(site)).worst_first()
        known |= {one.message: one for one in found if one.severity is not Severity.UNKNOWN}
        missing = {_question_of(one): one for one in found if one.severity is Severity.UNKNOWN}
        unknown = {name: one for name, one in missing.items() if number == 0 or name in unknown}
        if not unknown:
            break
    # A service that throttles now and then still answers the claims, and one of them names this.
    held_of = _HELD | ({Severity.UNKNOWN: Held.DIFFERENT} if site.throttled > busy else {})
    outcomes = [
        Outcome(
            name=one.check,
            area=AREA,
            held=held_of[one.severity],
            statement=_STATEMENT,
            expected="no finding",
            found=site.without_secrets(one.message),
            meaning=site.without_secrets(one.fix),
        )
        for one in (*known.values(), *unknown.values())
        if one.severity in _HELD and not _is_meant(one, site)
    ]
    charged = site.request_units - charged
    if not outcomes:
        unseen = "" if site.bus else "OUTBOX_TOPIC is not set: no topic was looked at."
        said: Any = {"held": Held.HELD, "statement": _STATEMENT, "found": unseen}
        said |= {"seconds": time.monotonic() - started, "request_units": charged}
        outcomes = [Outcome(name="resources", area=AREA, **said)]
    for outcome in outcomes:
        tell(outcome)
    return outcomes


async def need_subscriptions(site: Site) -> None:
    """
    See that both subscriptions are there and of their kind, or each claim would be answered otherwise, as if Azure did.

    Raises:
        NotRun: one is not, or no Service Bus is named.
    """
    if site.bus is None:
        raise NotRun("It needs Service Bus: set OUTBOX_TOPIC and OUTBOX_SERVICEBUS_NAMESPACE.")
    await _check_subscriptions(site, found := Findings())
    for one in found.worst_first():
        raise NotRun(f"{one.message} {one.fix}")


async def _check_subscriptions(site: Site, found: Findings) -> None:
    if site.bus is None or found.denied:
        return
    for name, sessions, option in (
        (site.sessions, True, "--subscription"),
        (site.plain, False, "--plain-subscription"),
    ):
        try:
            refused = await receiving_refused(site.bus, site.topic, name, sessions=sessions)
        except SubscriptionUnavailable as error:
            found.note(f"receive from subscription {name!r}", error)
            continue
        if refused is not None:
            kind = "that requires sessions" if sessions else "without sessions"
            words = {"kind": kind, "option": option, "said": refused[1]}
            why, fix = (text.format(**words) for text in _REFUSALS[refused[0]])
            message = f"Subscription {name!r} of topic {site.topic!r} {why}"
            found.add(Finding(severity=Severity.ERROR, check="subscriptions", message=message, fix=fix))


def _question_of(one: Finding) -> str:
    """Return the question whose answer is not known, without the error that prevented the answer."""
    return one.message.partition(" is not known: ")[0]


def _is_meant(one: Finding, site: Site) -> bool:
    return one.check in _MEANT or (one.check == "sessions" and f"{site.plain!r}" in one.message)


class _Findings(Findings):
    """Leaves out a feed that is answered otherwise than it should be, which no right would mend: the claims ask it, and name the promise."""

    def note(self, operation: str, error: Exception) -> None:
        if not (operation.startswith("read the ") and isinstance(error, InvalidRequest)):
            super().note(operation, error)


async def _findings(site: Site) -> Findings:
    found, connection = _Findings(), site.connection
    await check_application(connection, found)
    if connection.settings.topic:
        await check_worker(connection, found, expiration=_EXPIRATION)
    await _check_subscriptions(site, found)
    lives = connection.to(connection.settings.model_copy(update={"processor_name": site.run}))
    others = await found.attempt("list leases", lives.others) or ()
    found.add(
        *(Finding(message=_RELAYED.format(name), **_OTHERS) for name in others if not name.startswith(RUN))
    )
    return found
