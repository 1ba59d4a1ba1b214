"""The routes of the explorer: which address shows which page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.explorer import live
from cosmos_outbox_emulators.explorer.cosmos import CONTAINER, container_page, databases_section
from cosmos_outbox_emulators.explorer.html import faults_table, page, section
from cosmos_outbox_emulators.explorer.servicebus import QUEUE, entities_section, queue_page
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError

# The policy lets a page load and run only the explorer's own script, so text that a client stored cannot run as a script.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}

Render = Callable[[web.Request], str]


def explorer_routes(cosmos: CosmosServer, broker: Broker) -> list[web.RouteDef]:
    """Return the HTTP routes of all pages of the explorer."""
    return [
        web.get("/", _answer(lambda _: _overview(cosmos, broker))),
        web.get(live.ADDRESS, _script),
        web.get(
            CONTAINER,
            _answer(
                lambda request: container_page(
                    cosmos.account,
                    request.query["database"],
                    request.query["container"],
                    request.query.get("key", ""),
                    _page_of(request),
                )
            ),
        ),
        web.get(QUEUE, _answer(lambda request: queue_page(broker, request.query["path"], _page_of(request)))),
    ]


def _overview(cosmos: CosmosServer, broker: Broker) -> str:
    return page(
        "Emulators",
        databases_section(cosmos.account),
        entities_section(broker),
        section("Faults of Cosmos DB", faults_table(cosmos.faults.as_list())),
        section("Faults of Service Bus", faults_table(broker.faults.as_list())),
        home=True,
    )


async def _script(_: web.Request) -> web.Response:
    return web.Response(text=live.SCRIPT, content_type="text/javascript", headers=_HEADERS)


def _page_of(request: web.Request) -> int:
    text = request.query.get("page", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def _answer(render: Render) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            text = render(request)
        except KeyError as error:
            raise web.HTTPBadRequest(reason=f"The address lacks {error}.") from error
        except (CosmosError, AmqpError) as error:
            raise web.HTTPNotFound(reason="There is no such container, queue or subscription.") from error
        body = text.encode(errors="replace")
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=_HEADERS)

    return handle
