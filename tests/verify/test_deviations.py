"""
Tests that `verify` reports each deviation of the emulators by the claims about it, and by no other claim.

So its report on a real account is worth something. `make test` switches on a few deviations, and `make test-long` all. The
tests of the claims show that every claim holds without a deviation.
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
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # as in the tests of the claims
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
    "control-plane-refused": set(),  # a run changes nothing that roles for data do not allow
    "throttled": {"throttled"},
    "lsn-within-batch": {"one-lsn"},
    "feed-skips": {"one-lsn", "feed-order"},
    "feed-reversed": {"feed-order"},
    # Without a continuation, the SDK would read the same page for ever, so these claims cannot hold.
    "304-without-etag": {"feed-position", "lean-poll", "modified-since"},
    "empty-etag": {"feed-position", "lean-poll", "modified-since", "one-lsn", "feed-order"},
    # These claims read an item by its id right after they wrote it. Reads in a batch are not stale.
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
    # All claims that compare two messages of one session fail.
    "session-reversed": {
        "duplicate-sends", "duplicate-in-a-batch", "duplicate-after-a-while", "too-large", "order-after-abandon",
        "order-after-close", "order-after-lost-lock", "count-after-lost-lock", "dead-letter-order",
    },
    "session-shared": {"locked-session"},
    "renewals-ignored": {"renewed-lock"},
    "session-endless": {"count-after-lost-lock"},
    # These probes do not wait for the end of a lock, because by the broker's clock it lasts an hour.
    "bus-ahead": {
        "clock", "scheduled-in-a-batch", "order-after-lost-lock", "count-after-lost-lock",
        "settled-after-lost-lock", "lock-of-a-message", "renewed-lock",
    },
}  # fmt: skip
# Claims that may or may not fail, depending on timing: a stale read may miss an item that expires within a second; three
# tries may not be enough for the checks before the claims; a message that is due may be sent before it is cancelled.
MAYBE: Mapping[str, set[str]] = {
    "stale-reads": {"expiry"}, "throttled": {"no-answer"}, "bus-ahead": {"scheduled-and-cancelled"},
}  # fmt: skip
# Claims that no probe tests, or not on these emulators.
NOT_ASKED = {one.name for one in (*cosmos_claims.CLAIMS, *service_bus_claims.CLAIMS) if one.not_asked} | {
    "split"
}
# The deviations that `make test` switches on.
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
async def test_a_deviation_of_cosmos_db_fails_exactly_the_claims_about_it(
    name: str, verified: OutboxEmulators
):
    verified.cosmos.deviate(name)
    assert COSMOS[name] == await _named(preflight, cosmos_claims) - MAYBE.get(name, set())


@pytest.mark.parametrize(
    ("name", "operation", "status"),
    [("too-large", "create", 400), ("ids-refused", "batch", 500), ("query-of-key", "query", 400)],
)
async def test_claims_that_no_deviation_breaks_can_fail_as_well(
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
async def test_a_deviation_of_service_bus_fails_exactly_the_claims_about_it(
    name: str, verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service_bus_claims, "_AT_ONCE", 40)  # a probe waits more than it works
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


async def test_a_wrong_clock_is_reported_before_the_claims_are_tested(verified: OutboxEmulators):
    verified.cosmos.deviate("clock-ahead")
    assert {"clock"} == await _named(preflight)


async def test_an_identity_without_permission_to_read_the_container_is_refused_first(
    verified: OutboxEmulators,
):
    verified.cosmos.deviate("metadata-refused")
    with pytest.raises(AccessDenied, match="the identity lacks a data-plane role"):
        await _named(preflight)


@pytest.mark.parametrize("part", [cosmos_claims, service_bus_claims])
def test_every_probe_has_a_claim_and_every_claim_a_probe(part: Any):
    probes = {
        name.replace("_", "-")
        for name, one in vars(part).items()
        if inspect.iscoroutinefunction(one) and one.__module__ == part.__name__ and name[0] != "_"
    }
    assert probes - {"run", "judge-throttling"} == {one.name for one in part.CLAIMS if not one.not_asked}


def test_each_unverified_statement_about_an_emulator_is_covered_by_a_claim():
    """The page on `verify` lists the claims that no probe tests."""
    claims = {f"{one.area}/{one.name}": one for one in (*cosmos_claims.CLAIMS, *service_bus_claims.CLAIMS)}
    text = ROOT.joinpath("emulators/README.md").read_text().partition("**Unverified:**")[2]
    throttling, _, tables = text.replace("\n  ", " ").partition("\n\n")
    said = [
        throttling,
        *re.findall(r"^- .*", tables.partition("Unverified too")[2].partition("## ")[0], re.MULTILINE),
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
