"""
Tests of `verify` on emulators that behave unlike Azure in one point (a deviation). `verify` must report that exactly the claims about
this point do not hold. So its report on a real account can be trusted.

`make test` switches on a few deviations, and `make test-long` all. The tests of the claims show that every claim holds without a deviation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cosmos_outbox.errors import AccessDenied
from cosmos_outbox_emulators.cosmos import deviations as cosmos_deviations
from cosmos_outbox_emulators.servicebus import deviations as servicebus_deviations
from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import cosmos_claims, preflight, service_bus_claims
from cosmos_outbox_testing.verify.results import Held
from cosmos_outbox_testing.verify.site import open_site
from tests.support.effort import LONG

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Azure's SDKs leave sockets open
]
ROOT = Path(__file__).parents[2]
COSMOS: Mapping[str, set[str]] = {
    "half-batches": {"batch-atomic", "batch-other-key"},
    "large-batches": {"large-batch"},
    "creations-overwrite": {"batch-atomic", "lost-answer", "conflict"},
    "etags-ignored": {"precondition"},
    "numbers-rounded": {"whole-numbers"},
    "ids-trimmed": {"ids"},
    "ids-refused": {"ids"},
    "long-keys-refused": {"long-keys"},
    "items-never-expire": {"expiry"},
    "missing-is-1003": {"not-found"},
    "412-is-409": {"precondition"},
    "control-plane-refused": set(),  # `verify` sends no request of the control plane
    "throttled": {"throttled"},
    "lsn-within-batch": {"one-lsn"},
    "feed-skips": {"one-lsn", "feed-order"},
    "feed-reversed": {"feed-order"},
    # These deviations leave out the continuation of a page. So the SDK would read the same page for ever, and the claims fail.
    "304-without-etag": {"feed-position", "lean-poll", "modified-since"},
    "empty-etag": {"feed-position", "lean-poll", "modified-since", "one-lsn", "feed-order"},
    # The tests of these claims read an item right after they wrote it. The deviation makes such reads stale, but no read in a batch.
    "stale-reads": {"lost-answer", "read-own-write", "ids", "whole-numbers", "uncompressed"},
    "stale-batches": {"read-newest"},
    "charges-hidden": {"charges"},
    "compressed": {"uncompressed"},
    "slow": {"near"},
}
SERVICE_BUS: Mapping[str, set[str]] = {
    "duplicates-kept": {
        "duplicate-sends", "duplicate-in-a-batch", "duplicate-after-a-while", "scheduled-twice",
    },
    "duplicates-forgotten": {"duplicate-after-a-while"},
    "scheduled-at-once": {"scheduled-in-a-batch", "scheduled-and-cancelled"},
    "large-messages": {"too-large"},
    "dead-letters-silent": {"no-session-id", "dead-letter"},
    "deliveries-uncounted": {"order-after-abandon", "count-after-lost-lock", "lock-of-a-message"},
    "lost-locks-settle": {"settled-after-lost-lock", "dead-letter-of-a-dead-letter"},
    "abandoned-last": {"order-after-abandon"},
    "session-disordered": {"order-after-lost-lock", "count-after-lost-lock"},
    # This deviation breaks all claims whose tests compare two messages of one session.
    "session-reversed": {
        "duplicate-sends", "duplicate-in-a-batch", "duplicate-after-a-while", "too-large", "order-after-abandon",
        "order-after-close", "order-after-lost-lock", "count-after-lost-lock", "dead-letter-order",
    },
    "session-shared": {"locked-session"},
    "renewals-ignored": {"renewed-lock"},
    "session-endless": {"count-after-lost-lock"},
    # The broker's clock is an hour ahead. So the probes (the tests of claims) believe that a lock lasts for an hour, and do not wait
    # for its end.
    "bus-ahead": {
        "clock", "scheduled-in-a-batch", "order-after-lost-lock", "count-after-lost-lock",
        "settled-after-lost-lock", "lock-of-a-message", "renewed-lock",
    },
}  # fmt: skip
# For each deviation, the claims that may fail or hold, depending on timing. A stale read may miss an item that expires within a second. A
# throttled check may fail three times. A message that is due may be sent before it is cancelled.
MAYBE: Mapping[str, set[str]] = {
    "stale-reads": {"expiry"}, "throttled": {"no-answer"}, "bus-ahead": {"scheduled-and-cancelled"},
}  # fmt: skip
# The claims (sentences about Azure) that `verify` has no test for, and the claim `split`, which it cannot test on these emulators
NOT_ASKED = {one.name for one in (*cosmos_claims.CLAIMS, *service_bus_claims.CLAIMS) if one.not_asked} | {
    "split"
}
# The deviations that `make test` tries. `make test-long` tries all.
FEW = {
    "half-batches",
    "stale-batches",
    "lsn-within-batch",
    "control-plane-refused",
    "throttled",
    "duplicates-forgotten",
}


def _some(table: Mapping[str, set[str]]) -> list[str]:
    return [name for name in table if LONG or name in FEW]


async def _named(*parts: Any) -> set[str]:
    async with open_site(sessions="all", plain="relayed", only=tuple(part.AREA for part in parts)) as site:
        outcomes = [one for part in parts for one in await part.run(site, lambda told: None)]
        outcomes += await cosmos_claims.judge_throttling(site, lambda told: None)
    return {one.name for one in outcomes if one.held is not Held.HELD} - NOT_ASKED


@pytest.mark.parametrize("name", _some(COSMOS))
async def test_exactly_the_claims_about_a_deviation_of_the_cosmos_db_emulator_fail(
    name: str, verified: OutboxEmulators
):
    verified.cosmos.deviate(name)
    assert COSMOS[name] == await _named(preflight, cosmos_claims) - MAYBE.get(name, set())


@pytest.mark.parametrize(
    ("name", "operation", "status"),
    [("too-large", "create", 400), ("ids-refused", "batch", 500), ("query-of-key", "query", 400)],
)
async def test_verify_also_reports_a_claim_that_no_deviation_breaks(
    name: str, operation: str, status: int, verified: OutboxEmulators
):
    async with open_site(sessions="all", plain="relayed", only=(f"cosmos/{name}",)) as site:
        verified.cosmos.add_fault({"operation": operation, "status": status})
        outcomes = await cosmos_claims.run(site, lambda told: None)
        verified.cosmos.clear_faults()
    assert [(name, True)] == [
        (one.name, str(status) in one.found) for one in outcomes if one.held is not Held.HELD
    ]


@pytest.mark.parametrize("name", _some(SERVICE_BUS))
async def test_exactly_the_claims_about_a_deviation_of_the_service_bus_emulator_fail(
    name: str, verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    # run 40 probes at once, because a probe mostly waits
    monkeypatch.setattr(service_bus_claims, "_AT_ONCE", 40)
    subscriptions = [
        {"name": "all", "requires_session": True, "lock_s": 5},
        {"name": "relayed", "lock_s": 5},
    ]
    verified.servicebus.delete(verified.topic)
    verified.servicebus.add_topic(
        {"name": verified.topic, "dedup_window_s": 600, "subscriptions": subscriptions}
    )
    verified.servicebus.deviate(name)
    assert SERVICE_BUS[name] == await _named(service_bus_claims) - MAYBE.get(name, set())


async def test_verify_reports_a_wrong_clock_before_it_tests_the_claims(verified: OutboxEmulators):
    verified.cosmos.deviate("clock-ahead")
    assert {"clock"} == await _named(preflight)


async def test_verify_first_refuses_an_identity_that_may_not_read_the_container(
    verified: OutboxEmulators,
):
    verified.cosmos.deviate("metadata-refused")
    with pytest.raises(AccessDenied, match="the identity lacks a data-plane role"):
        await _named(preflight)


@pytest.mark.parametrize("part", [cosmos_claims, service_bus_claims])
def test_each_claim_of_verify_has_a_test_function_and_each_function_a_claim(part: Any):
    probes = {
        name.replace("_", "-")
        for name, one in vars(part).items()
        if inspect.iscoroutinefunction(one) and one.__module__ == part.__name__ and name[0] != "_"
    }
    assert probes - {"run", "judge-throttling"} == {one.name for one in part.CLAIMS if not one.not_asked}


def test_a_claim_of_verify_covers_each_unverified_statement_about_the_emulators():
    """The page on `verify` lists the claims that `verify` has no test for."""
    claims = {f"{one.area}/{one.name}": one for one in (*cosmos_claims.CLAIMS, *service_bus_claims.CLAIMS)}
    text = ROOT.joinpath("emulators/README.md").read_text().partition("**Unverified:**")[2]
    throttling, _, tables = text.replace("\n  ", " ").partition("\n\n")
    said = [
        throttling,
        *re.findall(r"^- .*", tables.partition("are unverified too")[2].partition("## ")[0], re.MULTILINE),
    ]
    said += re.findall(r"[^*]unverified([^|\n]*)\|", tables)
    named = [set(re.findall(r"`((?:cosmos|servicebus)/[\w-]+)`", one)) for one in said]

    assert [] == [one for one, names in zip(said, named, strict=True) if not names or names - {*claims}]
    not_asked = {name for name, one in claims.items() if one.not_asked}
    assert set() == not_asked - set().union(*named)
    page = ROOT.joinpath("docs/how-to/verify.md").read_text().partition("## What no probe asks")[2]
    assert not_asked == {*re.findall(r"^\| `([\w/-]+)`", page.partition("\n## ")[0], re.MULTILINE)}


def test_every_deviation_is_listed_with_the_claims_about_it():
    of_preflight = {"clock-ahead", "metadata-refused"}
    assert {*cosmos_deviations.DEVIATIONS} == {*COSMOS} | of_preflight
    assert {*servicebus_deviations.DEVIATIONS} == {*SERVICE_BUS}
    asked = {one.name for one in (*cosmos_claims.CLAIMS, *service_bus_claims.CLAIMS)}
    assert set() == set().union(*COSMOS.values(), *SERVICE_BUS.values()) - asked
