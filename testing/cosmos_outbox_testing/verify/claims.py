"""Claims: one plain sentence about what Azure answers, with the probe that asks."""

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
    An answer of Azure on which this library or its emulators rely.

    Attributes:
        name: of `--only AREA/NAME`.
        area: "cosmos" or "servicebus".
        statement: one plain sentence.
        expected: the answer, as text.
        meaning: what another answer means for the guarantees, and what to set.
        promise: the guarantee (G1 to G6, I1 to I6) that rests on it; None if none does.
        probe: returns the answer as text, equal to `expected` where the claim holds. Raises `NotRun` where it cannot be asked.
        not_asked: why there is no probe; empty where there is one.
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
    Return the claims from the TOML file beside a module. The probe of each claim has the claim's name, and is called with the result
    of `given`.
    """
    words = tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))

    def probe_of(name: str) -> Probe:
        return lambda site: probes[name.replace("-", "_")](given(site))

    return tuple(
        Claim(name=name, area=area, probe=probe_of(name), **{"promise": None, **said})
        for name, said in words.items()
    )


class NotRun(Exception):
    """This claim cannot be tested here; the text says why."""


class NotHere(NotRun):
    """It does not apply here, as of an extra that is not installed: unless it was asked for by its name, nothing is missing."""


def denial_of(error: BaseException | None) -> str:
    """Return which right is missing, if an error or its cause says so; else ""."""
    while error is not None:
        if isinstance(error, AccessDenied):
            return str(error)
        if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
            return f"{_GRANT} Service Bus said: {' '.join(str(error.inner_exception or error).split())}"
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return ""


def is_excused(why: NotRun, site: Site, area: str, name: str) -> bool:
    """Return whether something that was not run leaves nothing to mend."""
    return isinstance(why, NotHere) and f"{area}/{name}" not in site.only


async def ask(claim: Claim, site: Site) -> Outcome:
    """
    Test the claim. The outcome has the expected and the actual answer; an error that the probe does not expect is an answer, too,
    unless it says that a right is missing.
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
    """Test the claims that the run wants, one after another."""
    outcomes = []
    for claim in claims:
        if site.wants(claim.area, claim.name):
            outcomes.append(outcome := await ask(claim, site))
            tell(outcome)
    return outcomes
