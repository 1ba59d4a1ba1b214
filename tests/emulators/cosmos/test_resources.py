"""Tests of databases, containers and offers, as the management API of an SDK sees them."""

from __future__ import annotations

import base64
import json

import pytest
from multidict import CIMultiDict

from cosmos_outbox_emulators.cosmos.auth import signature
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request
from tests.emulators.cosmos.driver import DATE, DOCUMENTS, Driver, put, substatus

ISQUERY = {"x_ms_documentdb_isquery": "true"}


def offer_of(driver: Driver, link: str) -> dict:
    query = {
        "query": "SELECT * FROM root r WHERE r.resource=@link",
        "parameters": [{"name": "@link", "value": link}],
    }
    (offer,) = driver.ok("POST", "/offers", query, **ISQUERY)["Offers"]
    return offer


def test_databases_can_be_listed_in_pages_or_by_a_query():
    driver = Driver()
    for name in "abc":
        driver.ok("POST", "/dbs", {"id": name})

    reply = driver.send("GET", "/dbs", x_ms_max_item_count="3")
    more = {"x_ms_continuation": reply.headers["x-ms-continuation"]}
    pages = [json.loads(one.body)["Databases"] for one in (reply, driver.send("GET", "/dbs", **more))]
    query = {"query": "SELECT VALUE d.id FROM d WHERE d.id < 'd' ORDER BY d.id DESC"}

    assert [["d", "a", "b"], ["c"]] == [[one["id"] for one in page] for page in pages]
    assert ["c", "b", "a"] == driver.ok("POST", "/dbs", query, **ISQUERY)["Databases"]
    assert 400 == driver.send("GET", "/dbs", x_ms_max_item_count="-2").status


def test_an_offer_names_the_minimum_throughput():
    driver = Driver()
    offer = offer_of(driver, driver.ok("GET", "/dbs/d/colls/c")["_self"])

    assert "400" == driver.send("GET", f"/{offer['_self']}").headers["x-ms-cosmos-min-throughput"]


def test_the_account_describes_its_query_engine_in_a_json_string():
    """
    The SDK for .NET passes `queryEngineConfiguration` to native code, which ends the process if fields are missing.
    """
    engine = json.loads(Driver().ok("GET", "/")["queryEngineConfiguration"])

    assert (262_144, 0.9) == (engine["maxSqlQueryInputLength"], engine["maxQueryRequestTimeoutFraction"])
    assert [True] * 4 == [engine[f"sqlAllow{what}"] for what in ("Top", "Like", "SubQuery", "GroupByClause")]


def signed_by_rid(driver: Driver, method: str, target: str) -> Reply:
    """Send a request whose path consists of resource ids, with a signature of that path."""
    made = signature(
        base64.b64decode(driver.account.key), method, target.strip("/").split("/"), DATE, by_rid=True
    )
    headers = {"authorization": f"type%3Dmaster%26ver%3D1.0%26sig%3D{made}", "x-ms-date": DATE}
    headers["x-ms-documentdb-partitionkey"] = '["k"]'
    return driver.gateway.answer(Request(method=method, target=target, headers=CIMultiDict(headers)))


def test_raising_the_throughput_splits_a_container_at_once():
    """The test also checks that a lower throughput merges no partitions."""
    driver = Driver()
    container = driver.ok("GET", "/dbs/d/colls/c")
    offer = offer_of(driver, container["_self"])
    assert 400 == offer["content"]["offerThroughput"]

    def replaced(throughput: int) -> int:
        offer["content"]["offerThroughput"] = throughput
        return driver.send("PUT", f"/{offer['_self']}", offer).status

    assert (200, 3) == (replaced(30_000), len(driver.container.partitions))
    assert (200, 3) == (replaced(400), len(driver.container.partitions))
    assert (400, 400) == (replaced(100), replaced(450))
    assert 400 == offer_of(driver, container["_self"])["content"]["offerThroughput"]


def test_a_throughput_offer_has_the_same_id_in_its_id_rid_and_link():
    driver = Driver()
    offer = offer_of(driver, driver.ok("GET", "/dbs/d/colls/c")["_self"])

    assert (offer["_rid"], f"offers/{offer['_rid']}/", 4) == (offer["id"], offer["_self"], len(offer["id"]))
    assert offer == driver.ok("GET", f"/offers/{offer['id']}")


def test_containers_of_a_database_with_throughput_have_no_throughput_of_their_own():
    driver = Driver()
    settings = json.dumps({"maxThroughput": 4000})
    driver.ok("POST", "/dbs", {"id": "shared"}, x_ms_cosmos_offer_autopilot_settings=settings)
    driver.ok("POST", "/dbs/shared/colls", {"id": "c", "partitionKey": {"paths": ["/pk"]}})

    resources = {offer["resource"] for offer in driver.ok("GET", "/offers")["Offers"]}

    assert driver.ok("GET", "/dbs/shared")["_self"] in resources
    assert driver.ok("GET", "/dbs/shared/colls/c")["_self"] not in resources


