"""
The contacts API: HTTP in, one unit of work per request, problem details out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from pydantic import BaseModel

from cosmos_outbox import Outbox, Store
from cosmos_outbox.adapters.cosmos_client import open_cosmos_client
from cosmos_outbox.adapters.cosmos_store import open_store
from examples.contacts import problems, service
from examples.contacts.conditions import ExpectedEtags, KnownEtags
from examples.contacts.domain import Contact
from examples.contacts.models import (
    ContactPage,
    ContactView,
    NewCompany,
    NewContact,
    NewDescription,
    NewEmail,
    NewName,
)
from examples.contacts.problems import Problem
from examples.contacts.request_context import RequestContext
from examples.contacts.service import Changed, ContactsUnitOfWork
from examples.contacts.settings import Settings

MAX_PAGE_SIZE = 100
_DESCRIPTION = """
People and how to reach them. Every change is committed together with the event that tells of it.

Errors are problem details (RFC 9457). `X-Correlation-Id` and `traceparent` of a request are passed on to its events.
"""

router = APIRouter(prefix="/api/contacts", tags=["contacts"])


class Health(BaseModel):
    """
    The process is up.
    """

    status: str = "ok"


def create_app(settings: Settings | None = None, *, store: Store | None = None) -> FastAPI:
    """
    Return the application; it opens its clients when it starts and closes them when it stops.

    Args:
        settings: where Cosmos DB is.
        store: takes the place of Cosmos DB, for tests and simulations.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            app.state.outbox = Outbox(store or await _opened(settings or Settings(), stack))
            yield

    app = FastAPI(title="Contacts", version="1", description=_DESCRIPTION, lifespan=lifespan)
    app.add_middleware(RequestContext)
    app.include_router(router)
    app.add_api_route("/healthz", _healthz, methods=["GET"], tags=["operations"], operation_id="healthz")
    problems.install(app, router)
    app.openapi = _without_422(app.openapi)  # type: ignore[method-assign] # FastAPI's documented way
    return app


async def _opened(settings: Settings, stack: AsyncExitStack) -> Store:
    secret = settings.cosmos_connection_string
    client = await stack.enter_async_context(
        open_cosmos_client(
            connection_string=secret.get_secret_value() if secret else None,
            endpoint=settings.cosmos_endpoint,
        )
    )
    return await open_store(client, settings.cosmos_database, settings.cosmos_container)


async def _healthz() -> Health:
    return Health()


async def _unit_of_work(request: Request) -> AsyncIterator[ContactsUnitOfWork]:
    outbox: Outbox = request.app.state.outbox
    async with outbox.unit_of_work(ContactsUnitOfWork) as uow:
        yield uow


UnitOfWorkNeeded = Annotated[ContactsUnitOfWork, Depends(_unit_of_work)]
ContactId = Annotated[UUID, Path(description="The contact's id, as its creation gave it out.")]


