"""Preflight: the worker's own checks of what a run works on: rights, partition keys, times to live, duplicate detection, the clock."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from azure.servicebus.exceptions import ServiceBusError

from cosmos_outbox.errors import InvalidRequest
from cosmos_outbox_testing.verify.results import Cost, Held, Outcome, Tell
from cosmos_outbox_testing.verify.site import RUN, Site
from cosmos_outbox_worker.doctor.check import Finding, Findings, Severity
from cosmos_outbox_worker.doctor.programs import check_application, check_worker

AREA = "preflight"
_TRIES = 3
_EXPIRATION = timedelta(seconds=60)
# No worker is there, and none should be; messages that expire need not be kept
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
_OPENS_SECONDS = 20.0
_HELD = {Severity.ERROR: Held.NOT_RUN, Severity.UNKNOWN: Held.NOT_RUN, Severity.WARNING: Held.DIFFERENT}


def cost(seconds: float) -> Cost:
    """Return what the checks take."""
    touches = "a document in each container, created and deleted; settings of the topic are read, where the identity may"
    return Cost(requests=60, request_units=200, seconds=5, touches=touches)


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Check as `doctor` and `doctor --api` do; an error means that nothing else is run."""
    started, charged = time.monotonic(), site.request_units
    busy, known, unknown = site.throttled, dict[str, Finding](), dict[str, Finding]()
    for number in range(_TRIES):  # what a busy service did not answer is asked again
        found = (await _findings(site)).worst_first()
        known |= {one.message: one for one in found if one.severity is not Severity.UNKNOWN}
        missing = {_question_of(one): one for one in found if one.severity is Severity.UNKNOWN}
        unknown = {name: one for name, one in missing.items() if number == 0 or name in unknown}
        if not unknown:
            break
    # One that throttles now and then answers the claims, and one of them names it
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
        held = Outcome(
            name="resources",
            area=AREA,
            held=Held.HELD,
            statement=_STATEMENT,
            found=unseen,
            request_units=charged,
        )
        outcomes = [replace(held, seconds=time.monotonic() - started)]
    for outcome in outcomes:
        tell(outcome)
    return outcomes


async def _check_subscriptions(site: Site, found: Findings) -> None:
    """Open each subscription as the claims do; one of another kind would answer each of them otherwise, as if Azure did."""
    if site.bus is None or found.denied:
        return
    for name, session, kind, option in (
        (site.sessions, site.name(), "that requires sessions", "--subscription"),
        (site.plain, None, "without sessions", "--plain-subscription"),
    ):
        receiver = site.bus.get_subscription_receiver(site.topic, name, session_id=session)
        try:
            async with asyncio.timeout(_OPENS_SECONDS), receiver:
                pass
        except (ServiceBusError, TimeoutError) as error:
            found.add(
                Finding(
                    severity=Severity.ERROR,
                    check="subscriptions",
                    message=f"{name!r} of topic {site.topic!r} cannot be received from as a subscription {kind}: {error!r}",
                    fix=f"Create it, or correct {option}, which names a subscription {kind}.",
                )
            )


def _question_of(one: Finding) -> str:
    """Return what is not known, without the error that kept it so."""
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
