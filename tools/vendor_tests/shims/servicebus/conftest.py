"""
Makes the SDK's clients connect to the emulator without TLS, because the tests would not trust its certificate. Clients that use WebSockets
also get the emulator's port.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import pytest
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

ENDPOINT = f"sb://{os.environ['SERVICEBUS_FULLY_QUALIFIED_NAMESPACE']}"


def without_tls(client: type) -> None:
    """Make a client use plain AMQP."""
    make = client.__init__

    @functools.wraps(make)
    def made(self: Any, *arguments: Any, **options: Any) -> None:
        if options.get("transport_type") is TransportType.AmqpOverWebsocket:
            options.setdefault("custom_endpoint_address", ENDPOINT)
        make(self, *arguments, **{**options, "use_tls": False})

    client.__init__ = made


def plain_http(transport: type) -> None:
    """Make the administration clients, which only support https, use http."""
    send = transport.send

    def plainly(request: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return request

    def sent(self: Any, request: Any, **options: Any) -> Any:
        return send(self, plainly(request), **options)

    async def sent_async(self: Any, request: Any, **options: Any) -> Any:
        return await send(self, plainly(request), **options)

    transport.send = sent_async if inspect.iscoroutinefunction(send) else sent


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers that the tests use, and make pytest run coroutines as tests."""
    config.option.asyncio_mode = "auto"
    for marker in ("liveTest", "live_test_only", "playback_test_only"):
        config.addinivalue_line("markers", marker)
    without_tls(ServiceBusClient)
    without_tls(AsyncServiceBusClient)
    plain_http(RequestsTransport)
    plain_http(AioHttpTransport)
