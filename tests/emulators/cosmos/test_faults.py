from __future__ import annotations

import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.faults import FaultRule, Faults, When
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.seed import plant
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.emulators.cosmos.driver import DOCUMENTS, put, sign

wired = pytest.mark.looptime(False)


def strikes(faults, kind=RequestKind.CREATE, container="items", times=10):
    return [faults.strike(kind, container) is not None for _ in range(times)]


def test_a_fault_rule_skips_two_requests_and_strikes_the_next_three():
    faults = Faults()
    faults.add({"operation": "create", "status": 429, "skip": 2, "count": 3})
    assert [False] * 2 + [True] * 3 + [False] * 5 == strikes(faults)
    assert 0 == len(faults)


def test_a_fault_rule_without_a_count_strikes_until_it_is_cleared():
    faults = Faults()
    faults.add({"status": 503})
    assert all(strikes(faults))
    faults.clear()
    assert not any(strikes(faults))


def test_a_fault_rule_strikes_only_its_operation_and_container():
    faults = Faults()
    faults.add({"operation": "batch", "container": "items", "status": 503})
    assert not any(strikes(faults, RequestKind.CREATE))
    assert not any(strikes(faults, RequestKind.BATCH, "leases"))
    assert all(strikes(faults, RequestKind.BATCH))


def test_a_fault_rule_strikes_only_requests_to_its_partition():
    faults = Faults()
    faults.add({"partition": "1", "status": 429})
    assert [None, None, 429] == [
        fault and fault.status
        for fault in (
            faults.strike(RequestKind.CHANGEFEED, "items", partition=lambda named=named: named)
            for named in (None, "0", "1")
        )
    ]


def test_the_oldest_fault_rule_that_applies_strikes_the_request():
    faults = Faults()
    faults.add({"status": 503, "count": 1})
    faults.add({"status": 429})
    assert [503, 429] == [faults.strike(RequestKind.READ, "c").status for _ in range(2)]


def test_a_fault_rule_with_the_same_seed_strikes_the_same_requests():
    def drawn(seed):
        faults = Faults()
        faults.add({"status": 503, "probability": 0.4, "seed": seed})
        return strikes(faults, times=500)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert 150 < sum(drawn(1)) < 250


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "status"),
        ({"status": 200}, "status"),
        ({"status": "429"}, "status"),
        ({"status": True}, "status"),
        ({"status": 429, "operation": "explode"}, "explode"),
        ({"status": 429, "operation": 5}, "operation"),
        ({"status": 429, "count": 0}, "count"),
        ({"status": 429, "skip": -1}, "skip"),
        ({"status": 429, "probability": 2}, "probability"),
        ({"status": 429, "delay_s": float("nan")}, "delay_s"),
        ({"status": 429, "when": "later"}, "later"),
        ({"status": 429, "drop": True}, "drop"),
        ({"drop": 1}, "drop"),
        ({"status": 429, "op_index": 1}, "op_index"),
        ({"status": 429, "partition": 1}, "partition"),
        ({"status": 429, "op_index": 1, "operation": "batch", "when": "after"}, "op_index"),
        ({"status": 429, "retry_after": 5}, "retry_after"),
    ],
)
def test_the_error_for_a_wrong_fault_rule_names_the_mistake(values, named):
    with pytest.raises(ValueError, match=named):
        FaultRule.from_dict(values)


@given(
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from(["status", "drop", "when", "count"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    )
)
def test_any_json_object_is_a_fault_rule_or_raises_value_error(values):
    try:
        rule = FaultRule.from_dict(values)
    except ValueError:
        return
    assert rule.drop or rule.status or rule.delay_s
    assert rule.when in When


@asynccontextmanager
async def asking(*, partitions=1):
    """
    Run a server. Yield it, and a function that sends a request to container "c".

    The function returns status and body, or None for both if the server cuts the connection.
    """
    async with CosmosServer(Account(partitions=partitions)) as server, aiohttp.ClientSession() as session:
        plant(
            server.account, {"databases": [{"id": "d", "containers": [{"id": "c", "partitionKey": "/pk"}]}]}
        )

        async def ask(body, *, key="k", **headers):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            named |= {
                **sign(server.key, "POST", DOCUMENTS),
                "x-ms-documentdb-partitionkey": json.dumps([key]),
            }
            try:
                async with session.post(server.url + DOCUMENTS, json=body, headers=named) as reply:
                    return reply.status, await reply.json()
            except aiohttp.ServerDisconnectedError:
                return None, None

        yield server, ask


@wired
@pytest.mark.parametrize(
    ("rule", "status", "stored"),
    [
        ({"status": 429, "substatus": 3200, "retry_after_ms": 7}, 429, 0),
        ({"status": 503, "when": "after"}, 503, 1),
        ({"drop": True}, None, 0),
        ({"drop": True, "when": "after"}, None, 1),
        ({"delay_s": 0.01}, 201, 1),
    ],
)
async def test_a_request_ends_as_its_fault_rule_says(rule, status, stored):
    async with asking() as (server, ask):
        server.faults.add(rule)
        assert status == (await ask({"id": "a", "pk": "k"}))[0]
        assert stored == server.account.container("d", "c").item_count(0)


@wired
async def test_one_throttled_operation_fails_the_whole_batch():
    async with asking() as (server, ask):
        server.faults.add({"operation": "batch", "op_index": 1, "status": 429, "retry_after_ms": 7})
        status, results = await ask(
            [put("Create", each) for each in "abc"], x_ms_cosmos_is_batch_request="True"
        )
        assert (207, [424, 429, 424]) == (status, [result["statusCode"] for result in results])
        assert 7 == results[1]["retryAfterMilliseconds"]
        assert 0 == server.account.container("d", "c").item_count(0)


@wired
async def test_a_hot_partition_refuses_only_its_own_keys():
    async with asking(partitions=2) as (server, ask):
        container = server.account.container("d", "c")
        hot, other = (partition.range_id for partition in container.partitions)
        server.faults.add({"container": "c", "partition": hot, "status": 429})
        found: dict[str, set[int]] = {}
        for number in range(20):
            home = container.partition_of(container.key_from_header(f'["{number}"]').epk).range_id
            status, _ = await ask({"id": "a", "pk": f"{number}"}, key=f"{number}")
            found.setdefault(home, set()).add(status)
        assert {hot: {429}, other: {201}} == found
