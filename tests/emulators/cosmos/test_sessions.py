"""
Tests of session consistency: no read is behind its session token, and a lagging replica shows old items to other reads.
"""

from __future__ import annotations

import json

from tests.emulators.cosmos.driver import Driver, documents, substatus


def lagging(seconds: float = 5.0) -> Driver:
    driver = Driver()
    driver.account.replication.lag_s = seconds
    return driver


def session(token: str) -> dict[str, str]:
    return {"x_ms_session_token": token}


def test_a_read_is_refused_if_the_replica_lags_behind_its_session_token():
    driver = Driver()
    token = driver.upsert("k", "a").headers["x-ms-session-token"]
    assert 200 == driver.item("GET", "k", "a", x_ms_session_token=token).status

    ahead = session("0:-1#99")

    assert (404, 1002) == substatus(driver.item("GET", "k", "a", **ahead))
    assert (404, 1002) == substatus(driver.query("SELECT * FROM c", **ahead))
    assert (404, 1002) == substatus(driver.changes("0", **ahead))
    assert 201 == driver.item("POST", "k", None, {"id": "b", "pk": "k"}, **ahead).status
    assert 200 == driver.item("GET", "k", "a", **session("7:-1#99")).status
    assert (400, 0) == substatus(driver.item("GET", "k", "a", **session("nonsense")))


def test_the_session_token_of_a_deleted_container_is_ignored():
    driver = Driver()
    (before, after) = (driver.upsert("k", "a").headers["x-ms-session-token"] for _ in range(2))
    driver.ok("DELETE", "/dbs/d/colls/c")
    driver.ok("POST", "/dbs/d/colls", {"id": "c", "partitionKey": {"paths": ["/pk"]}})
    token = driver.upsert("k", "a").headers["x-ms-session-token"]

    assert token not in (before, after)
    assert 200 == driver.item("GET", "k", "a", **session(after)).status


def test_a_session_token_stays_valid_after_a_split():
    driver = Driver()
    driver.upsert("k", "a")
    driver.container.split("0")

    assert 200 == driver.item("GET", "k", "a", **session("0:-1#2")).status
    assert (404, 1002) == substatus(driver.item("GET", "k", "a", **session("0:-1#99")))


def test_a_read_from_a_lagging_replica_shows_older_items():
    driver = lagging()
    driver.upsert("k", "a", n=1)
    driver.upsert("k", "gone")
    driver.clock.now += 10
    driver.upsert("k", "a", n=2)
    driver.upsert("k", "new")
    token = driver.item("DELETE", "k", "gone").headers["x-ms-session-token"]

    assert 1 == json.loads(driver.item("GET", "k", "a").body)["n"]
    assert 200 == driver.item("GET", "k", "gone").status
    assert 404 == driver.item("GET", "k", "new").status
    assert [1] == driver.rows("SELECT VALUE c.n FROM c")
    assert "new" not in [item["id"] for item in documents(driver.changes("0"))]
    assert (404, 1002) == substatus(driver.item("GET", "k", "a", x_ms_session_token=token))

    driver.clock.now += 5
    assert 2 == json.loads(driver.item("GET", "k", "a", x_ms_session_token=token).body)["n"]
    assert {"a", "new"} == {item["id"] for item in documents(driver.changes("0"))}


def test_the_change_feed_of_a_lagging_replica_loses_nothing():
    driver = lagging()
    seen, token = [], None
    for number in range(12):
        driver.upsert("k", str(number))
        driver.clock.now += 2
        page = driver.changes("0", token)
        seen += [item["id"] for item in documents(page)]
        token = page.headers["etag"]
    driver.clock.now += 5

    assert len(seen) < 12
    assert [str(number) for number in range(12)] == seen + [
        item["id"] for item in documents(driver.changes("0", token))
    ]
