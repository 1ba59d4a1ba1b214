"""
The control API of running emulators: JSON over HTTP for splits, merges, snapshots, failovers, keys, faults, clock, replica lag and
statistics.

A request with a mistake is answered with a problem document (RFC 9457), whose `detail` says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from cosmos_outbox_emulators.active_deviation import Deviating
from cosmos_outbox_emulators.cosmos import deviations as cosmos_deviations
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.regions import fail_over
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.explorer import explorer_routes
from cosmos_outbox_emulators.http_log import log
from cosmos_outbox_emulators.keys import KeyPair
from cosmos_outbox_emulators.servicebus import deviations as servicebus_deviations
from cosmos_outbox_emulators.servicebus.broker import Broker

_FURTHEST_ADVANCE_S = 10 * 365 * 86400.0

Fields = dict[str, Any]
Act = Callable[[Fields], Any]


class ControlServer:
    """Serves the API that controls one Cosmos DB emulator and one Service Bus emulator, while the `async with` block lasts."""

    def __init__(
        self,
        cosmos: CosmosServer,
        broker: Broker,
        *,
        clock: AdjustableClock,
        servicebus_latency_s: float = 0.0,
        certificate: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._cosmos = cosmos
        self._broker = broker
        self._clock = clock
        self._servicebus_latency_s = servicebus_latency_s
        self._certificate = certificate
        self._host = host
        self.port = port
        self._runner: web.AppRunner | None = None
        self._cosmos_deviating = Deviating(cosmos, cosmos_deviations.DEVIATIONS)
        self._servicebus_deviating = Deviating(broker, servicebus_deviations.DEVIATIONS)
        self._delay_broker()

    def deviate(self, name: str) -> None:
        """Switch on the deviation (a named difference from Azure) with this name, at the emulator that has it."""
        of_broker = name in servicebus_deviations.DEVIATIONS
        (self._servicebus_deviating if of_broker else self._cosmos_deviating).switch(name)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[_problems])
        application.add_routes(
            [
                *explorer_routes(self._cosmos, self._broker),
                web.get("/health", _answer(lambda _: {"status": "ok"})),
                web.get("/certificate.pem", self._serve_certificate),
                web.get("/cosmos/stats", _answer(lambda _: self._cosmos_stats())),
                web.post("/cosmos/split", _answer(self._split)),
                web.post("/cosmos/merge", _answer(self._merge)),
                web.post("/cosmos/snapshot", _answer(lambda fields: self._container(fields).take_snapshot())),
                web.post(
                    "/cosmos/restore", _answer(lambda fields: self._container(fields).restore_snapshot())
                ),
                web.post(
                    "/cosmos/failover", _answer(lambda _: {"write_host": fail_over(self._cosmos.account)})
                ),
                web.post("/cosmos/keys", _answer(lambda fields: _keys(self._cosmos.account.keys, fields))),
                web.post("/cosmos/clock", _answer(self._advance)),
                web.post("/cosmos/lag", _answer(self._lag)),
                web.post("/cosmos/throttle", _answer(self._throttle)),
                web.post("/cosmos/faults", _answer(self._add_cosmos_fault)),
                web.delete("/cosmos/faults", _answer(lambda _: self._cosmos.faults.clear())),
                *_deviations("/cosmos/deviation", self._cosmos_deviating),
                *_deviations("/servicebus/deviation", self._servicebus_deviating),
                web.get("/servicebus/stats", _answer(lambda _: self._broker.stats())),
                web.post("/servicebus/keys", _answer(lambda fields: _keys(self._broker.first_keys, fields))),
                web.post("/servicebus/faults", _answer(self._add_servicebus_fault)),
                web.delete("/servicebus/faults", _answer(lambda _: self._clear_servicebus_faults())),
            ]
        )
        runner = web.AppRunner(application, access_log=None, logger=log, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self.port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_certificate(self, _: web.Request) -> web.FileResponse:
        if self._certificate is None:
            raise web.HTTPNotFound(reason="These emulators serve without TLS.")
        return web.FileResponse(self._certificate, headers={"content-type": "application/x-pem-file"})

    # Cosmos DB

    def _split(self, fields: Fields) -> Any:
        range_id, completing = _text(fields, "range"), _number(fields, "completing", default=0)
        return {"children": self._container(fields).split(range_id, completing=int(completing))}

    def _merge(self, fields: Fields) -> Any:
        ranges, completing = fields.get("ranges"), _number(fields, "completing", default=0)
        if not isinstance(ranges, list) or len(ranges) != 2:
            raise ValueError("'ranges' must be a list of two range ids")
        first, second = map(str, ranges)
        return {"child": self._container(fields).merge(first, second, completing=int(completing))}

    def _container(self, fields: Fields) -> Container:
        """
        Return the container that the request names. If the request names none, return the container whose change feed clients
        have read. Refuse the request if this is not exactly one container.
        """
        if "database" in fields or "container" in fields:
            return self._cosmos.account.container(_text(fields, "database"), _text(fields, "container"))
        read = [container for container in self._containers() if container.change_feed_reads]
        if len(read) != 1:
            paths = ", ".join(container.path for container in read) or "none"
            raise ValueError(f"name 'database' and 'container' (the change feeds that clients read: {paths})")
        return read[0]

    def _containers(self) -> Iterator[Container]:
        return (owner for owner in self._cosmos.account.owners() if isinstance(owner, Container))

    def _advance(self, fields: Fields) -> Any:
        self._clock.advance(_number(fields, "advance_s"))
        return {"now": self._clock()}

    def _lag(self, fields: Fields) -> Any:
        self._cosmos.account.replication.lag_s = _number(fields, "seconds")
        return {"seconds": self._cosmos.account.replication.lag_s}

    def _throttle(self, fields: Fields) -> None:
        buckets = fields.get("buckets") or {}
        if not isinstance(buckets, dict):
            raise ValueError("'buckets' must be an object with the percentage of each throughput bucket")  # noqa: TRY004  # one error type for all bad input
        shares = {name: _number(buckets, name) for name in buckets}
        self._cosmos.gateway.throttle(self._container(fields), _number(fields, "request_units"), shares)

    def _add_cosmos_fault(self, fields: Fields) -> None:
        self._cosmos.faults.add(fields)

    def _cosmos_stats(self) -> Any:
        account = self._cosmos.account
        now = account.clock()
        return {
            "requests": dict(self._cosmos.gateway.counts),
            "faults": len(self._cosmos.faults),
            "containers": {
                container.path: {
                    "items": container.item_count(now),
                    "ranges": [
                        {
                            "id": part.range_id,
                            "low": part.low,
                            "high": part.high,
                            "lsn": part.lsn,
                            "items": len(part),
                        }
                        for part in container.partitions
                    ],
                }
                for container in self._containers()
            },
        }

    # Service Bus

    def _add_servicebus_fault(self, fields: Fields) -> None:
        self._broker.faults.add(fields)

    def _clear_servicebus_faults(self) -> None:
        self._broker.faults.clear()
        self._delay_broker()

    def _delay_broker(self) -> None:
        """
        Give the broker the latency of the option --servicebus-latency-ms. The broker stores it as a fault, so this is repeated
        after all faults are cleared.
        """
        if self._servicebus_latency_s:
            self._broker.faults.add({"action": "latency", "seconds": self._servicebus_latency_s})


def _deviations(path: str, deviating: Deviating[Any]) -> list[web.RouteDef]:
    return [
        web.post(path, _answer(lambda fields: deviating.switch(_text(fields, "name")))),
        web.delete(path, _answer(lambda _: deviating.switch(None))),
    ]


def _keys(keys: KeyPair, fields: Fields) -> Any:
    if "regenerate" in fields:
        keys.regenerate(_text(fields, "regenerate"))
    return keys.as_dict()


def _answer(act: Act) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        result = act(await _fields(request))
        return web.Response(status=204) if result is None else web.json_response(result)

    return handle


async def _fields(request: web.Request) -> Fields:
    if not request.can_read_body:
        return {}
    fields = json.loads(await request.text())
    if not isinstance(fields, dict):
        raise ValueError("the body of the request must be a JSON object")  # noqa: TRY004  # one error type for all bad input
    return fields


def _text(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"{name!r} must be text, and must not be missing")  # noqa: TRY004  # one error type for all bad input
    return str(value)


def _number(fields: Fields, name: str, *, default: float | None = None) -> float:
    value = fields.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _FURTHEST_ADVANCE_S:
        raise ValueError(f"{name!r} must be a number from 0 to {_FURTHEST_ADVANCE_S:.0f}")
    return value


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _problem(error.status, error.reason)
    except CosmosError as error:
        return _problem(400, error.message)
    except (ValueError, RecursionError, LookupError) as error:
        # The body is not JSON, or has a wrong charset or value.
        return _problem(400, str(error))


def _problem(status: int, detail: str) -> web.Response:
    text = json.dumps({"title": "The request cannot be served.", "status": status, "detail": detail})
    return web.Response(status=status, text=text, content_type="application/problem+json")
