"""Tests of the contacts API: it does what Microsoft's sample does, and more."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cosmos_outbox import StoreUnavailable
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.ports import Write, WriteKind
from examples.contacts.api import create_app
from tests.support.contacts_api import JANE, Answer, Client, served
from tests.support.faulty_store import FaultyStore, ReadFault
from tests.support.notes import actions, events, stored

pytestmark = pytest.mark.looptime(False)

UNKNOWN_ID = "0001f5bb-d4a9-48ba-af80-3db52bfd7461"


@pytest.fixture
def container() -> MemoryContainer:
    return MemoryContainer()


@pytest.fixture
def store(container: MemoryContainer) -> FaultyStore:
    return FaultyStore(container)


@pytest.fixture
async def api(store: FaultyStore) -> AsyncIterator[Client]:
    async with served(create_app(store=store)) as client:
        yield client


async def created(api: Client, body: dict[str, Any] = JANE) -> tuple[str, str]:
    answer = await api.post("/api/contacts", json=body)
    assert 201 == answer.status, answer.text
    return answer.headers["Location"], answer.headers["ETag"]


def assert_problem(answer: Answer, status: int) -> dict[str, Any]:
    assert status == answer.status, answer.text
    assert "application/problem+json" == answer.headers["Content-Type"]
    problem: dict[str, Any] = answer.body
    assert status == problem["status"]
    assert problem["title"]
    return problem


async def test_the_answer_to_a_new_contact_has_its_address_etag_and_version(
    api: Client, container: MemoryContainer
):
    """The answer to a new contact also has the id of its event, in the header X-Event-Ids."""
    answer = await api.post("/api/contacts", json=JANE)

    assert 201 == answer.status
    contact_id = answer.body["id"]
    assert f"/api/contacts/{contact_id}" == answer.headers["Location"]
    assert JANE == {name: answer.body[name] for name in JANE}
    assert ("1", 1) == (answer.headers["X-Contact-Version"], answer.body["version"])
    assert answer.headers["ETag"] == answer.body["etag"]

    (event,) = events(container)
    assert event["id"] == answer.headers["X-Event-Ids"]
    assert ("ContactCreatedEvent", contact_id) == (event["data"]["action"], event["data"]["contactId"])
    state = {"id": contact_id, "createdAt": answer.body["createdAt"], "deleted": False}
    assert {**JANE, **state} == event["data"]["contact"], "nested, as consumers of Microsoft's sample read it"


async def test_stored_documents_have_the_shape_that_other_languages_expect(
    api: Client, container: MemoryContainer
):
    location, _ = await created(api)
    contact_id = location.rpartition("/")[2]

    (contact,) = stored(container, "contact")
    assert {"id", "partitionKey", "type", "data", "ttl", "version"} == {n for n in contact if n[0] != "_"}
    assert (contact_id, contact_id, -1, 1) == tuple(
        contact[name] for name in ("id", "partitionKey", "ttl", "version")
    )
    assert {*JANE, "id", "createdAt", "deleted"} == set(contact["data"])
    (event,) = events(container)
    assert {"id", "action", "createdAt", "contactId", "contact"} == set(event["data"])
    assert (contact_id, 864000) == (event["partitionKey"], event["ttl"])
    assert ("contact", contact_id, 1, 0) == tuple(
        event["meta"][name] for name in ("entityType", "entityId", "entityVersion", "sequence")
    )


async def test_a_contact_with_flat_fields_as_in_microsoft_s_sample_is_accepted(api: Client):
    location, _ = await created(
        api,
        {
            "firstName": "John",
            "lastName": "Doe",
            "email": "jd@example.com",
            "description": "",
            "companyName": "E",
        },
    )
    contact = (await api.get(location)).body
    assert ({"firstName": "John", "lastName": "Doe"}, "E") == (
        contact["name"],
        contact["company"]["companyName"],
    )


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "name": ("ContactNameUpdatedEvent", {"name": {"firstName": "Jim", "lastName": "Stark"}}),
    "description": ("ContactDescriptionUpdatedEvent", {"description": "new"}),
    "email": ("ContactEmailUpdatedEvent", {"email": "jd@ex.com"}),
    "company": ("ContactCompanyUpdatedEvent", {"company": {**JANE["company"], "companyName": "New"}}),
}


@pytest.mark.parametrize("part", CHANGES)
@pytest.mark.parametrize("route", ["PUT /", "POST /update-"])
async def test_a_change_of_a_contact_is_stored_with_its_event(
    api: Client, container: MemoryContainer, route: str, part: str
):
    (method, path), (action, body) = route.split(), CHANGES[part]
    location, etag = await created(api)

    answer = await api.send(method, f"{location}{path}{part}", json=body, headers={"If-Match": etag})

    assert 200 == answer.status, answer.text
    assert "2" == answer.headers["X-Contact-Version"]
    assert etag != answer.headers["ETag"]
    event = events(container)[-1]
    assert event["data"]["createdAt"] == stored(container, "contact")[0]["data"]["modifiedAt"]
    assert (action, answer.headers["X-Event-Ids"]) == (event["data"]["action"], event["id"])
    assert body == {name: event["data"][name] for name in body}
    read = await api.get(location)
    assert ({**JANE, **body}, answer.headers["ETag"]) == (
        {name: read.body[name] for name in JANE},
        read.headers["ETag"],
    )


@pytest.mark.parametrize("header", ["If-Match", "ETag"])
async def test_a_change_with_an_old_etag_is_refused(api: Client, container: MemoryContainer, header: str):
    location, old = await created(api)
    newer = (await api.put(f"{location}/email", json={"email": None})).headers["ETag"]

    for answer in (
        await api.put(f"{location}/email", json={"email": "x@example.com"}, headers={header: old}),
        await api.delete(location, headers={header: old}),
    ):
        assert_problem(answer, 412)
        assert newer == answer.headers["ETag"]
    assert ["ContactCreatedEvent", "ContactEmailUpdatedEvent"] == actions(container)


async def test_if_match_takes_precedence_over_the_sample_s_etag_header(api: Client):
    location, etag = await created(api)
    both = {"If-Match": '"old"', "ETag": etag}
    assert_problem(await api.delete(location, headers=both), 412)
    assert 204 == (await api.delete(location, headers={"If-Match": etag, "ETag": '"old"'})).status


async def test_a_deleted_contact_is_not_found_but_stays_in_the_store(api: Client, container: MemoryContainer):
    location, etag = await created(api)

    answer = await api.delete(location, headers={"If-Match": etag})

    assert (204, "2") == (answer.status, answer.headers["X-Contact-Version"])
    assert ["ContactCreatedEvent", "ContactDeletedEvent"] == actions(container)
    (kept,) = stored(container, "contact")
    assert kept["_etag"] == answer.headers["ETag"] != etag
    assert kept["data"]["deleted"]
    assert kept["data"]["deletedAt"] == events(container)[-1]["data"]["createdAt"]
    assert "modifiedAt" not in kept["data"], "as the sample writes it"
    assert_problem(await api.get(location), 404)
    assert_problem(await api.delete(location), 404)
    assert_problem(await api.put(f"{location}/email", json={"email": None}), 404)
    assert [] == (await api.get("/api/contacts")).body["items"]


async def test_an_unknown_contact_is_answered_with_404(api: Client):
    assert_problem(await api.get(f"/api/contacts/{UNKNOWN_ID}"), 404)
    assert_problem(await api.delete(f"/api/contacts/{UNKNOWN_ID}"), 404)
    assert_problem(await api.get("/nowhere"), 404)


async def test_the_list_of_contacts_is_paged_by_a_continuation_token(api: Client):
    """The continuation token of a list may be in the query or in a header."""
    ids = sorted([(await created(api))[0].rpartition("/")[2] for _ in range(5)])

    first = await api.get("/api/contacts?pageSize=2")
    token = first.headers["X-Continuation-Token"]
    second = await api.get("/api/contacts", params={"pageSize": 2, "continuationToken": token})
    third = await api.get(
        "/api/contacts?pageSize=2", headers={"X-Continuation-Token": second.body["continuationToken"]}
    )

    pages = [first, second, third]
    assert [ids[0:2], ids[2:4], ids[4:5]] == [[c["id"] for c in page.body["items"]] for page in pages]
    assert [True, True, False] == [page.body["hasMore"] for page in pages]
    assert None is third.body["continuationToken"]
    assert "X-Continuation-Token" not in third.headers


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**JANE, "name": {"firstName": "", "lastName": "Doe"}}, "name.firstName"),
        ({**JANE, "name": {"firstName": "  ", "lastName": "Doe"}}, "name.firstName"),
        ({**JANE, "name": {"firstName": "x" * 101, "lastName": "Doe"}}, "name.firstName"),
        ({**JANE, "name": {"firstName": "Jane"}}, "name.lastName"),
        ({**JANE, "description": "x" * 501}, "description"),
        ({**JANE, "email": "no-address"}, "email"),
        ({**JANE, "email": ""}, "email"),
        ({**JANE, "email": "a@b@c"}, "email"),
        ({**JANE, "company": {"companyName": "x" * 251}}, "company.companyName"),
        ({**JANE, "company": {"companyName": ""}}, "company.companyName"),
        ({**JANE, "company": {"companyName": " "}}, "company.companyName"),
        ({**JANE, "company": {"city": "Palo Alto"}}, "company.companyName"),
        ({**JANE, "company": {"companyName": "C", "street": "x" * 251}}, "company.street"),
        ({**JANE, "company": {"companyName": "C", "houseNumber": "x" * 11}}, "company.houseNumber"),
        ({**JANE, "company": {"companyName": "C", "postalCode": "x" * 26}}, "company.postalCode"),
        ({"name": JANE["name"]}, "company"),
        ({**JANE, "nickname": "J"}, "nickname"),
        ({"description": "no name", "company": JANE["company"]}, "name"),
        ([], "body"),
        ("text", "body"),
        (None, "body"),
        (JANE | {"name": {"firstName": "A", "lastName": "B", "nickName": "C"}}, "name.nickName"),
        (JANE | {"company": {"companyName": "C", "town": "Palo Alto"}}, "company.town"),
    ],
)
async def test_the_refusal_of_an_invalid_contact_names_the_wrong_field(
    api: Client, container: MemoryContainer, body: Any, field: str
):
    problem = assert_problem(await api.post("/api/contacts", json=body), 400)

    assert [field] == list(problem["errors"])
    assert () == container.documents()


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b'{"name": {"firstName": "\\ud800", "lastName": "x"}}', b"[" * 50_000]
)
async def test_the_api_refuses_a_body_that_is_no_json(api: Client, raw: bytes):
    answer = await api.post("/api/contacts", data=raw, headers={"Content-Type": "application/json"})
    assert_problem(answer, 400)


async def test_a_contact_of_the_dotnet_program_can_be_changed(api: Client, container: MemoryContainer):
    """A change keeps the fields that the .NET program wrote into the contact."""
    at = "2024-05-01T10:00:00.1234567+00:00"
    data = {
        "name": JANE["name"],
        "company": {"companyName": "Contoso", "street": ""},
        "createdAt": at,
        "modifiedAt": at,
        "deleted": False,
        "id": UNKNOWN_ID,
    }
    written = {"id": UNKNOWN_ID, "partitionKey": UNKNOWN_ID, "type": "contact", "data": data, "ttl": -1}
    await container.commit(UNKNOWN_ID, [Write(kind=WriteKind.CREATE, id=UNKNOWN_ID, document=written)])

    answer = await api.post(f"/api/contacts/{UNKNOWN_ID}/update-email", json={"email": "a@b"})

    assert (200, "a@b", "") == (answer.status, answer.body["email"], answer.body["description"])
    (kept,) = stored(container, "contact")
    assert at < kept["data"]["modifiedAt"] == events(container)[-1]["data"]["createdAt"]


async def test_an_email_address_that_microsoft_s_sample_accepts_is_accepted(api: Client):
    location, _ = await created(api, {**JANE, "email": "Ada@LOCALHOST"})
    assert "Ada@LOCALHOST" == (await api.get(location)).body["email"]


async def test_an_etag_longer_than_microsoft_s_sample_allows_is_refused(api: Client):
    location, _ = await created(api)
    assert_problem(await api.delete(location, headers={"ETag": "x" * 51}), 400)
    assert_problem(await api.delete(location, headers={"ETag": "x" * 50}), 412)


async def test_a_body_too_large_for_any_contact_is_refused(api: Client):
    assert_problem(await api.post("/api/contacts", data=b"[" * 100_000), 413)


async def test_the_documentation_page_loads_nothing_from_other_servers(api: Client):
    page = (await api.get("/docs")).text
    assert "/openapi.json" in page
    assert set(re.findall(r"https?://([^/:\"']+)", page)) <= {"127.0.0.1"}
    parts = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert 3 == len(parts)
    assert {200} == {(await api.send("HEAD", part)).status for part in parts}


@pytest.mark.parametrize(
    "path", ["?pageSize=0", "?pageSize=101", "?pageSize=x", "?continuationToken=%00%ff!", "/not-a-guid"]
)
async def test_invalid_query_parameters_are_refused(api: Client, path: str):
    assert_problem(await api.get(f"/api/contacts{path}"), 400)


@pytest.mark.parametrize("path", ["/api/contacts", f"/api/contacts/{UNKNOWN_ID}", "/healthz"])
async def test_an_unsupported_http_method_is_refused(api: Client, path: str):
    assert_problem(await api.send("PATCH", path), 405)


async def test_a_head_request_is_answered_as_a_get_without_the_body(api: Client):
    location, etag = await created(api)
    answer = await api.send("HEAD", location)
    assert (200, etag, "") == (answer.status, answer.headers["ETag"], answer.text)
    assert 304 == (await api.send("HEAD", location, headers={"If-None-Match": etag})).status
    assert 200 == (await api.send("HEAD", "/api/contacts")).status


class _Forgetful(FaultyStore):
    """
    A store that commits, then reports an unknown outcome, and asks for a longer wait than the deadline allows.
    """

    async def commit(self, partition_key, writes):
        await super().commit(partition_key, writes)
        raise StoreUnavailable(retry_after=60)


async def test_a_creation_with_unknown_outcome_is_answered_with_its_location(
    container: MemoryContainer,
):
    """
    The answer has no Retry-After header, because the client has to look first whether the contact exists.
    """
    async with served(create_app(store=_Forgetful(container, reads=[ReadFault.UNAVAILABLE]))) as api:
        answer = await api.post("/api/contacts", json=JANE)
        assert_problem(answer, 503)
        assert "Retry-After" not in answer.headers
        assert 200 == (await api.get(answer.headers["Location"])).status


async def test_the_openapi_description_covers_all_operations_and_errors(api: Client):
    schema = (await api.get("/openapi.json")).body

    operations = [
        (path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/api")
    ]
    assert 12 == len(operations)
    assert 12 == len({operation["operationId"] for _, _, operation in operations})
    for path, method, operation in operations:
        for kind in ("4XX", "5XX"):
            assert {"application/problem+json"} == set(operation["responses"][kind]["content"])
        assert "422" not in operation["responses"], "FastAPI's own, which this API never answers"
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (path, method, parameter["name"])


async def test_the_health_endpoint_says_that_the_process_is_up(api: Client):
    assert {"status": "ok"} == (await api.get("/healthz")).body
    for path in ("/healthz", "/docs", "/openapi.json"):
        answer = await api.send("HEAD", path)
        assert (200, "") == (answer.status, answer.text)
