"""
Each request has a unit of work of its own. Its events carry the correlation id and the trace of the request.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI

from cosmos_outbox import Outbox, UsageError
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.fastapi import UnitOfWorkDep, install, unit_of_work
from tests.support.notes import events
from tests.unit.fastapi.orders import Orders, OrdersDep, ask, make_app

TRACE = "0af7651916cd43dd8448eb211c80319c"


# The dependency of OrdersDep, declared a second time, as another module of the application may do.
OrdersAgain = Annotated[Orders, Depends(unit_of_work(Orders))]


async def same_unit(uow: OrdersAgain) -> Orders:
    return uow


async def test_all_dependencies_of_a_request_share_one_unit_of_work():
    """The test also checks that each request has a unit of work of its own."""
    app, seen = make_app(MemoryContainer()), []

    @app.get("/units")
    async def units(uow: OrdersDep, other: Annotated[Orders, Depends(same_unit)]) -> bool:
        seen.append(uow)
        await asyncio.sleep(1)  # so that all eight requests run at the same time
        return uow is other

    answers = await asyncio.gather(*(ask(app, "GET", "/units") for _ in range(8)))

    assert [True] * 8 == [answer.body for answer in answers]
    assert 8 == len(set(map(id, seen)))
    assert all(type(uow) is Orders for uow in seen)


async def test_the_error_of_an_application_without_an_outbox_says_where_to_set_it(
    caplog: pytest.LogCaptureFixture,
):
    app = FastAPI()
    install(app)

    @app.get("/")
    async def read(uow: UnitOfWorkDep) -> None:
        raise AssertionError

    for wrong in (None, MemoryContainer()):
        app.state.outbox = wrong
        assert 500 == (await ask(app, "GET", "/")).status
        error = caplog.records[-1].exc_info
        assert error is not None
        assert isinstance(error[1], UsageError)
        assert "set app.state.outbox to an Outbox in its lifespan" in str(error[1])


async def test_the_outbox_may_be_set_after_install_was_called():
    app = make_app(MemoryContainer())
    assert "Outbox" == (await ask(app, "GET", "/outbox")).body
    install(app, other := Outbox(MemoryContainer()))
    assert other is app.state.outbox


async def test_an_application_that_did_not_call_install_gets_an_error_that_says_so():
    app = FastAPI()
    app.state.outbox = Outbox(MemoryContainer())

    @app.get("/")
    async def read(uow: UnitOfWorkDep) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=r"call install\(app\)"):
        await ask(app, "GET", "/")


async def test_events_have_the_correlation_id_and_trace_of_their_request():
    container = MemoryContainer()
    app = make_app(container)
    await ask(app, "POST", "/orders/o1")

    headers = [
        ("X-Correlation-Id", "abc-1"),
        ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),
        ("If-Match", "*"),
    ]
    given = await ask(app, "POST", "/orders/o1/payment", headers)
    refused = await ask(app, "POST", "/orders/o1/payment", [("X-Correlation-Id", "a b"), ("If-Match", "*")])

    first, second = (event["meta"] for event in events(container))
    assert "abc-1" == first["correlationId"] == given.headers["x-correlation-id"]
    assert TRACE == first["traceparent"].split("-")[1]
    assert second["correlationId"] == refused.headers["x-correlation-id"] != "a b"
    assert "traceparent" not in second


def test_the_import_error_without_fastapi_names_the_extra_to_install():
    program = "import sys; sys.modules['fastapi'] = None; import cosmos_outbox.fastapi"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert "pip install 'cosmos-outbox[fastapi]'" in run.stderr.splitlines()[-1]
