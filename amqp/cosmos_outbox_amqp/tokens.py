"""
Tokens: the address of a namespace, and the token that proves this program's identity to it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, urlsplit

import certifi

from cosmos_outbox.errors import ConfigurationError

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

TLS_PORT, PLAIN_PORT, WEBSOCKET_PORT = 5671, 5672, 443
_SCOPE = "https://servicebus.azure.net/.default"
_SAS_SECONDS = 3600
_SAS, _JWT = "servicebus.windows.net:sastoken", "jwt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """
    Proof for one entity.

    expires: in seconds since 1970.
    """

    kind: str
    text: str = field(repr=False)
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """
    A Service Bus namespace, and how to sign in to it.

    tls: None only where a connection string says that it is one of an emulator.
    websockets: whether AMQP goes over a WebSocket.
    proxy: on the way to it, for WebSockets.
    """

    host: str
    port: int = TLS_PORT
    tls: ssl.SSLContext | None
    websockets: bool = False
    proxy: str | None = field(default=None, repr=False)
    token_for: Callable[[str], Awaitable[Token]] = field(repr=False)

    def audience(self, path: str) -> str:
        """
        Return the name of an entity that a token is for.
        """
        return f"sb://{self.host}/{path}"


def namespace_of(
    *,
    connection_string: str | None = None,
    namespace: str | None = None,
    credential: AsyncTokenCredential | None = None,
    websockets: bool = False,
    proxy: str | None = None,
) -> Namespace:
    """
    Return the namespace of a connection string; or the one that is named, with a credential of Microsoft Entra ID.

    Args:
        connection_string: of the namespace; or namespace and credential.
        namespace: its host, like `contoso.servicebus.windows.net`.
        credential: signs in to the namespace.
        websockets: whether AMQP goes over a WebSocket, to port 443. Defaults to TCP, to port 5671.
        proxy: the URL of one on the way, for WebSockets.

    Raises:
        ConfigurationError: neither way is complete, or the connection string cannot be read.
    """
    if connection_string is not None:
        try:
            found = _of_connection_string(connection_string, WEBSOCKET_PORT if websockets else None)
        except (KeyError, ValueError):  # their texts may quote the key
            raise ConfigurationError(
                "The Service Bus connection string cannot be read; copy it again."
            ) from None
    elif namespace is not None and credential is not None:
        found = _of_name(namespace, credential, WEBSOCKET_PORT if websockets else TLS_PORT)
    else:
        raise ConfigurationError("Service Bus needs a connection string, or a namespace and a credential.")
    return replace(found, websockets=websockets, proxy=proxy)


def _of_name(name: str, credential: AsyncTokenCredential, port: int) -> Namespace:
    async def entra(audience: str) -> Token:
        given = await credential.get_token(_SCOPE)
        return Token(kind=_JWT, text=given.token, expires=given.expires_on)

    return Namespace(host=name, port=port, tls=_verified(), token_for=entra)


def _of_connection_string(text: str, port: int | None) -> Namespace:
    pairs = (part.split("=", 1) for part in text.strip().rstrip(";").split(";"))
    given = {name.strip().lower(): value for name, value in pairs}
    address = urlsplit(given["endpoint"])
    if not address.hostname:
        raise ValueError("no host")
    plain = given.get("usedevelopmentemulator") == "true"
    if "sharedaccesssignature" in given:
        signature = given["sharedaccesssignature"]
        expires = float(signature.split("se=")[1].split("&")[0])

        async def sign(audience: str) -> Token:
            return Token(kind=_SAS, text=signature, expires=expires)

    else:
        name, key = given["sharedaccesskeyname"], given["sharedaccesskey"]

        async def sign(audience: str) -> Token:
            return shared_access_signature(audience, name, key)

    return Namespace(
        host=address.hostname,
        port=address.port or port or (PLAIN_PORT if plain else TLS_PORT),
        tls=None if plain else _verified(),
        token_for=sign,
    )


def _verified() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certifi.where())


def shared_access_signature(audience: str, name: str, key: str) -> Token:
    """
    Return a token that is signed with a key of the namespace.
    """
    resource, expires = quote_plus(audience), int(time.time()) + _SAS_SECONDS
    digest = hmac.new(key.encode(), f"{resource}\n{expires}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return Token(
        kind=_SAS,
        text=f"SharedAccessSignature sr={resource}&sig={signature}&se={expires}&skn={quote_plus(name)}",
        expires=expires,
    )
