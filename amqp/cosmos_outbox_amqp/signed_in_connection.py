"""SignedIn: a connection that is signed in to one subscription or queue, and renews its token in time. `namespace.py` gets the token."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import suppress
from typing import Any, Self

from azure.core.exceptions import ClientAuthenticationError

from cosmos_outbox_amqp.connection import ANSWER_SECONDS, Connection, connect
from cosmos_outbox_amqp.encoding import timestamp
from cosmos_outbox_amqp.errors import AmqpError, Condition
from cosmos_outbox_amqp.namespace import Namespace
from cosmos_outbox_amqp.requests import Requests

_RENEW_AT = 0.75  # renew a token after this part of its remaining time
_SIGNATURE = re.compile(r"sig=[^&\s]+")
_PAUSE_SECONDS = 5.0  # the least time between two renewals of a token

_logger = logging.getLogger("consumer")


class SignedIn:
    """A connection that is signed in to one subscription or queue. `open` creates it. The caller has to close the links that it opened."""

    def __init__(self, connection: Connection, namespace: Namespace, path: str) -> None:
        self.connection = connection
        self._namespace, self._path = namespace, path
        self._requests: dict[str, Requests] = {}
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, namespace: Namespace, path: str) -> Self:
        """
        Connect to the broker, sign in, and start a task that renews the token.

        Raises:
            AmqpError: the broker cannot be reached, or refuses the connection or the token.
        """
        connection = await connect(namespace)
        try:
            signed_in = cls(connection, namespace, path)
            expires = await signed_in._sign_in()
        except BaseException:
            connection.abort(AmqpError("", "Signing in failed."))
            raise
        signed_in._renewing = asyncio.create_task(signed_in._stay(expires))
        return signed_in

    async def _sign_in(self) -> float:
        audience = f"sb://{self._namespace.host}/{self._path}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                token, expires = await self._namespace.token_for(audience)
        except Exception as error:  # credentials read files and call other services, so any error can come
            refused = isinstance(error, ClientAuthenticationError)
            condition = Condition.UNAUTHORIZED_ACCESS if refused else ""
            raise AmqpError(condition, f"The credential has no token: {str(error) or 'no answer'}") from error
        kind, until = self._namespace.kind, timestamp(int(expires * 1000))
        try:
            properties = {"type": kind, "name": audience, "expiration": until}
            await self._at("$cbs").ask("put-token", properties, token)
        except AmqpError as error:
            hidden = _SIGNATURE.sub("sig=…", error.description.replace(token, "…"))
            if hidden == error.description:
                raise
            # The token is hidden, because the broker's text quotes it.
            raise AmqpError(error.condition, hidden) from None
        return expires

    def _at(self, address: str) -> Requests:
        # The broker detaches links that were idle for a long time, so open new links in this case.
        known = self._requests.get(address)
        if known is None or known.error is not None:
            known = self._requests[address] = Requests(self.connection, address)
        return known

    async def _stay(self, expires: float) -> None:
        while self.connection.lost is None:
            await asyncio.sleep(max((expires - time.time()) * _RENEW_AT, _PAUSE_SECONDS))
            try:
                expires = await self._sign_in()
            except AmqpError as error:  # the broker itself detaches the links when the token expires
                _logger.warning("servicebus.token-not-renewed %s", error)

    async def manage(self, operation: str, link: str, body: dict[str, Any]) -> dict[str, Any]:
        """
        Send a management request about a link, such as to renew the lock of its session, and return the broker's answer.

        Raises:
            AmqpError: the broker refused, or the connection is lost.
        """
        requests, named = self._at(f"{self._path}/$management"), {"associated-link-name": link}
        answer = await requests.ask(f"com.microsoft:{operation}", named, body)
        return answer if isinstance(answer, dict) else {}

    async def close(self) -> None:
        """Stop renewing the token, and close the connection."""
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        await self.connection.close()
