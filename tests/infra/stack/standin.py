"""
Stands in for Microsoft's emulators in the compose stack, where their images cannot be downloaded.

It runs our emulators at the same addresses, with the same files and variables, and refuses the same requests as far as the
compose file depends on it: `python standin.py cosmos --protocol http`, `python standin.py servicebus`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.gateway import Gateway
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, Route
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

EVERYWHERE = "0.0.0.0"  # noqa: S104 # of a container
GATEWAY_PORT, AMQP_PORT = 8081, 5672
CONFIG = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
MOST_CONNECTIONS = 10


class PublicGateway(Gateway):
    """A gateway that tells every client to continue at one public address, whatever name the client used."""

    def answer(self, request: Request, route: Route | None = None, fault: FaultRule | None = None) -> Reply:
        public = os.environ.get("GATEWAY_PUBLIC_ENDPOINT", "localhost")
        return super().answer(replace(request, origin=f"http://{public}:{GATEWAY_PORT}"), route, fault)


class SmallServiceBus(ServiceBusServer):
    """A broker that accepts only ten connections at a time, as Microsoft's emulator does."""

    def _accept(self) -> asyncio.Protocol:
        if len(self._connections) >= MOST_CONNECTIONS:
            print("refused: there are ten connections", flush=True)  # noqa: T201 # its log
            return Refusal()
        return super()._accept()


class Refusal(asyncio.Protocol):
    """The protocol for a refused connection: it closes the connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def seconds(duration: str) -> int:
    """Convert an ISO 8601 duration of hours, minutes and seconds to seconds."""
    found = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", duration)
    assert found, f"{duration} is no duration of hours, minutes and seconds"
    hours, minutes, rest = (int(number) for number in found.groups("0"))
    return hours * 3600 + minutes * 60 + rest


def broker_of(config: dict[str, Any]) -> Broker:
    """Return a broker with the topics of a configuration in Microsoft's format."""
    (namespace,) = config["UserConfig"]["Namespaces"]
    return Broker.from_config({"topics": [_topic(topic) for topic in namespace["Topics"]]})


def _topic(topic: dict[str, Any]) -> dict[str, Any]:
    properties = topic["Properties"]
    window = seconds(properties["DuplicateDetectionHistoryTimeWindow"])
    return {
        "name": topic["Name"],
        "ttl_s": seconds(properties["DefaultMessageTimeToLive"]),
        "dedup_window_s": window if properties["RequiresDuplicateDetection"] else None,
        "subscriptions": [
            {
                "name": subscription["Name"],
                "requires_session": subscription["Properties"]["RequiresSession"],
                "lock_s": seconds(subscription["Properties"]["LockDuration"]),
                "max_delivery_count": subscription["Properties"]["MaxDeliveryCount"],
                "ttl_s": seconds(subscription["Properties"]["DefaultMessageTimeToLive"]),
                "dead_letter_on_expiration": subscription["Properties"]["DeadLetteringOnMessageExpiration"],
            }
            for subscription in topic["Subscriptions"]
        ],
    }


def cosmos() -> CosmosServer:
    """
    Return a Cosmos DB server. Its new containers have as many ranges as the variable PARTITIONS says, by default one.
    """
    account = Account(partitions=int(os.environ.get("PARTITIONS", "1")))
    server = CosmosServer(account, EVERYWHERE, GATEWAY_PORT)
    server.gateway = PublicGateway(server.account)
    return server


def service_bus() -> ServiceBusServer:
    """
    Return the broker that the mounted file describes.

    The environment variables without which Microsoft's emulator does not start are required here, too.
    """
    assert os.environ["ACCEPT_EULA"] == "Y"
    assert len(os.environ["MSSQL_SA_PASSWORD"]) >= 8
    socket.getaddrinfo(os.environ["SQL_SERVER"], 1433)
    broker = broker_of(json.loads(CONFIG.read_text(encoding="utf-8")))
    return SmallServiceBus(broker, host=EVERYWHERE, port=AMQP_PORT)


async def serve(server: CosmosServer | ServiceBusServer, *, health: str, port: int) -> None:
    """Run a server until SIGTERM. Another port answers the health check."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    application = web.Application()
    application.add_routes([web.get(health, _healthy)])
    runner = web.AppRunner(application)
    async with server:
        await runner.setup()
        await web.TCPSite(runner, EVERYWHERE, port).start()
        await stopped.wait()
        await runner.cleanup()


async def _healthy(_: web.Request) -> web.Response:
    return web.json_response({"status": "healthy"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=["cosmos", "servicebus"])
    parser.add_argument("--protocol", choices=["http"])
    if parser.parse_args().which == "cosmos":
        asyncio.run(serve(cosmos(), health="/ready", port=8080))
    else:
        asyncio.run(serve(service_bus(), health="/health", port=5300))
