"""
Tests of queries over several partition keys: which queries the gateway answers, and which plan a client gets for the other
queries.
"""

from __future__ import annotations

import json

import pytest

from tests.emulators.cosmos.driver import Driver, documents, substatus

ALL = {"x_ms_documentdb_query_enablecrosspartition": "True"}
QUERY = {"x_ms_documentdb_isquery": "true"}
NUMBERED = "SELECT VALUE c.id FROM c ORDER BY c.n"
MERGED = [
    "SELECT * FROM c ORDER BY c.n",
    "SELECT COUNT(1) FROM c",
    "SELECT DISTINCT c.n FROM c",
    "SELECT DISTINCT VALUE c.n FROM c ORDER BY c.n OFFSET 2 LIMIT 4",
    "SELECT VALUE AVG(c.n) FROM c",
    "SELECT TOP 1 * FROM c",
]


def posted(driver: Driver, text: str, **headers: str):
    return driver.send("POST", "/dbs/d/colls/c/docs", {"query": text}, **QUERY, **headers)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_query_over_several_keys_needs_the_header_that_enables_it(partitions):
    driver = Driver(partitions=partitions)
    driver.upsert("k", "a")

    assert (400, 0) == substatus(posted(driver, "SELECT * FROM c"))
    assert (400, 0) == substatus(posted(driver, "SELECT * FROM c WHERE c.pk = 'k' OR c.n = 1"))
    assert ["a"] == [
        item["id"] for item in documents(posted(driver, "SELECT * FROM c WHERE c.pk = 'k' AND c.id = 'a'"))
    ]
    assert ["a"] == [item["id"] for item in documents(posted(driver, "SELECT * FROM c", **ALL))]


@pytest.mark.parametrize("query", [*MERGED, "SELECT * FROM c OFFSET 1 LIMIT 1"])
def test_a_query_whose_rows_a_client_has_to_merge_is_refused_with_its_plan(query):
    driver = Driver(partitions=2)

    reply = posted(driver, query, **ALL)

    assert (400, 1004) == substatus(reply)
    plan = json.loads(
        posted(
            driver,
            query,
            x_ms_cosmos_is_query_plan_request="True",
            x_ms_cosmos_supported_query_features=(
                "OrderBy, Aggregate, NonValueAggregate, Distinct, Top, OffsetAndLimit"
            ),
        ).body
    )
    assert plan == json.loads(json.loads(reply.body)["additionalErrorInfo"])


@pytest.mark.parametrize(
    ("query", "info", "rewritten"),
    [
        (
            "SELECT TOP 5 VALUE AVG(c.n) FROM c",
            {"aggregates": ["Average"], "top": 5},
            'SELECT VALUE [{"item": {"sum": SUM(c.n), "count": COUNT(c.n)}}] FROM c',
        ),
        (
            "SELECT COUNT(1) AS many, MIN(c.n) FROM c",
            {"groupByAliases": ["many", "$1"], "groupByAliasToAggregateType": {"many": "Count", "$1": "Min"}},
            'SELECT {"many": {"item": COUNT(1)}, "$1": {"item": MIN(c.n), "item2": {"min": MIN(c.n), "count": COUNT(c.n)}}} AS payload FROM c',
        ),
        (
            "SELECT c.t, COUNT(1) AS n FROM c GROUP BY c.t OFFSET 1 LIMIT 2",
            {"groupByExpressions": ["c.t"], "groupByAliasToAggregateType": {"t": None, "n": "Count"}},
            'SELECT [{"item": c.t}] AS groupByItems, {"t": c.t, "n": {"item": COUNT(1)}} AS payload FROM c GROUP BY c.t',
        ),
        (
            "SELECT DISTINCT VALUE c.n FROM c WHERE c.a = 1 ORDER BY c.n",
            {"distinctType": "Ordered", "hasSelectValue": True},
            'SELECT c._rid, [{"item": c.n}] AS orderByItems, c.n AS payload FROM c WHERE (c.a = 1) AND ({documentdb-formattableorderbyquery-filter}) AND (IS_DEFINED(c.n)) ORDER BY c.n ASC',
        ),
        ("SELECT DISTINCT c.a FROM c ORDER BY c.n", {"distinctType": "Unordered"}, None),
        (
            "SELECT DISTINCT TOP 5 VALUE c.n FROM c",
            {"distinctType": "Unordered"},
            "SELECT DISTINCT VALUE c.n FROM c",
        ),
    ],
)  # fmt: skip
def test_a_query_plan_has_the_shape_that_the_clients_expect(query, info, rewritten):
    """The expected plans are those of QueryPlanBaselineTests of the SDK for .NET."""
    plan = json.loads(json.loads(posted(Driver(), query, **ALL).body)["additionalErrorInfo"])["queryInfo"]

    assert info == {name: plan[name] for name in info}
    assert rewritten in (None, plan["rewrittenQuery"])


def test_an_aggregate_inside_another_expression_is_refused():
    assert (400, 0) == substatus(posted(Driver(partitions=2), "SELECT VALUE COUNT(1) + 1 FROM c", **ALL))


