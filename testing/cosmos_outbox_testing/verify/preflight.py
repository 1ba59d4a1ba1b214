"""
The part "preflight" of `cosmos-outbox verify`: run the checks of `cosmos-outbox doctor` on the named containers and topic.

These checks cover rights, partition keys, times to live, duplicate detection, and this machine's clock.
"""

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
# Findings of `doctor` that are no mistakes here. No worker runs, so there are no leases and owners. Expired messages of a run need not be
# dead-lettered.
_MEANT = {"leases", "owners", "dead-lettering"}
_STATEMENT = "`cosmos-outbox doctor` finds no mistake in the containers, the topic and the subscriptions."
_RELAYED = (
    "The processor {!r} has leases for the data container, so its worker would send the events of this run."
)
_OTHERS: Any = {
    "severity": Severity.ERROR,
    "check": "processors",
    "fix": "Name containers that no other program uses, or delete the leases if the processor is no longer in use.",
}
_CREATE = "Create it as a subscription {kind}, or name another one with {option}."
_REFUSALS = {
    Refusal.MISSING: ("does not exist.", _CREATE),
    Refusal.SESSIONS: ("is not a subscription {kind}.", _CREATE),
    Refusal.DISABLED: ("is disabled.", "Set its status to Active."),
    Refusal.DENIED: ("denies access: {said}", "Grant Azure Service Bus Data Receiver, or correct the key."),
}
_HELD = {Severity.ERROR: Held.NOT_RUN, Severity.UNKNOWN: Held.NOT_RUN, Severity.WARNING: Held.DIFFERENT}


def cost(seconds: float) -> Cost:
    """Return what the checks cost, which `verify --dry-run` prints."""
    touches = "a document in each container, created and deleted; reads settings of the topic if it may"
    return Cost(requests=60, request_units=200, seconds=5, touches=touches)


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Run the checks of `doctor` and `doctor --api`. If they find an error, no other part of the run is started."""
    started, charged = time.monotonic(), site.request_units
    busy, known, unknown = site.throttled, dict[str, Finding](), dict[str, Finding]()
    for number in range(_TRIES):  # repeat the checks if a busy service did not answer some of them
        found = (await _findings(site)).worst_first()
        known |= {one.message: one for one in found if one.severity is not Severity.UNKNOWN}
        missing = {_question_of(one): one for one in found if one.severity is Severity.UNKNOWN}
        unknown = {name: one for name, one in missing.items() if number == 0 or name in unknown}
        if not unknown:
            break
    # If Cosmos DB refused requests with 429, a check without an answer does not stop the run: the claims can still be tested, and the claim
    # "throttled" reports the refusals.
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
        unseen = "" if site.bus else "OUTBOX_TOPIC is not set, so no topic was checked."
        said: Any = {"held": Held.HELD, "statement": _STATEMENT, "found": unseen}
        said |= {"seconds": time.monotonic() - started, "request_units": charged}
        outcomes = [Outcome(name="resources", area=AREA, **said)]
    for outcome in outcomes:
        tell(outcome)
    return outcomes


async def need_subscriptions(site: Site) -> None:
    """
    Require that the two subscriptions of a run exist, one with and one without sessions.

    With a wrong subscription, the claims about Service Bus would get unexpected answers, and the report would blame Azure.

    Raises:
        NotRun: a subscription is missing or of the wrong kind, or no Service Bus namespace is named.
    """
    if site.bus is None:
        raise NotRun("This part needs Service Bus: set OUTBOX_TOPIC and OUTBOX_SERVICEBUS_NAMESPACE.")
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
    """Return the part of a finding's text before the error. It names what is not known, and is the same if the check is repeated."""
    return one.message.partition(" is not known: ")[0]


def _is_meant(one: Finding, site: Site) -> bool:
    return one.check in _MEANT or (one.check == "sessions" and f"{site.plain!r}" in one.message)


class _Findings(Findings):
    """
    Findings that leave out a read of the change feed that Cosmos DB refused as invalid.

    The finding would say which right to grant, which would not help. The claims about the change feed report the same refusal, and name the
    guarantee that is broken.
    """

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
