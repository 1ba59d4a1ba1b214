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
# Attributes of the SDK's client. Without one of them this receiver does not start.
_PRIVATE = "_config", "_ssl_context", "_credential"
_SCOPE = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """
    A Service Bus namespace, and how to sign in to it.

    tls: None only where the connection string is that of an emulator.
    credential: of the SDK's client. It signs tokens with a shared key, or asks Microsoft Entra ID for them.
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
            ConfigurationError: the client uses WebSockets.
        """
        config, tls, credential = (getattr(client, name) for name in _PRIVATE)
        if config.transport_type is not TransportType.Amqp:
            raise ConfigurationError("The lean receiver cannot use AMQP over WebSockets: choose the SDK's.")
        address = urlsplit(f"sb://{client.fully_qualified_namespace}")
        return cls(
            host=str(address.hostname),
            port=address.port or (_TLS_PORT if config.use_tls else _PLAIN_PORT),
            tls=(tls or tls_context()) if config.use_tls else None,
            credential=credential,
        )

    @property
    def kind(self) -> str:
        """Return the kind of the credential's tokens, as $cbs names it."""
        return getattr(self.credential, "token_type", b"jwt").decode()

    async def token_for(self, audience: str) -> AccessToken:
        """Return a token. A shared key signs it for one entity; Microsoft Entra ID issues it for the whole service."""
        return await self.credential.get_token(_SCOPE if self.kind == "jwt" else audience)