def _problem_responses(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    always = (HTTPStatus.BAD_REQUEST, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    content = {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    retry = {
        "Retry-After": {
            "schema": {"type": "integer"},
            "description": "Seconds to wait before trying again; not there if the change may be stored already.",
        }
    }
    retried = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    return {
        int(status): {"description": status.phrase, "content": content}
        | ({"headers": retry} if status in retried else {})
        for status in sorted({*always, *statuses})
    }


_ETAG_HEADER = {"ETag": {"schema": {"type": "string"}, "description": "The contact's etag."}}
_CHANGE_HEADERS = {
    "X-Contact-Version": {"schema": {"type": "integer"}, "description": "The contact's new version."},
    "X-Event-Ids": {
        "schema": {"type": "string"},
        "description": "The ids of the events that were committed, in order, separated by commas.",
    },
}
_LOCATION_HEADER = {"Location": {"schema": {"type": "string"}, "description": "Where the contact is read."}}
_Responses = dict[int | str, dict[str, Any]]
_CREATED: _Responses = {
    201: {
        "description": "The contact as it is stored.",
        "headers": _ETAG_HEADER | _CHANGE_HEADERS | _LOCATION_HEADER,
    }
}
_CHANGED: _Responses = {
    200: {"description": "The contact as it is now stored.", "headers": _ETAG_HEADER | _CHANGE_HEADERS}
}
_READ: _Responses = {
    200: {"description": "The contact.", "headers": _ETAG_HEADER},
    304: {"description": "The caller's copy is current.", "headers": _ETAG_HEADER},
}
_LISTED: _Responses = {
    200: {
        "description": "A page of contacts.",
        "headers": {
            "X-Continuation-Token": {
                "schema": {"type": "string"},
                "description": "As in the body; not there after the last page.",
            }
        },
    }
}
_DELETED: _Responses = {204: {"description": "The contact is deleted.", "headers": _CHANGE_HEADERS}}
_CREATION_PROBLEMS = _problem_responses(HTTPStatus.CONFLICT)
_CREATION_PROBLEMS[503]["headers"] = {
    **_CREATION_PROBLEMS[503]["headers"],
    "Location": {
        "schema": {"type": "string"},
        "description": "Where to look, instead of trying again, if it is not known whether the contact was stored.",
    },
}
_CHANGE_PROBLEMS = _problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.PRECONDITION_FAILED)


def _describe(changed: Changed, response: Response) -> ContactView:
    _set_change_headers(changed, response)
    response.headers["ETag"] = changed.contact.etag or ""
    return ContactView.of(changed.contact)


def _set_change_headers(changed: Changed, response: Response) -> None:
    response.headers["X-Contact-Version"] = str(changed.contact.version)
    response.headers["X-Event-Ids"] = ",".join(event.id for event in changed.commit.events)


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    operation_id="createContact",
    responses=_CREATED | _CREATION_PROBLEMS,
)
async def create_contact(
    body: NewContact, uow: UnitOfWorkNeeded, request: Request, response: Response
) -> ContactView:
    """
    Add a contact.
    """
    contact = Contact(name=body.name, description=body.description, email=body.email, company=body.company)
    location = f"/api/contacts/{contact.id}"
    request.state.location = location  # where the caller may look if the outcome stays unknown
    changed = await service.create(uow, contact)
    response.headers["Location"] = location
    return _describe(changed, response)


@router.head("", include_in_schema=False)
@router.get("", operation_id="listContacts", responses=_LISTED | _problem_responses())
async def list_contacts(
    uow: UnitOfWorkNeeded,
    response: Response,
    page_size: Annotated[
        int, Query(alias="pageSize", ge=1, le=MAX_PAGE_SIZE, description="How many contacts at most.")
    ] = 10,
    continuation_token: Annotated[
        str | None,
        Query(alias="continuationToken", description="Of the page before; none for the first page."),
    ] = None,
    x_continuation_token: Annotated[
        str | None, Header(description="The same as continuationToken, as Microsoft's sample has it.")
    ] = None,
) -> ContactPage:
    """
    List the contacts that are not deleted, ordered by id.
    """
    page = await service.read_page(uow, page_size, continuation_token or x_continuation_token)
    if page.continuation is not None:
        response.headers["X-Continuation-Token"] = page.continuation
    return ContactPage.of(page)


@router.head("/{contact_id}", include_in_schema=False)
@router.get(
    "/{contact_id}",
    operation_id="getContact",
    responses=_READ | _problem_responses(HTTPStatus.NOT_FOUND),
)
async def get_contact(
    contact_id: ContactId, uow: UnitOfWorkNeeded, known: KnownEtags, response: Response
) -> ContactView:
    """
    Read a contact.
    """
    contact = await service.read(uow, str(contact_id), known)
    response.headers["ETag"] = contact.etag or ""
    return ContactView.of(contact)


def _change_route(part: str, operation_id: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # PUT …/name is the resource; POST …/update-name is what clients of Microsoft's sample call.
    def register(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        for method, path, suffix in (("PUT", part, ""), ("POST", f"update-{part}", "Post")):
            router.add_api_route(
                f"/{{contact_id}}/{path}",
                endpoint,
                methods=[method],
                operation_id=operation_id + suffix,
                responses=_CHANGED | _CHANGE_PROBLEMS,
            )
        return endpoint

    return register


@_change_route("name", "updateContactName")
async def update_name(
    contact_id: ContactId, body: NewName, uow: UnitOfWorkNeeded, expected: ExpectedEtags, response: Response
) -> ContactView:
    """
    Change how a contact is called.
    """
    changed = await service.change(uow, str(contact_id), expected, lambda contact: contact.rename(body.name))
    return _describe(changed, response)


@_change_route("description", "updateContactDescription")
async def update_description(
    contact_id: ContactId,
    body: NewDescription,
    uow: UnitOfWorkNeeded,
    expected: ExpectedEtags,
    response: Response,
) -> ContactView:
    """
    Change how a contact is described.
    """
    changed = await service.change(
        uow, str(contact_id), expected, lambda contact: contact.describe(body.description)
    )
    return _describe(changed, response)


@_change_route("email", "updateContactEmail")
async def update_email(
    contact_id: ContactId, body: NewEmail, uow: UnitOfWorkNeeded, expected: ExpectedEtags, response: Response
) -> ContactView:
    """
    Change or remove a contact's e-mail address.
    """
    changed = await service.change(
        uow, str(contact_id), expected, lambda contact: contact.change_email(body.email)
    )
    return _describe(changed, response)


@_change_route("company", "updateContactCompany")
async def update_company(
    contact_id: ContactId,
    body: NewCompany,
    uow: UnitOfWorkNeeded,
    expected: ExpectedEtags,
    response: Response,
) -> ContactView:
    """
    Change a contact's company.
    """
    changed = await service.change(
        uow, str(contact_id), expected, lambda contact: contact.change_company(body.company)
    )
    return _describe(changed, response)


@router.delete(
    "/{contact_id}",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="deleteContact",
    responses=_DELETED | _CHANGE_PROBLEMS,
)
async def delete_contact(
    contact_id: ContactId, uow: UnitOfWorkNeeded, expected: ExpectedEtags, response: Response
) -> None:
    """
    Delete a contact; its document stays, marked, and is no longer returned.
    """
    _set_change_headers(await service.delete(uow, str(contact_id), expected), response)


def _without_422(generate: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def openapi() -> dict[str, Any]:
        schema = generate()
        # FastAPI keeps it, so the changes below happen to one object, any number of times
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # invalid requests are answered with 400
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.setdefault("Problem", Problem.model_json_schema())
        return schema

    return openapi