def test_databases_containers_and_items_can_be_read_by_their_self_links():
    driver = Driver()
    driver.upsert("k", "a")
    (item,) = driver.rows("SELECT * FROM c")

    assert 200 == signed_by_rid(driver, "GET", "/" + driver.ok("GET", "/dbs/d")["_self"]).status
    assert 200 == signed_by_rid(driver, "GET", "/" + driver.ok("GET", "/dbs/d/colls/c")["_self"]).status
    assert "a" == json.loads(signed_by_rid(driver, "GET", "/" + item["_self"]).body)["id"]
    assert 404 == signed_by_rid(driver, "GET", "/dbs/AAAAAA==/").status


def test_an_indexing_policy_is_completed_with_azure_s_defaults():
    driver = Driver()
    policy = {
        "includedPaths": [{"path": "/", "indexes": [{"kind": "Hash"}]}],
        "excludedPaths": [{"path": "/a/*"}],
    }
    body = {"id": "n", "partitionKey": {"paths": ["/pk"]}, "indexingPolicy": policy}

    made = driver.ok("POST", "/dbs/d/colls", body)["indexingPolicy"]

    assert [{"path": "/*"}] == made["includedPaths"]
    assert [{"path": "/a/*"}, {"path": '/"_etag"/?'}] == made["excludedPaths"]


def test_one_request_deletes_all_items_of_a_partition_key():
    driver = Driver()
    driver.upsert("k", "a")
    driver.upsert("other", "a")

    reply = driver.send(
        "POST", "/dbs/d/colls/c/operations/partitionkeydelete", x_ms_documentdb_partitionkey='["k"]'
    )

    assert (200, ["other"]) == (reply.status, driver.rows("SELECT VALUE c.pk FROM c"))


def test_a_container_has_an_empty_list_of_conflicts():
    driver = Driver()
    assert [] == driver.ok("GET", "/dbs/d/colls/c/conflicts")["Conflicts"]
    assert (404, 0) == substatus(driver.send("GET", "/dbs/d/colls/c/conflicts/x"))


def test_a_replace_may_change_the_id_of_an_item():
    driver = Driver()
    driver.upsert("k", "a")
    driver.upsert("k", "taken")
    before = json.loads(driver.item("GET", "k", "a").body)

    renamed = json.loads(driver.item("PUT", "k", "a", {"id": "b", "pk": "k"}).body)

    assert (before["_rid"], "b") == (renamed["_rid"], renamed["id"])
    assert ["b", "taken"] == sorted(driver.rows("SELECT VALUE c.id FROM c"))
    assert 409 == driver.item("PUT", "k", "b", {"id": "taken", "pk": "k"}).status


def test_a_patch_may_be_a_bare_list_of_operations():
    driver = Driver()
    driver.upsert("k", "a")
    assert 200 == driver.item("PATCH", "k", "a", [{"op": "set", "path": "/n", "value": 1}]).status


def test_a_batch_with_prefer_minimal_returns_only_the_bodies_of_reads():
    driver = Driver()
    create = put("Create", "a")
    read = {"operationType": "Read", "id": "a"}

    reply = driver.item(
        "POST", "k", None, [create, read], x_ms_cosmos_is_batch_request="True", prefer="return=minimal"
    )

    assert [False, True] == ["resourceBody" in result for result in json.loads(reply.body)]


@pytest.mark.parametrize(("goes_on", "expected"), [("True", [201, 409, 201]), ("False", [201, 409, 424])])
def test_a_failed_operation_of_a_bulk_request_undoes_no_other_operation(goes_on, expected):
    driver = Driver()
    keys = ("k", "k", "other")
    operations = [{**put("Create", "a", key), "partitionKey": json.dumps([key])} for key in keys]
    bulk = {"x_ms_cosmos_is_batch_request": "True", "x_ms_cosmos_batch_atomic": "False"}

    reply = driver.send(
        "POST",
        DOCUMENTS,
        operations,
        x_ms_documentdb_partitionkeyrangeid="0",
        x_ms_cosmos_batch_continue_on_error=goes_on,
        **bulk,
    )

    assert (207, expected) == (reply.status, [result["statusCode"] for result in json.loads(reply.body)])
    assert expected.count(201) == len(driver.rows("SELECT * FROM c"))


@pytest.mark.parametrize(("atomic", "expected"), [("False", [201, 400, 201]), ("True", None)])
def test_an_operation_whose_body_is_no_object_fails_its_whole_batch(atomic, expected):
    """An operation whose body is not a JSON object fails its whole batch. In a bulk request, only this operation fails."""
    driver = Driver()
    operations = [{**put("Create", name), "partitionKey": '["k"]'} for name in "abc"]
    operations[1]["resourceBody"] = "no object"
    headers = {"x_ms_cosmos_batch_atomic": atomic, "x_ms_cosmos_batch_continue_on_error": "True"}

    reply = driver.batch("k", operations, **headers)

    body = json.loads(reply.body)
    assert expected == (None if reply.status == 400 else [result["statusCode"] for result in body])
    assert len(driver.rows("SELECT * FROM c")) == (2 if expected else 0)
