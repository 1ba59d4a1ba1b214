"""
Polls: whether a range of the feed has anything new, asked over plain REST as the SDK asked last.

Nearly every request of an idle worker is answered "nothing new", and only that answer (304) is used here. On any other, or
none, the caller reads through the SDK, so no page, split, refusal or outage is ever understood here. Endpoint, partition and
bounds are those of the SDK's last read of the range, and hold for a few minutes: then the SDK reads once more, which moves the
polls to the region it uses by now. Where a header that we do not know narrows the SDK's read, the poll asks about more, and
nothing new in more is nothing new.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

from aiohttp import ClientError
from azure.core.exceptions import AzureError

from cosmos_outbox.adapters.cosmos.rest import Answer, RestClient

SESSION_TOKEN = "x-ms-session-token"  # noqa: S105 - a header's name
RANGE_ID = "x-ms-documentdb-partitionkeyrangeid"
_CONSISTENCY = "x-ms-consistency-level"
_KEPT = (
    "A-IM",
    RANGE_ID,
    "x-ms-read-key-type",
    "x-ms-start-epk",
    "x-ms-end-epk",
    "x-ms-cosmos-intended-collection-rid",
    _CONSISTENCY,
    "x-ms-version",
    "User-Agent",
)
_NEEDED = ("A-IM", RANGE_ID, "x-ms-cosmos-intended-collection-rid")
_OK, _NOT_MODIFIED = 200, 304
_KNOWN_SECONDS = 300.0
_PAUSE_SECONDS = 60.0


class SentRequest(Protocol):
    """
    A request as the SDK sent it.
    """

    url: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class _Known:
    endpoint: str
    path: str
    headers: dict[str, str]
    until: float


class Polls:
    """
    The polls of one container.
    """

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._known: dict[Hashable, _Known] = {}
        self._endpoint = ""  # that the SDK used last
        self._paused_until = 0.0

    def learn(self, place: Hashable, request: SentRequest) -> None:
        """
        Note how the SDK just read a range.
        """
        sent = {name.lower(): value for name, value in request.headers.items()}
        if "if-modified-since" in sent or not all(name.lower() in sent for name in _NEEDED):
            self._known.pop(place, None)
            return
        url = urlsplit(request.url)
        self._endpoint = f"{url.scheme}://{url.netloc}"
        headers = {name: sent[name.lower()] for name in _KEPT if name.lower() in sent}
        headers["x-ms-max-item-count"] = "1"  # what is new is read again
        # At different times, so that not all ranges are read through the SDK at once.
        lasting = _KNOWN_SECONDS * random.uniform(0.5, 1)
        until = asyncio.get_running_loop().time() + lasting
        self._known[place] = _Known(self._endpoint, unquote(url.path.strip("/")), headers, until)

    async def nothing_new(
        self, place: Hashable, continuation: str, *, session_token: str | None
    ) -> Answer | None:
        """
        Return the answer that there is nothing after a continuation; None if that is not known: read through the SDK.

        Args:
            place: what the range was learned as.
            continuation: the etag of its last answer.
            session_token: of the range, for an account whose consistency is Session.
        """
        known, now = self._known.get(place), asyncio.get_running_loop().time()
        if known is None or known.endpoint != self._endpoint or not self._paused_until <= now < known.until:
            return None
        headers = {**known.headers, "If-None-Match": continuation}
        if session_token is not None and headers.get(_CONSISTENCY) == "Session":
            headers[SESSION_TOKEN] = session_token
        answer = await self._asked(known, headers)
        if answer is None or answer.status not in (_OK, _NOT_MODIFIED):
            # Not two requests for each poll while something is wrong.
            self._paused_until = now + _PAUSE_SECONDS
        return answer if answer is not None and answer.status == _NOT_MODIFIED else None

    async def _asked(self, known: _Known, headers: Mapping[str, str]) -> Answer | None:
        try:
            return await self._rest.request("GET", known.path, headers=headers, endpoint=known.endpoint)
        except (ClientError, AzureError, TimeoutError, ConnectionError):
            return None