@pytest.mark.parametrize(
    ("order", "value", "rid", "exclude", "expected"),
    [
        ("ASC", 1, None, False, "abc"),
        ("ASC", 1, None, True, "c"),
        ("ASC", 1, "b", False, "bc"),
        ("DESC", 1, "a", False, "a"),
        ("DESC", 2, None, True, "ba"),
        ("ASC", [], None, False, "abc"),
    ],
)
def test_a_resume_filter_continues_a_query_with_order_by(order, value, rid, exclude, expected):
    """The SDK for .NET resumes a query by the field `resumeFilter`, and not by a condition in the text of the query."""
    driver = Driver()
    rids = {
        key: json.loads(driver.upsert("k", key, n=n).body)["_rid"]
        for key, n in zip("abc", (1, 1, 2), strict=True)
    }
    body = {
        "query": f"{NUMBERED} {order}",
        "resumeFilter": {"value": [value], "rid": rids.get(rid), "exclude": exclude},
    }
    addressed = {**QUERY, "x_ms_documentdb_partitionkey": '["k"]'}

    assert expected == "".join(documents(driver.send("POST", "/dbs/d/colls/c/docs", body, **addressed)))
    body["resumeFilter"]["value"] = [{"type": "array", "low": 1, "high": 2}]
    assert (400, 0) == substatus(driver.send("POST", "/dbs/d/colls/c/docs", body, **addressed))


def test_in_descending_order_the_newest_of_equal_values_comes_first():
    driver = Driver()
    for key in "abcd":
        driver.upsert("k", key, n=1)
    found, more = "", {}
    while more is not None:
        reply = driver.query("SELECT VALUE c.id FROM c ORDER BY c.n DESC", x_ms_max_item_count="3", **more)
        found += "".join(documents(reply))
        token = reply.headers.get("x-ms-continuation")
        more = token and {"x_ms_continuation": token}

    assert "dcba" == found


def test_a_query_is_refused_if_the_client_lacks_a_feature_of_its_plan():
    asked = posted(
        Driver(),
        MERGED[0],
        x_ms_cosmos_is_query_plan_request="True",
        x_ms_cosmos_supported_query_features="Top",
    )
    assert (400, 0) == substatus(asked)


def test_the_plan_of_a_query_for_one_key_names_only_its_range():
    driver = Driver(partitions=2)
    text = "SELECT * FROM c WHERE c.pk = 'k' ORDER BY c.n"
    plan = posted(
        driver,
        text,
        x_ms_cosmos_is_query_plan_request="True",
        x_ms_cosmos_supported_query_features="OrderBy",
    )
    (only,) = json.loads(plan.body)["queryRanges"]
    assert (only["min"], True) == (only["max"], only["isMaxInclusive"])


def test_query_rows_come_by_range_and_in_each_range_by_age():
    driver = Driver(partitions=3)
    for number in range(30):
        driver.upsert(f"k{number}", str(number))
    driver.upsert("k3", "3", again=True)

    rows, pages = [], 0
    token: dict[str, str] | None = {}
    while token is not None:
        reply = driver.query("SELECT VALUE c.id FROM c", x_ms_max_item_count="-1", **ALL, **token)
        rows += [int(row) for row in documents(reply)]
        pages += 1
        more = reply.headers.get("x-ms-continuation")
        token = None if more is None else {"x_ms_continuation": more}

    ranges = [
        [
            int(row)
            for row in driver.rows("SELECT VALUE c.id FROM c", x_ms_documentdb_partitionkeyrangeid=p.range_id)
        ]
        for p in driver.container.partitions
    ]
    assert 3 == pages, "a page has rows of one range only"
    assert rows == [row for of_range in ranges for row in of_range]
    assert all(sorted(of_range) == of_range for of_range in ranges)


@pytest.mark.parametrize(
    ("query", "sizes"),
    [
        ("SELECT * FROM c", [2, 2, 0]),
        ("SELECT * FROM c ORDER BY c.id", [2, 2]),
        ("SELECT * FROM c WHERE c.pk = 'k' ORDER BY c.id", [2, 2]),
    ],
)
def test_only_a_query_with_order_by_has_no_empty_page_at_its_end(query, sizes):
    driver = Driver()
    for number in range(4):
        driver.upsert("k", str(number))
    addressed = ALL if "pk" in query else {"x_ms_documentdb_partitionkeyrangeid": "0"}
    found, more = [], {}
    while more is not None and len(found) < 9:
        reply = posted(driver, query, x_ms_max_item_count="2", **addressed, **more)
        found.append(len(documents(reply)))
        token = reply.headers.get("x-ms-continuation")
        more = token and {"x_ms_continuation": token}

    assert sizes == found


def test_the_client_merges_an_aggregate_even_if_the_filter_names_one_key():
    reply = posted(Driver(), "SELECT AVG(c.n) FROM c WHERE c.pk = 'k'", **ALL)

    assert (400, 1004) == substatus(reply)


def test_a_query_can_filter_rows_by_the_type_of_a_property():
    driver = Driver()
    for number, value in enumerate((None, False, True, 1, "a")):
        driver.upsert("k", str(number), n=value)
    behind = "SELECT VALUE c.id FROM c WHERE NOT IS_DEFINED(c.n) OR IS_NULL(c.n) OR IS_BOOLEAN(c.n)"

    assert ["0", "1", "2"] == driver.rows(behind)


def test_a_query_returns_its_metrics_when_a_header_asks_for_them():
    driver = Driver()
    driver.upsert("k", "a")
    asked = {"x_ms_documentdb_populatequerymetrics": "True", "x_ms_cosmos_populateindexmetrics": "True"}

    told = driver.query("SELECT * FROM c", **asked).headers

    assert "outputDocumentCount=1" in told["x-ms-documentdb-query-metrics"].split(";")
    assert "x-ms-cosmos-index-utilization" in told
    assert "x-ms-documentdb-query-metrics" not in driver.query("SELECT * FROM c").headers
