"""
Units of work for requests: `install` prepares an application, and dependencies give each request its outbox and unit of work.
`problems.py` answers errors, and `conditions.py` checks etags.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.requests import HTTPConnection
from pydantic import AfterValidator

from cosmos_outbox.errors import OutboxError, UsageError
from cosmos_outbox.fastapi.problems import add_handlers
from cosmos_outbox.fastapi.request_correlation import RequestContext
from cosmos_outbox.partition_key import check_id
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.unit_of_work import UnitOfWork


def install(app: FastAPI, outbox: Outbox | None = None, *, invalid_status: int = 422) -> None:
    """
    Make an application answer every error with problem details, and give the events of a request its correlation id and trace.

    Args:
        app: the application, before it starts. A second call for the same application only changes the outbox.
        outbox: the outbox for requests. Defaults to the one that the application's lifespan sets as `app.state.outbox`.
        invalid_status: the status of the answer to a request that does not validate. Defaults to FastAPI's own, 422.
    """
    if outbox is not None:
        app.state.outbox = outbox
    # `install` was called before, for example by a test with another outbox
    if OutboxError in app.exception_handlers:
        return
    app.add_middleware(RequestContext)
    add_handlers(app, invalid_status)


async def _outbox(connection: HTTPConnection) -> Outbox:
    app = connection.app
    if OutboxError not in app.exception_handlers:
        raise UsageError(
            "This application does not answer the errors of its outbox; call install(app) of cosmos_outbox.fastapi "
            "where the application is made."
        )
    outbox = getattr(app.state, "outbox", None)
    if not isinstance(outbox, Outbox):
        raise UsageError(
            f"The application's outbox is {outbox!r}; set app.state.outbox to an Outbox in its lifespan, or give one to "
            "install(app, outbox)."
        )
    return outbox


OutboxDep = Annotated[Outbox, Depends(_outbox)]


# FastAPI calls a dependency only once for each request. `@cache` makes it the same function whenever a class is asked for.
@cache
def unit_of_work(kind: type[UnitOfWork]) -> Callable[..., AsyncIterator[Any]]:
    """
    Return the dependency that gives each request a unit of work of this subclass, for `Annotated[Orders, Depends(…)]`.

    Everything in one request that depends on it gets the same unit of work. When the request ends, uncommitted changes are forgotten.
    """

    async def open_unit(outbox: OutboxDep) -> AsyncIterator[UnitOfWork]:
        async with outbox.unit_of_work(kind) as uow:
            yield uow

    return open_unit


UnitOfWorkDep = Annotated[UnitOfWork, Depends(unit_of_work(UnitOfWork))]


def _check_document_id(document_id: str) -> str:
    try:
        check_id(document_id)
    except UsageError as error:
        raise ValueError(str(error)) from error  # pydantic reports a ValueError as the caller's mistake
    return document_id


# The type of a parameter or field that is the id of a document. If Cosmos DB does not accept an id, the answer names the parameter.
DocumentId = Annotated[str, AfterValidator(_check_document_id)]
