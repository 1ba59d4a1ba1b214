"""Each request has one unit of work of its own, and its events carry its correlation id and its trace."""

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


# What another module of the application says once more.
OrdersAgain = Annotated[Orders, Depends(unit_of_work(Orders))]


async def same_unit(uow: OrdersAgain) -> Orders:
    return uow


async def test_all_of_a_request_shares_one_unit_of_work_and_no_other_request_does():
    app, seen = make_app(MemoryContainer()), []

    @app.get("/units")
    async def units(uow: OrdersDep, other: Annotated[Orders, Depends(same_unit)]) -> bool:
        seen.append(uow)
        await asyncio.sleep(1)  # while the others run
        return uow is other

    answers = await asyncio.gather(*(ask(app, "GET", "/units") for _ in range(8)))

    assert [True] * 8 == [answer.body for answer in answers]
    assert 8 == len(set(map(id, seen)))
    assert all(type(uow) is Orders for uow in seen)


async def test_an_application_without_an_outbox_says_where_it_is_set(caplog: pytest.LogCaptureFixture):
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


async def test_the_outbox_may_be_set_after_the_installation_and_another_one_later():
    app = make_app(MemoryContainer())
    assert "Outbox" == (await ask(app, "GET", "/outbox")).body
    install(app, other := Outbox(MemoryContainer()))
    assert other is app.state.outbox


async def test_an_application_without_the_installation_says_how_to_install():
    app = FastAPI()
    app.state.outbox = Outbox(MemoryContainer())

    @app.get("/")
    async def read(uow: UnitOfWorkDep) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=r"call install\(app\)"):
        await ask(app, "GET", "/")


async def test_events_carry_the_correlation_id_and_the_trace_of_their_request():
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


def test_without_fastapi_the_import_names_the_extra():
    program = "import sys; sys.modules['fastapi'] = None; import cosmos_outbox.fastapi"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert "pip install 'cosmos-outbox[fastapi]'" in run.stderr.splitlines()[-1]
