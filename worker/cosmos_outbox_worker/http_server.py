"""
HTTP server: /livez, /readyz and /metrics for machines, and the status page at / for people. `shared_health.py` decides whether the process
is ready.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from aiohttp import web

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_worker.shared_health import State
from cosmos_outbox_worker.status_page import LIVE_SCRIPT, page_of
from cosmos_outbox_worker.where import Search, one_at_a_time

# The status page shows texts from events, and an attacker may have written a script into one. So the browser may run only the page's
# own script.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# Clients of the health server must not use up the file descriptors that the worker itself needs. So each connection is closed after ten
# seconds. When there are more than a hundred connections, the oldest is closed at once.
_CONNECTION_SECONDS, _MOST_CONNECTIONS = 10.0, 100
# A web site on the internet could point its own host name at this server and let a visitor's browser read the page (DNS rebinding).
# So the page is shown only under names that no such site can have: these domains, names without a dot, and addresses.
_OWN_DOMAINS = (".localhost", ".svc", ".cluster.local")
_MISDIRECTED = (
    "The status page is shown under an address, a name without a dot, or one that ends with "
    f"{', '.join(_OWN_DOMAINS)}. A proxy in front has to name such a host.\n"
)


def _is_of_this_network(request: web.Request) -> bool:
    # Read the header `Host`. Aiohttp's `request.host` would look up this machine's name if a client sends no such header.
    name = request.headers.get("Host", "").lower().partition(":")[0]
    is_address = name.startswith("[") or name.replace(".", "").isdigit()
    return is_address or "." not in name or name.endswith(_OWN_DOMAINS)


@asynccontextmanager
async def serving_health(
    snapshot_now: Callable[[], State],
    *,
    metrics: Callable[[], tuple[bytes, str]],
    address: str,
    search: Search | None = None,
) -> AsyncIterator[str]:
    """
    Serve probes, metrics and the status page for as long as the block lasts. Yield the URL of the server.

    `/livez` answers 200 as long as the event loop runs. If it does not answer, the process should be restarted. `/readyz` answers 503
    with the reasons if the program makes no progress, for instance in an outage of Cosmos DB, which a restart would not end.

    Args:
        snapshot_now: returns the current health.
        metrics: returns the Prometheus exposition and its content type.
        search: finds out what became of the events of a key. If it is given, the status page has a form in which to enter a key.
        address: the port, or the address and the port, to listen on. A port alone means the loopback address. 0 means any free port.

    Raises:
        ConfigurationError: the port is taken, or the address is not one of this machine.
    """

    async def livez(_: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def readyz(request: web.Request) -> web.Response:
        snapshot = snapshot_now()
        # Any client gets the status code, but only clients of this network get the reasons, which may contain names of keys.
        said = snapshot.readiness() if _is_of_this_network(request) else {}
        return web.json_response(said, status=503 if snapshot.unready else 200)

    async def exposition(_: web.Request) -> web.Response:
        body, content_type = metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def page(request: web.Request) -> web.Response:
        if not _is_of_this_network(request):
            raise web.HTTPMisdirectedRequest(text=_MISDIRECTED)
        key, container = request.query.get("key", ""), request.query.get("container")
        found = await find(key, container)
        shown = page_of(snapshot_now(), container, key=key if search else None, found=found)
        return web.Response(text=shown, content_type="text/html", headers=_PAGE_HEADERS)

    async def live(_: web.Request) -> web.Response:
        return web.Response(text=LIVE_SCRIPT, content_type="text/javascript", headers=_PAGE_HEADERS)

    find = one_at_a_time(search)
    application = web.Application()
    application.add_routes(
        [
            web.get("/livez", livez),
            web.get("/readyz", readyz),
            web.get("/metrics", exposition),
            web.get("/", page),
            web.get("/live.js", live),
        ]
    )
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    loop, requests = asyncio.get_running_loop(), cast("web.Server", runner.server)
    connections: deque[web.RequestHandler] = deque()

    def accept_connection() -> web.RequestHandler:
        handler = requests()
        connections.append(handler)
        if len(connections) > _MOST_CONNECTIONS:
            connections.popleft().force_close()
        loop.call_later(_CONNECTION_SECONDS, handler.force_close)
        return handler

    try:
        try:
            server = await loop.create_server(accept_connection, host, int(port))
        except (OSError, socket.gaierror) as error:
            said = f"OUTBOX_HEALTH_PORT: cannot listen on {host}:{port}: {error.strerror}"
            raise ConfigurationError(said) from error
        shown = f"[{host}]" if ":" in host else host
        try:
            yield f"http://{shown}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
    finally:
        await runner.cleanup()
