"""
Tests of the emulated disasters: a container that is restored from a snapshot, and a failover to another region.
"""

from __future__ import annotations

import json

import pytest
from multidict import CIMultiDict

from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.protocol import Request
from cosmos_outbox_emulators.cosmos.regions import fail_over
from tests.emulators.cosmos.driver import DOCUMENTS, Driver, documents, sign, substatus


def test_a_restored_container_has_the_items_and_lsns_of_its_snapshot():
    driver = Driver()
    driver.upsert("a", "kept", version=1)
    etag = json.loads(driver.item("GET", "a", "kept").body)["_etag"]
    before = driver.changes("0").headers["etag"]
    driver.container.take_snapshot()
    driver.upsert("a", "kept", version=2)
    driver.upsert("b", "lost")
    after = driver.changes("0").headers["etag"]
    driver.container.restore_snapshot()
    assert ["kept"] == [item["id"] for item in documents(driver.changes("0"))]
    assert (1, etag) == tuple(
        json.loads(driver.item("GET", "a", "kept").body)[name] for name in ("version", "_etag")
    )
    assert before == driver.changes("0").headers["etag"] < after
    driver.upsert("c", "new")
    assert [] == documents(driver.changes("0", after)), "what reads on from before the restore skips it"
    assert ["new"] == [item["id"] for item in documents(driver.changes("0", before))]


def test_a_range_that_was_split_after_the_snapshot_stays_split():
    driver = Driver()
    for number in range(20):
        driver.upsert(number, str(number))
    driver.container.take_snapshot()
    driver.container.split("0")
    driver.upsert("late", "late")
    driver.container.restore_snapshot()
    parts = [{item["id"] for item in documents(driver.changes(range_id))} for range_id in ("1", "2")]
    assert all(parts)
    assert {str(number) for number in range(20)} == parts[0] | parts[1]


def test_a_container_without_a_snapshot_cannot_be_restored():
    with pytest.raises(CosmosError, match="There is no snapshot"):
        Driver().container.restore_snapshot()


def asked(driver: Driver, method: str, target: str, *, host: str, body: bytes = b"", **headers: str):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    signed = CIMultiDict({**sign(driver.account.key, method, target), **named})
    request = Request(method=method, target=target, headers=signed, body=body, origin=f"http://{host}:8081")
    return driver.gateway.answer(request)


def test_after_a_failover_only_the_other_region_takes_writes():
    """After a failover, both regions answer reads, but the region that accepted writes before answers them with 403/3."""
    driver = Driver()
    assert "localhost" == fail_over(driver.account)
    described = json.loads(asked(driver, "GET", "/", host="127.0.0.1").body)
    named = [
        [region["databaseAccountEndpoint"] for region in described[f"{kind}Locations"]]
        for kind in ("writable", "readable")
    ]
    assert [["http://localhost:8081/"], ["http://localhost:8081/", "http://127.0.0.1:8081/"]] == named
    item, key = json.dumps({"id": "1", "pk": "a"}).encode(), {"x_ms_documentdb_partitionkey": '["a"]'}
    refused = asked(driver, "POST", DOCUMENTS, host="127.0.0.1", body=item, **key)
    assert (403, 3) == substatus(refused)
    assert 201 == asked(driver, "POST", DOCUMENTS, host="localhost", body=item, **key).status
    assert 200 == asked(driver, "GET", f"{DOCUMENTS}/1", host="127.0.0.1", **key).status
    assert "127.0.0.1" == fail_over(driver.account), "and back"
