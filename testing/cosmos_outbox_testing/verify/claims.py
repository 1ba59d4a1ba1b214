"""
A claim is a sentence about what Azure answers to a request. Its probe sends the request and returns the actual answer.
`cosmos_claims.py` and `service_bus_claims.py` have the probes.
"""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from cosmos_outbox.errors import AccessDenied
from cosmos_outbox_testing.verify.results import Held, Outcome, Tell
from cosmos_outbox_testing.verify.site import Site

_LONGEST_SECONDS = 120.0
_GRANT = "A right is missing: grant Azure Service Bus Data Sender and Data Receiver on the topic, or correct the key."
Probe = Callable[[Site], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    A claim about what Azure answers, on which this library or its emulators rely.

    Attributes:
        name: the name of the claim, for `--only AREA/NAME`.
        area: "cosmos" or "servicebus".
        statement: the claim as one sentence.
        expected: the expected answer, as a text.
        meaning: what another answer means for the guarantees, and which setting to change.
        promise: the guarantee of this library that depends on the claim, such as G3 (order). None if no guarantee depends on it.
        probe: a function that sends the requests and returns the answer as a text. The text equals `expected` if the claim holds. It
            raises `NotRun` if the claim cannot be tested.
        not_asked: why the claim has no probe. Empty if it has one.
    """

    name: str
    area: str
    statement: str
    expected: str
    meaning: str
    promise: str | None
    probe: Probe
    not_asked: str = ""


def claims_in(
    module: str, area: str, probes: Mapping[str, Any], given: Callable[[Site], object]
) -> tuple[Claim, ...]:
    """
    Read the claims from the TOML file that has the name of a module.

    A claim is a sentence about what Azure answers. Its probe, the function that checks it, has the claim's name in `probes`. The probe's
    argument is the result of `given`.
    """
    words = tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))

    def probe_of(name: str) -> Probe:
        return lambda site: probes[name.replace("-", "_")](given(site))

    return tuple(
        Claim(name=name, area=area, probe=probe_of(name), **{"promise": None, **said})
        for name, said in words.items()
    )


class NotRun(Exception):
    """A claim about Azure cannot be tested on this account or machine. The text says why."""


class NotHere(NotRun):
    """
    A claim about Azure does not apply to this account or installation, for instance because an extra is not installed. The run is still
    complete, unless the caller asked for this claim by its name (`--only`).
    """


def denial_of(error: BaseException | None) -> str:
    """Return a text that says which right is missing, if an error or one of its causes says so. Otherwise return an empty text."""
    while error is not None:
        if isinstance(error, AccessDenied):
            return str(error)
        if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
            return f"{_GRANT} Service Bus said: {' '.join(str(error.inner_exception or error).split())}"
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return ""


def is_excused(why: NotRun, site: Site, area: str, name: str) -> bool:
    """
    Return whether a run of `verify` counts as complete although it left out a claim about Azure or a contract test. It does if this claim or
    test does not apply to the account, and the caller did not ask for it by its name.
    """
    return isinstance(why, NotHere) and f"{area}/{name}" not in site.only


async def ask(claim: Claim, site: Site) -> Outcome:
    """
    Send the requests that test a claim about Azure (run its probe). Return the outcome, with the expected and the actual answer.

    If the probe raises an error, the error is the actual answer. If the error says that a right is missing, the claim counts as not
    tested, because the answer says nothing about Azure.
    """
    started, charged = time.monotonic(), site.request_units
    held, excused = Held.NOT_RUN if claim.not_asked else None, bool(claim.not_asked)
    try:
        async with asyncio.timeout(_LONGEST_SECONDS) as longest:
            found = claim.not_asked or await claim.probe(site)
    except NotRun as why:
        found, held, excused = str(why), Held.NOT_RUN, is_excused(why, site, claim.area, claim.name)
    except TimeoutError:
        found = f"no answer within {_LONGEST_SECONDS:.0f} s" if longest.expired() else "no answer in time"
    except Exception as error:  # noqa: BLE001 - whatever a service answers is the finding
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        found = site.without_secrets((denied := denial_of(error)) or said)
        held = Held.NOT_RUN if denied else held
    if held is None:
        otherwise = Held.BROKEN if claim.promise else Held.DIFFERENT
        held = Held.HELD if found == claim.expected else otherwise
    return Outcome(
        name=claim.name,
        area=claim.area,
        held=held,
        excused=excused,
        statement=claim.statement,
        expected=claim.expected,
        found=found,
        meaning="" if held is Held.NOT_RUN else claim.meaning,
        promise=claim.promise,
        seconds=time.monotonic() - started,
        request_units=site.request_units - charged,
    )


async def ask_all(claims: Iterable[Claim], site: Site, tell: Tell) -> list[Outcome]:
    """Test those of the claims that the user asked for (`--only`), one after another. Return their outcomes."""
    outcomes = []
    for claim in claims:
        if site.wants(claim.area, claim.name):
            outcomes.append(outcome := await ask(claim, site))
            tell(outcome)
    return outcomes
