"""
The write side in a FastAPI application: a unit of work for each request, etags, problem details and correlation.

    app = FastAPI(lifespan=lifespan, responses=PROBLEMS)
    install(app)

The lifespan also sets `app.state.outbox = Outbox(…)`, or the outbox is given to `install(app, outbox)`. This package needs the extra
`fastapi`.

    units_of_work           `install`, which prepares an application, and the unit of work for each request
      request_correlation   the correlation id and the trace of each request
      conditions            the etags in a request's headers
      idempotent_requests   requests that take effect once, however often they are repeated
      problems              the answers to errors, as problem details
"""

try:
    import fastapi as _fastapi
except ModuleNotFoundError as error:
    if error.name != "fastapi":
        raise
    raise ModuleNotFoundError(
        "cosmos_outbox.fastapi needs the package 'fastapi': pip install 'cosmos-outbox[fastapi]'",
        name="fastapi",
    ) from None

from cosmos_outbox.fastapi.conditions import (
    NOT_MODIFIED,
    IfMatch,
    IfNoneMatch,
    Match,
    NoneMatch,
    RequiredIfMatch,
    set_etag,
)
from cosmos_outbox.fastapi.idempotent_requests import IdempotentRequest, idempotency_key
from cosmos_outbox.fastapi.problems import PROBLEMS, Problem, problem_response
from cosmos_outbox.fastapi.units_of_work import DocumentId, OutboxDep, UnitOfWorkDep, install, unit_of_work

__all__ = [
    "NOT_MODIFIED",
    "PROBLEMS",
    "DocumentId",
    "IdempotentRequest",
    "IfMatch",
    "IfNoneMatch",
    "Match",
    "NoneMatch",
    "OutboxDep",
    "Problem",
    "RequiredIfMatch",
    "UnitOfWorkDep",
    "idempotency_key",
    "install",
    "problem_response",
    "set_etag",
    "unit_of_work",
]
