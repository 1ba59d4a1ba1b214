"""
Idempotency-Key: a request with this header takes effect once, however often it is repeated.

The header is that of draft-ietf-httpapi-idempotency-key-header. `write/idempotency.py` stores the first answer and finds it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from fastapi import Depends, Header, HTTPException, Request, Response

from cosmos_outbox.domain.events import new_id
from cosmos_outbox.errors import CommitOutcomeUnknown
from cosmos_outbox.fastapi.problems import KEY_HEADER, MISSING_KEY
from cosmos_outbox.fastapi.units_of_work import OutboxDep
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.write.idempotency import DEFAULT_REMEMBERED, IdempotencyKey, answer_once
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.unit_of_work import UnitOfWork

# The value of the header Idempotency-Key: in quotes, as the IETF's draft requires, or without quotes, as most clients send it.
_KEY = re.compile(r'"([ !#-\[\]-~]{1,255})"|([!#-+\--:<-\[\]-~]{1,255})')
_UNKNOWN = "It is not known whether the change was stored; repeat the request under the same Idempotency-Key to find out."


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request with its Idempotency-Key. `id` is a UUID for the entity that the request creates. A repetition has the same UUID."""

    outbox: Outbox
    key: IdempotencyKey | None
    id: str

    async def answer(
        self,
        work: Callable[[Any], Awaitable[Any]],
        *,
        partition_key: PartitionKey | None = None,
        kind: type[UnitOfWork] = UnitOfWork,
    ) -> Response:
        """
        Carry the request out once, and return its answer; see `answer_once`.

        The answer to a repetition has the header `Idempotent-Replayed`.

        Raises:
            HTTPException: 503 with Retry-After, if the answer of the store was lost, so that a repetition has to find out the outcome.
            OutboxError: see `answer_once`.
        """
        try:
            answer = await answer_once(self.outbox, self.key, work, partition_key=partition_key, kind=kind)
        except CommitOutcomeUnknown as error:
            if self.key is None:
                raise
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, _UNKNOWN, {"Retry-After": "1"}) from error
        headers = {**answer.headers, **({"Idempotent-Replayed": "true"} if answer.repeated else {})}
        return Response(answer.text, answer.status, headers, answer.text and "application/json")


def idempotency_key(
    *,
    caller: Callable[..., Any] | None,
    required: bool = True,
    remembered_for: timedelta = DEFAULT_REMEMBERED,
) -> Callable[..., Awaitable[IdempotentRequest]]:
    """
    Return the dependency that gives a route its IdempotentRequest, for `Annotated[IdempotentRequest, Depends(…)]`.

    Args:
        caller: a dependency that returns who sends the request, in JSON types that are the same in each repetition: the id of the user,
            not a token. Equal keys of different callers are different keys. None for an API that has only one caller.
        required: whether a request without the header is refused with 400. Otherwise it is carried out each time that it is sent.
        remembered_for: for how long a repetition gets the first answer. Defaults to a day.

    Raises:
        UsageError: `remembered_for` is too short or too long.
    """
    IdempotencyKey(key="", scope=(), payload=None, remembered_for=remembered_for)

    header = Header(... if required else None, alias=KEY_HEADER, description=MISSING_KEY)

    async def read_request(
        request: Request,
        outbox: OutboxDep,
        lines: list[str] | None = header,
        who: Any = Depends(caller or _the_only_one),  # noqa: B008 - made once for each route that asks
    ) -> IdempotentRequest:
        if lines is None and not required:
            return IdempotentRequest(outbox, None, new_id())
        if lines is None or len(lines) > 1 or (match := _KEY.fullmatch(lines[0])) is None:
            raise HTTPException(HTTPStatus.BAD_REQUEST, MISSING_KEY)
        key = IdempotencyKey(
            key=match[1] or match[2],
            scope=(request.method, request.url.path, who),
            payload=(request.url.query, _content(await request.body())),
            remembered_for=remembered_for,
        )
        return IdempotentRequest(outbox, key, key.id)

    return read_request


async def _the_only_one() -> None: ...


def _content(body: bytes) -> str:
    try:
        # Payloads that differ only in spaces or in the order of names count as equal, so return a text in which they are the same. Return no
        # parsed value, because Python cannot compare values that are nested very deep.
        return json.dumps(json.loads(body), sort_keys=True)
    except (ValueError, RecursionError):
        return body.hex()
