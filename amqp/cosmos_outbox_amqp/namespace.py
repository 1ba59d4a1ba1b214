"""
Namespace: where the namespace of an SDK's client is, and the tokens that prove this program's identity to it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.servicebus.publisher import tls_context
from cosmos_outbox.errors import ConfigurationError

_TLS_PORT, _PLAIN_PORT = 5671, 5672
# Of the SDK's client; without one of them, no start.
_PRIVATE = "_config", "_ssl_context", "_credential"
_SCOPE = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """
    A Service Bus namespace, and how to sign in to it.

    tls: None only where a connection string says that it is one of an emulator.
    credential: of the SDK's client; it signs what a shared key is for, or asks Microsoft Entra ID.
    """

    host: str
    port: int = _TLS_PORT
    tls: ssl.SSLContext | None
    credential: AsyncTokenCredential = field(repr=False)

    @classmethod
    def of(cls, client: ServiceBusClient) -> Self:
        """
        Return the namespace of a client that `open_service_bus_client` made.

        Raises:
            ConfigurationError: it is to be reached over WebSockets.
        """
        config, tls, credential = (getattr(client, name) for name in _PRIVATE)
        if config.transport_type is not TransportType.Amqp:
            raise ConfigurationError("The lean receiver does not speak AMQP over WebSockets, the SDK's does.")
        address = urlsplit(f"sb://{client.fully_qualified_namespace}")
        return cls(
            host=str(address.hostname),
            port=address.port or (_TLS_PORT if config.use_tls else _PLAIN_PORT),
            tls=(tls or tls_context()) if config.use_tls else None,
            credential=credential,
        )

    @property
    def kind(self) -> str:
        """Return the kind of its tokens."""
        return getattr(self.credential, "token_type", b"jwt").decode()

    async def token_for(self, audience: str) -> AccessToken:
        """Return a token for one entity, or for all of the service."""
        return await self.credential.get_token(_SCOPE if self.kind == "jwt" else audience)
