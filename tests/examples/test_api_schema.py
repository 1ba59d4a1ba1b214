"""
Property tests of the contacts API with Schemathesis, which sends valid and invalid requests by its OpenAPI description.

No answer may be a server error.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from uuid import UUID

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from cosmos_outbox.adapters.memory.container import MemoryContainer
from examples.contacts.api import create_app
from tests.support.contacts_api import served
from tests.support.effort import examples
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

description = schemathesis.openapi.from_dict(create_app(store=MemoryContainer()).openapi())
JANE = {"name": {"firstName": "Jane", "lastName": "Doe"}, "company": {"companyName": "Contoso"}}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Serve the API from a thread of its own, because Schemathesis blocks the thread in which it runs."""
    address: Future[str] = Future()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with served(create_app(store=MemoryContainer())) as client:
            address.set_result(str(client.session._base_url).rstrip("/"))
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield address.result(timeout=HUNG_SECONDS)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=HUNG_SECONDS)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False  # otherwise the session looks for a proxy at each request
        yield session


@description.parametrize()
@settings(
    max_examples=examples(5, many=20),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_valid_or_invalid_request_is_answered_with_a_server_error(
    case: schemathesis.Case, server: str, session: requests.Session
):
    if "contact_id" in case.path_parameters and _is_uuid(case.path_parameters["contact_id"]):
        known = session.post(f"{server}/api/contacts", json=JANE, timeout=HUNG_SECONDS)
        case.path_parameters["contact_id"] = known.json()["id"]
    response = case.call(base_url=server, session=session)
    checks = [not_a_server_error, content_type_conformance, response_schema_conformance]
    case.validate_response(response, checks=checks)


def _is_uuid(value: object) -> bool:
    try:
        return bool(UUID(str(value)))
    except ValueError:
        return False
