"""
Lean requests: repeat over plain REST the request that the SDK last sent for a range or a lease.

An idle worker sends two requests over and over: is there anything new in this range, and I still own this lease. Only what is
nearly always answered is used of the answers, "nothing new" (304) and the written lease: with any other, or none, the SDK goes
on, so nothing rests on a split, a refusal or an outage being understood here.

Endpoint, resource and the headers that matter are those of the SDK's last request. They hold for a few minutes; then the SDK
sends one again, which takes all others to the region that it uses by now. A header that we do not know can only narrow a read
of the SDK. Without it ours asks about more; if there is nothing new in that, there is nothing new for the SDK either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping

from azure.core.exceptions import AzureError

from cosmos_outbox.adapters.cosmos.rest import Answer, RestClient
from cosmos_outbox.adapters.cosmos.sdk_request import SESSION_TOKEN, Sent, SentRequest, kept_of

RANGE_ID = "x-ms-documentdb-partitionkeyrangeid"
_CONTAINER = "x-ms-cosmos-intended-collection-rid"
_CONSISTENCY = "x-ms-consistency-level"
_ALWAYS_KEPT = (_CONTAINER, "x-ms-version", "User-Agent")
OF_A_POLL = ("A-IM", RANGE_ID, "x-ms-read-key-type", "x-ms-start-epk", "x-ms-end-epk", _CONSISTENCY)
OF_A_WRITE = ("x-ms-cosmos-allow-tentative-writes", "Content-Type")
_NOT_MODIFIED, _BAD_REQUEST = 304, 400
_LOST_RACES = (409, 412)  # another worker was first, as happens while leases are shared out
_PAUSE_SECONDS = 60.0


class Learned:
    """
    The requests of one container, by the range or the documents that they concern.

    Args:
        rest: of the same account.
        kept: the headers that matter; without the first ones, `needed` many, nothing is learned.
    """

    def __init__(self, rest: RestClient, kept: tuple[str, ...], *, needed: int) -> None:
        self._rest = rest
        self._kept, self._needed = (*kept, *_ALWAYS_KEPT), (*kept[:needed], _CONTAINER)
        self._known: dict[Hashable, Sent] = {}
        self._endpoint = ""  # of the SDK's last request, for any of them
        self._until = self._paused_until = 0.0

    def learn(self, about: Hashable, request: SentRequest) -> None:
        """
        Note a request of the SDK that was answered as usual.
        """
        sent = kept_of(request, self._kept, now=asyncio.get_running_loop().time())
        starts_at_a_time = any(name.lower() == "if-modified-since" for name in request.headers)
        if starts_at_a_time or not all(name in sent.headers for name in self._needed):
            self._known.pop(about, None)  # the SDK sends the next one
            return
        self._known[about], self._endpoint, self._until = sent, sent.endpoint, sent.until

    async def nothing_new(
        self, about: Hashable, continuation: str, *, session_token: str | None
    ) -> Answer | None:
        """
        Return the answer that a range has nothing after a continuation; None where that is not known: read through the SDK.

        Args:
            about: what the range was learned as.
            continuation: the etag of its last answer.
            session_token: of the range, for an account whose consistency is Session.
        """
        known = self._usable(about)
        if known is None:
            return None
        # What is new is read again, so one document is enough.
        headers = {**known.headers, "If-None-Match": continuation, "x-ms-max-item-count": "1"}
        if session_token is not None and headers.get(_CONSISTENCY) == "Session":
            headers[SESSION_TOKEN] = session_token
        try:
            answer = await self._rest.request("GET", known.path, headers=headers, endpoint=known.endpoint)
        except (AzureError, TimeoutError, ConnectionError):
            self._pause()
            return None
        if answer.status >= _BAD_REQUEST:
            self._pause()
        return answer if answer.status == _NOT_MODIFIED else None

    async def written(
        self, method: str, about: Hashable, document_id: str = "", *, headers: Mapping[str, str], body: bytes
    ) -> Answer | None:
        """
        Send a write of a document, and return the answer; None where nothing was sent: use the SDK.

        Args:
            method: PUT, or POST without the document's id.
            about: what the path of the container's documents was learned as.
            document_id: of the document that is replaced.
            headers: with its partition key.
            body: the document.

        Raises:
            as `RestClient.request`: there is no answer, and the document may be written.
        """
        known = self._usable(about)
        if known is None:
            return None
        path = f"{known.documents}/{document_id}" if document_id else known.documents
        try:
            answer = await self._rest.request(
                method, path, headers={**known.headers, **headers}, body=body, endpoint=known.endpoint
            )
        except Exception:
            self._pause()
            raise
        if answer.status >= _BAD_REQUEST and answer.status not in _LOST_RACES:
            self._pause()
        return answer

    def _usable(self, about: Hashable) -> Sent | None:
        known, now = self._known.get(about), asyncio.get_running_loop().time()
        usable = known is not None and known.endpoint == self._endpoint
        return known if usable and self._paused_until <= now < self._until else None

    def _pause(self) -> None:
        # Not two requests for one while something is wrong.
        self._paused_until = asyncio.get_running_loop().time() + _PAUSE_SECONDS
