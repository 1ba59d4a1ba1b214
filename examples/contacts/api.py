"""The contacts API: each HTTP request is one unit of work, and errors are answered as problem details."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Path, Query, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, StringConstraints

from cosmos_outbox import CommitOutcomeUnknown, Outbox, Store
from cosmos_outbox.adapters.cosmos import open_cosmos_client, open_store
from cosmos_outbox.fastapi import (
    NOT_MODIFIED,
    PROBLEMS,
    IfMatch,
    IfNoneMatch,
    Match,
    NoneMatch,
    install,
    set_etag,
    unit_of_work,
)
from examples.contacts import service
from examples.contacts.body_limit import BodyLimit
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
from examples.contacts.service import Changed, ContactsUnitOfWork
from examples.contacts.settings import Settings

MAX_PAGE_SIZE = 100
MAX_BODY_BYTES = 64 * 1024
_DESCRIPTION = """
People and how to reach them. Every change is committed together with the event that reports it.

Errors are problem details (RFC 9457). `X-Correlation-Id` and `traceparent` of a request are passed on to its events.
"""

_Apply = Callable[[Contact], None]
_Change = Callable[[UUID, _Apply], Awaitable[ContactView]]
contacts = APIRouter(prefix="/api/contacts", tags=["contacts"])
operations = APIRouter(tags=["operations"])


def create_app(settings: Settings | None = None, *, store: Store | None = None) -> FastAPI:
    """
    Return the FastAPI application. It opens its Cosmos DB client when it starts and closes it when it stops.

    Args:
        settings: the settings that name the Cosmos DB account, database and container. Defaults to `Settings()`, which reads the environment.
        store: a store that tests use in place of Cosmos DB. Defaults to none.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with nullcontext(store) if store else _opened(settings or Settings()) as opened:
            app.state.outbox = Outbox(opened)
            yield

    # The scripts of the page /docs come from the package fastapi_swagger. FastAPI's own page loads them from the internet, so it
    # would be blank on a machine without internet.
    app = FastAPI(
        title="Contacts",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        responses=PROBLEMS,
        docs_url=None,
        redoc_url=None,
    )
    app.mount("/swagger", StaticFiles(packages=[("fastapi_swagger", "resources")]))
    app.add_route("/docs", _docs, include_in_schema=False)
    app.add_middleware(BodyLimit, most_bytes=MAX_BODY_BYTES)
    install(app, invalid_status=HTTPStatus.BAD_REQUEST)  # Microsoft's sample answers 400 too
    app.include_router(contacts)
    app.include_router(operations)
    return app


async def _docs(_: Request) -> Response:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Contacts",
        swagger_js_url="/swagger/swagger-ui-bundle.js",
        swagger_css_url="/swagger/swagger-ui.css",
        swagger_favicon_url="/swagger/favicon-32x32.png",
    )


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    secret = settings.cosmos_connection_string
    account = secret.get_secret_value() if secret else None
    async with open_cosmos_client(connection_string=account, endpoint=settings.cosmos_endpoint) as client:
        yield await open_store(client, settings.cosmos_database, settings.cosmos_container)


UnitOfWorkNeeded = Annotated[ContactsUnitOfWork, Depends(unit_of_work(ContactsUnitOfWork))]
ContactId = Annotated[UUID, Path(description="The contact's id, as its creation gave it out.")]
SampleEtag = Annotated[
    list[Annotated[str, StringConstraints(max_length=50)]] | None,
    Header(description="As Microsoft's sample has it: If-None-Match of a read, If-Match of a change."),
]


async def _conditions(
    request: Request, if_match: IfMatch, if_none_match: IfNoneMatch, etag: SampleEtag = None
) -> _Apply:
    reads = if_none_match.reads
    match = if_match if if_match.etags or reads else Match.of(etag)
    none_match = if_none_match if if_none_match.etags or not reads else NoneMatch.of(request, etag)

    def check(contact: Contact) -> None:
        match.check(contact)
        none_match.check(contact)

    return check


Conditions = Annotated[_Apply, Depends(_conditions)]


def _shown(contact: Contact, response: Response) -> ContactView:
    set_etag(response, contact)
    return ContactView.of(contact)


def _report_commit(changed: Changed, response: Response) -> None:
    response.headers["X-Contact-Version"] = str(changed.contact.version)
    response.headers["X-Event-Ids"] = ",".join(event.id for event in changed.commit.events)


