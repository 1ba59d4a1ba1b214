"""
Noise of our own making, which schemathesis does not think of (flat bodies, raw bytes, conditions): the contacts API
answers with a status that it knows, its errors are problems, and none is a fault of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.container import MemoryContainer
from examples.contacts.api import create_app
from tests.support.contacts_api import Client, served
from tests.support.effort import examples

pytestmark = pytest.mark.looptime(False)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=120),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
names = st.text(max_size=120) | st.just("Jane")
name = st.fixed_dictionaries({"firstName": names, "lastName": names})
company_fields = ("companyName", "street", "houseNumber", "postalCode", "city", "country")
company = st.fixed_dictionaries({}, optional=dict.fromkeys(company_fields, st.text(max_size=300) | values))
emails = st.none() | st.emails() | st.text(max_size=40)
nearly_valid = st.fixed_dictionaries(
    {},
    optional={
        "name": name | values,
        "description": st.text(max_size=600) | values,
        "email": emails | values,
        "company": company | values,
        "firstName": names,
        "lastName": names,
        "companyName": names,
    },
)
bodies = (nearly_valid | values).map(json.dumps).map(str.encode) | st.binary(max_size=50)
header_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
etags = header_text | st.sampled_from(["*", '"x"', 'W/"x"', '"a", "b"', '"', ",", ""])
headers = st.tuples(st.sampled_from(["If-Match", "If-None-Match", "ETag", "traceparent"]), etags)
parts = ["name", "description", "email", "company"]
ids = st.sampled_from(["KNOWN", "0001f5bb-d4a9-48ba-af80-3db52bfd7461"]) | st.text(
    min_size=1, max_size=12
).map(lambda text: quote(text, safe=""))
routes = st.one_of(
    st.tuples(st.just("POST"), st.just("")),
    st.tuples(st.just("GET"), st.just("")),
    st.tuples(st.sampled_from(["GET", "DELETE"]), ids.map(lambda i: f"/{i}")),
    st.tuples(st.just("PUT"), st.tuples(ids, st.sampled_from(parts)).map(lambda p: f"/{p[0]}/{p[1]}")),
    st.tuples(
        st.just("POST"), st.tuples(ids, st.sampled_from(parts)).map(lambda p: f"/{p[0]}/update-{p[1]}")
    ),
)
queries = st.fixed_dictionaries(
    {}, optional={"pageSize": st.integers() | st.text(max_size=5), "continuationToken": st.text(max_size=20)}
)


@pytest.fixture
async def api() -> AsyncIterator[Client]:
    async with served(create_app(store=MemoryContainer())) as client:
        yield client


# One server serves all examples: what one leaves behind is part of the next.
@settings(
    max_examples=examples(50, many=150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(routes, bodies, queries, headers)
async def test_every_answer_has_a_status_that_the_api_knows(
    api: Client, route: tuple[str, str], body: bytes, query: dict[str, Any], header: tuple[str, str]
):
    method, path = route
    if "KNOWN" in path:
        person = {"firstName": "A", "lastName": "B", "companyName": "C"}
        known = await api.post("/api/contacts", json=person)
        path = path.replace("KNOWN", known.body["id"])

    try:
        answer = await api.send(
            method,
            f"/api/contacts{path}",
            data=body if method != "GET" else None,
            params=query if path == "" else None,
            headers={header[0]: header[1], "Content-Type": "application/json"},
        )
    except (aiohttp.InvalidURL, ValueError):
        return  # the client refuses to send it

    assert answer.status in {200, 201, 204, 304, 400, 404, 405, 412, 413}, answer.text
    if answer.status >= 400:
        assert "application/problem+json" == answer.headers["Content-Type"]
        assert answer.status == answer.body["status"]
