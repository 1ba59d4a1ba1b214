"""The one place that translates errors of the Cosmos DB SDK into errors of this library, which `cosmos_outbox/errors.py` defines."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

from aiohttp import ClientError
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.cosmos.exceptions import CosmosBatchOperationError

from cosmos_outbox import errors
from cosmos_outbox.partition_key import PartitionKey

_LONGEST_REASON = 300  # how many characters of the service's answer an error quotes
_IN_ERRORS = re.compile(r'Message: \{"Errors":\["(.*?)"\]\}')

_NO_REPLY = (
    "Cosmos DB did not answer; check the scheme, host and port of the endpoint, and that the network lets this machine "
    "reach it, or else try again"
)
_KEY = (
    "Cosmos DB refuses the key or token: copy the account's key again, or sign in with an identity where the account "
    "allows no keys, and check this machine's clock."
)
_ROLES = (
    "The identity lacks a data-plane role: assign it Cosmos DB Built-in Data Contributor on the account, or a role with the "
    "action that is named."
)
_FIREWALL = (
    "The firewall of the Cosmos DB account blocks this machine: allow its address or subnet, or its private endpoint, in the "
    "account's networking settings; that takes up to 15 minutes."
)
_KEY_ROLES_OR_FIREWALL = (
    "The key may not do this, the identity lacks a data-plane role (Cosmos DB Built-in Data Contributor has all), or the "
    "firewall of the Cosmos DB account blocks this machine: check all three."
)
_FULL = (
    "The partition key holds as many bytes as Cosmos DB stores under one key: delete documents of it, or spread them over "
    "more keys."
)


@asynccontextmanager
async def our_errors(
    *,
    document_ids: Sequence[str] = (),
    partition_key: PartitionKey | None = None,
    needed: str = "",
    of_feed: bool = False,
) -> AsyncIterator[None]:
    """
    Translate every error of the SDK that leaves the block into an error of this library, with the SDK's error as its
    cause.

    Args:
        document_ids, partition_key, needed: see `translate`.
        of_feed: whether the block reads the change feed of the monitored container. If so, an answer that says that
            the range was split or merged raises RangeGone. In other containers the same answer raises StoreUnavailable,
            because a worker would take RangeGone for a split of the range that it reads.
    """
    try:
        yield
    except (AzureError, ClientError, TimeoutError, ConnectionError, KeyError) as error:
        cause: BaseException | None = error
        if isinstance(error, KeyError):
            # After the answer 404/1002 (no replica has caught up) the SDK drops its session token. If it has
            # dropped the token before, it raises KeyError. The service's answer is then the KeyError's
            # context.
            cause = error.__context__
        if cause is None or (cause is not error and not isinstance(cause, AzureError)):
            raise
        ours = translate(cause, document_ids=document_ids, partition_key=partition_key, needed=needed)
        if isinstance(ours, errors.RangeGone) and not of_feed:
            ours = errors.StoreUnavailable(applied=False)
        raise ours from cause


def translate(
    error: BaseException,
    *,
    document_ids: Sequence[str] = (),
    partition_key: PartitionKey | None = None,
    needed: str = "",
) -> errors.OutboxError:
    """
    Return this library's error for an error of the SDK.

    Args:
        error: the error that the SDK raised.
        document_ids: the ids of the documents that were written, in order, so that the error can name the one at fault.
        partition_key: the partition key of these documents.
        needed: the partition key and time to live with which a missing container has to be created.
    """
    if isinstance(error, CosmosBatchOperationError):
        return _translate_batch(error, document_ids, partition_key)
    if isinstance(error, ClientAuthenticationError):
        message = "This program has no token for Cosmos DB, so it sent no request: sign in, or give the machine an identity."
        return errors.AccessDenied(f"{message} The credential said: {error.message}", refused_by="credential")
    if isinstance(error, HttpResponseError):
        answer = _Answer(
            status=error.status_code or 0,
            sub_status=getattr(error, "sub_status", None) or 0,
            text=str(getattr(error, "http_error_message", None) or error.message),
            headers=getattr(error, "headers", None) or {},
            document_id=document_ids[0] if len(document_ids) == 1 else None,
            partition_key=partition_key,
            rolled_back=False,
            path=_path_of(error),
            needed=needed,
        )
        return answer.meaning()
    # The service did not answer: the connection failed, was lost or timed out, perhaps after the service had
    # executed the request. A TimeoutError without a text comes from this library's own time limit.
    late = isinstance(error, TimeoutError) and not str(error)
    return errors.StoreUnavailable(f"{_NO_REPLY}: {'it took too long' if late else errors.error_line(error)}")


def _translate_batch(
    error: CosmosBatchOperationError, document_ids: Sequence[str], partition_key: PartitionKey | None
) -> errors.OutboxError:
    responses: Sequence[Mapping[str, Any]] = error.operation_responses or ()
    for position, response in enumerate(responses):
        status = int(response["statusCode"])
        if status < HTTPStatus.BAD_REQUEST or status == HTTPStatus.FAILED_DEPENDENCY:
            continue
        headers = dict(error.headers or {})
        if "retryAfterMilliseconds" in response:
            headers["x-ms-retry-after-ms"] = str(response["retryAfterMilliseconds"])
        answer = _Answer(
            status=status,
            sub_status=int(response.get("subStatusCode") or 0),
            text=f"operation {position} of the batch failed. {error.http_error_message}",
            headers=headers,
            document_id=document_ids[position] if position < len(document_ids) else None,
            partition_key=partition_key,
            rolled_back=True,
        )
        return answer.meaning()
    return errors.StoreUnavailable(
        "Cosmos DB rolled the batch back and gave no reason; try again.", applied=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    sub_status: int
    text: str
    headers: Mapping[str, Any]
    document_id: str | None
    partition_key: PartitionKey | None
    rolled_back: bool
    path: tuple[str, ...] = ()  # the parts of the request's path: dbs, NAME, colls, NAME, docs, NAME
    needed: str = ""

    def meaning(self) -> errors.OutboxError:
        found = _BY_SUB_STATUS.get((self.status, self.sub_status)) or _BY_STATUS.get(self.status, _failure)
        error = found(self)
        error.document_id, error.partition_key = self.document_id, self.partition_key
        with suppress(ValueError):  # the header is absent, or its value is no number
            milliseconds = float(header(self.headers, "x-ms-retry-after-ms") or "")
            error.retry_after = max(0.0, milliseconds / 1000)
        return error

    def after(self, advice: str) -> str:
        """Return an error text: the advice, the status and reason that the service gave, and what was asked for."""
        code = f"{self.status}/{self.sub_status}" if self.sub_status else f"{self.status}"
        known = [f"container {self.path[3]!r}"] if self.path[2:3] == ("colls",) and self.path[3:] else []
        known += [f"document {self.document_id!r}"] if self.document_id is not None else []
        known += [f"partition key {self.partition_key!r}"] if self.partition_key is not None else []
        activity = header(self.headers, "x-ms-activity-id")
        known += [f"activity id {activity}"] if activity else []
        about = f" ({', '.join(known)})" if known else ""
        return f"{advice} Cosmos DB answered {code}: {self.reason}{about}"

    @property
    def reason(self) -> str:
        try:
            text = str(json.loads(self.text)["message"])
        except (ValueError, TypeError, KeyError):
            text = self.text
        text = _IN_ERRORS.sub(r"\1", text).partition("ActivityId:")[0]
        return " ".join(text.split())[:_LONGEST_REASON]


def _path_of(error: HttpResponseError) -> tuple[str, ...]:
    request = getattr(getattr(error, "response", None), "request", None)
    path = urlsplit(str(getattr(request, "url", ""))).path.strip("/")
    return tuple(map(unquote, path.split("/")))


def _with_advice(kind: type[errors.StoreError], **said: Any) -> Callable[[_Answer], errors.StoreError]:
    return lambda answer: kind(answer.after(str(kind())), **said)


_refused = _with_advice(errors.StoreUnavailable, applied=False)
_outcome_unknown = _with_advice(errors.StoreUnavailable)


def _failure(answer: _Answer) -> errors.StoreError:
    # After a fault of the service, only a batch that was rolled back is known not to be written. Any other
    # request may have been executed before the fault.
    return _refused(answer) if answer.rolled_back else _outcome_unknown(answer)


def _forbidden(answer: _Answer) -> errors.AccessDenied:
    # A 403 without a sub-status has several causes, so the service's text has to tell them apart. If that
    # text names the token and the firewall, the service itself does not know the cause, and the advice names
    # each possible cause.
    reason = answer.reason.lower()
    if "request originated from" in reason or "blocked by your cosmos db account firewall" in reason:
        return errors.AccessDenied(answer.after(_FIREWALL), refused_by="firewall")
    if "rbac" in reason:
        return errors.AccessDenied(answer.after(_ROLES), refused_by="roles")
    return errors.AccessDenied(answer.after(_KEY_ROLES_OR_FIREWALL))


def _missing(answer: _Answer) -> errors.ConfigurationError:
    named = "The container, or its database,"
    match answer.path:
        case ["dbs", database, "colls", container, *_]:
            named = f"The container {container!r} of database {database!r}, or that database,"
    needed = f" with {answer.needed}" if answer.needed else ""
    return errors.ConfigurationError(
        answer.after(
            f"{named} does not exist: create it{needed}, or correct the name; this library creates none."
        )
    )


def _not_found(answer: _Answer) -> errors.OutboxError:
    # A 404 without a sub-status usually means that the document is missing. But the SDK reads the container
    # before its first request: if the path is the container's, the container is missing.
    match answer.path:
        case ["dbs", _, "colls", _]:
            return _missing(answer)
    return errors.NotFound()


# The error for each status with a sub-status, or else for the status alone. Any other status is a fault of
# the service, after which the outcome is unknown.
_BY_SUB_STATUS: Mapping[tuple[int, int], Callable[[_Answer], errors.OutboxError]] = {
    (403, 3): _refused,  # the region takes no writes, perhaps only during a failover
    (403, 1008): _refused,  # the account is being moved
    (403, 1014): lambda answer: errors.RequestTooLarge(answer.after(_FULL)),
    (404, 1002): _refused,  # the replica has not caught up with the session token
    (404, 1003): _missing,
    (404, 1013): _refused,  # the container is being created
    # Of the sub-statuses of 410, only 1002 and 1007 mean that the range was split or merged. With 1000 (the
    # SDK's name cache is stale) and 1008 (a partition moves to other machines) the range still exists.
    (410, 1002): lambda _: errors.RangeGone(),
    (410, 1007): lambda _: errors.RangeGone(),  # a split of the range is being completed
}
_BY_STATUS: Mapping[int, Callable[[_Answer], errors.OutboxError]] = {
    304: lambda answer: errors.NotModified(etag=header(answer.headers, "etag")),
    400: _with_advice(errors.InvalidRequest),
    401: lambda answer: errors.AccessDenied(answer.after(_KEY), refused_by="credential"),
    403: _forbidden,
    404: _not_found,
    405: _with_advice(errors.InvalidRequest),
    409: lambda _: errors.Conflict(),
    410: _refused,
    412: lambda _: errors.PreconditionFailed(),
    413: _with_advice(errors.RequestTooLarge),
    424: _refused,  # another operation of the batch failed
    429: _with_advice(errors.TooManyRequests),
    449: _refused,
}


def header(headers: Mapping[str, Any], name: str) -> str | None:
    return next((str(value) for key, value in headers.items() if str(key).lower() == name), None)
