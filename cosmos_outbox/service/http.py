"""
Health: /livez, /readyz and /metrics for machines, and / for people.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.service.health import Vitals
from cosmos_outbox.service.status_page import page_of

# The page is all there is: a browser that loads anything else for it loads what an attacker put into an event.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serving_health(
    vitals: Vitals, *, metrics: Callable[[], tuple[bytes, str]], host: str, port: int
) -> AsyncIterator[str]:
    """
    Serve health for as long as the block lasts; yield the URL.

    `/livez` answers 200 as long as the event loop does: whoever gets no answer restarts the process. A worker whose
    leases stand still is not restarted, for that would not help; it is unready (503) and says why.

    Args:
        vitals: what is told.
        metrics: returns the Prometheus exposition and its content type.
        host: address to listen on.
        port: 0 is any free one.

    Raises:
        ConfigurationError: it is taken, or not this machine's.
    """
    application = web.Application()
    application.add_routes(
        [
            web.get("/livez", _livez),
            web.get("/readyz", _readyz(vitals)),
            web.get("/metrics", _metrics(metrics)),
            web.get("/", _page(vitals)),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, socket.gaierror) as error:
            raise ConfigurationError(
                f"OUTBOX_HEALTH_HOST, OUTBOX_HEALTH_PORT: cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _livez(_: web.Request) -> web.Response:
    return web.json_response({"status": "alive"})


def _readyz(vitals: Vitals) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        snapshot = vitals.snapshot()
        body = {
            "status": "unready" if snapshot.unready else "ready",
            "phase": snapshot.phase,
            "reasons": list(snapshot.unready),
            "leases": [
                {
                    "lease": lease.lease,
                    "stalled": lease.stalled,
                    "idle_seconds": round(lease.idle_seconds, 1),
                    "failed_attempts": lease.failed_attempts,
                    "error": lease.error,
                }
                for lease in snapshot.mine
            ],
        }
        return web.json_response(body, status=503 if snapshot.unready else 200)

    return answer


def _metrics(metrics: Callable[[], tuple[bytes, str]]) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        body, content_type = metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    return answer


def _page(vitals: Vitals) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=page_of(vitals.snapshot()), content_type="text/html", headers=_PAGE_HEADERS)

    return answer
