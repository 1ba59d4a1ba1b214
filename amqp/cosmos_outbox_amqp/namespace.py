"""
Namespace: the host of a Service Bus namespace and the tokens to sign in to it, taken from a client of the Service Bus SDK.
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
# Private attributes of the SDK's client that this module reads. If a version of the SDK lacks one, this receiver cannot start.
_PRIVATE = "_config", "_ssl_context", "_credential"
_SCOPE = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """
    A Service Bus namespace, and how to connect and sign in to it.

    tls: the TLS context; None only if the connection string is that of an emulator.
    credential: the credential of the SDK's client. It signs tokens with a shared key, or gets them from Microsoft Entra ID.
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
            raise ConfigurationError("The lean receiver cannot use WebSockets: choose the SDK's receiver.")
        address = urlsplit(f"sb://{client.fully_qualified_namespace}")
        return cls(
            host=str(address.hostname),
            port=address.port or (_TLS_PORT if config.use_tls else _PLAIN_PORT),
            tls=(tls or tls_context()) if config.use_tls else None,
            credential=credential,
        )

    @property
    def kind(self) -> str:
        """Return the type of the credential's tokens, by the name that the broker's $cbs node expects."""
        return getattr(self.credential, "token_type", b"jwt").decode()

    async def token_for(self, audience: str) -> AccessToken:
        """
        Return a token with which this program can sign in.

        Args:
            audience: the URL of the subscription or queue. A token that a shared key signs is valid only for this URL. A token of
                Microsoft Entra ID is valid for all of Service Bus.
        """
        return await self.credential.get_token(_SCOPE if self.kind == "jwt" else audience)