async def _changing(uow: UnitOfWorkNeeded, check: Conditions, response: Response) -> _Change:
    async def change(contact_id: UUID, apply: _Apply) -> ContactView:
        changed = await service.change(uow, str(contact_id), check, apply)
        _report_commit(changed, response)
        return _shown(changed.contact, response)

    return change


# An operation that changes a contact gets this function as a dependency. The function reads the contact, checks the If-Match conditions
# of the request, applies the change, commits, and sets the headers of the answer.
Change = Annotated[_Change, Depends(_changing)]


class Health(BaseModel):
    """The answer of /healthz, which says that the process is up."""

    status: str = "ok"


@operations.head("/healthz", include_in_schema=False)
@operations.get("/healthz", operation_id="healthz")
async def healthz() -> Health:
    """Report that the process is up."""
    return Health()


@contacts.post("", status_code=HTTPStatus.CREATED, operation_id="createContact")
async def create_contact(body: NewContact, uow: UnitOfWorkNeeded, response: Response) -> ContactView:
    """Add a contact."""
    contact = Contact(name=body.name, description=body.description, email=body.email, company=body.company)
    location = f"/api/contacts/{contact.id}"
    try:
        changed = await service.create(uow, contact)
    except CommitOutcomeUnknown as error:  # do not ask for a retry: it could create a second contact
        detail = "It is not known whether the contact was stored; read it to find out."
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Location": location}) from error
    response.headers["Location"] = location
    _report_commit(changed, response)
    return _shown(contact, response)


@contacts.head("", include_in_schema=False)
@contacts.get("", operation_id="listContacts")
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
    """List the contacts that are not deleted, ordered by id."""
    page = await uow.contacts.page_of_all_keys(page_size, continuation_token or x_continuation_token)
    if page.continuation is not None:
        response.headers["X-Continuation-Token"] = page.continuation
    return ContactPage.of(page)


@contacts.head("/{contact_id}", include_in_schema=False)
@contacts.get("/{contact_id}", operation_id="getContact", responses=NOT_MODIFIED)
async def get_contact(
    contact_id: ContactId, uow: UnitOfWorkNeeded, check: Conditions, response: Response
) -> ContactView:
    """Read a contact."""
    contact = await uow.contacts.read(str(contact_id))
    check(contact)
    return _shown(contact, response)


# Each change has two routes: PUT …/name addresses the resource, and clients of Microsoft's sample call POST …/update-name.
@contacts.post("/{contact_id}/update-name", operation_id="updateContactNamePost")
@contacts.put("/{contact_id}/name", operation_id="updateContactName")
async def update_name(contact_id: ContactId, body: NewName, change: Change) -> ContactView:
    """Change a contact's name."""
    return await change(contact_id, lambda contact: contact.rename(body.name))


@contacts.post("/{contact_id}/update-description", operation_id="updateContactDescriptionPost")
@contacts.put("/{contact_id}/description", operation_id="updateContactDescription")
async def update_description(contact_id: ContactId, body: NewDescription, change: Change) -> ContactView:
    """Change a contact's description."""
    return await change(contact_id, lambda contact: contact.describe(body.description))


@contacts.post("/{contact_id}/update-email", operation_id="updateContactEmailPost")
@contacts.put("/{contact_id}/email", operation_id="updateContactEmail")
async def update_email(contact_id: ContactId, body: NewEmail, change: Change) -> ContactView:
    """Change or remove a contact's e-mail address."""
    return await change(contact_id, lambda contact: contact.change_email(body.email))


@contacts.post("/{contact_id}/update-company", operation_id="updateContactCompanyPost")
@contacts.put("/{contact_id}/company", operation_id="updateContactCompany")
async def update_company(contact_id: ContactId, body: NewCompany, change: Change) -> ContactView:
    """Change a contact's company."""
    return await change(contact_id, lambda contact: contact.change_company(body.company))


@contacts.delete("/{contact_id}", status_code=HTTPStatus.NO_CONTENT, operation_id="deleteContact")
async def delete_contact(
    contact_id: ContactId, uow: UnitOfWorkNeeded, check: Conditions, response: Response
) -> None:
    """Delete a contact. Its document stays, marked as deleted, and requests no longer return it. The ETag is of the marked document."""
    deleted = await service.change(uow, str(contact_id), check, Contact.delete)
    _report_commit(deleted, response)
    set_etag(response, deleted.contact)
