"""
Fresh reads: read a document in at least a given version, which the caller knows for example from a message.

A replica that lags returns an old document, or none. If it does, the document is read again from the replica that takes
writes, where no commit is missing. If the document is not found there, it was deleted, and waiting for it is useless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from cosmos_outbox.errors import NotFound, TryLater
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.stored_documents import Document

_REREADS = 6  # how often to read again; with the pauses that takes about 2 s


async def read_new_enough(
    read: Callable[..., Awaitable[Document]], options: RetryOptions, etag: str | None, at_least: int | None
) -> Document:
    """
    Return a document in the given version or a later one.

    Args:
        read: a function that reads the document, with the arguments of `Store.read` after the partition key.
        options: for how long one read is tried.
        etag: if the document still has this etag, NotModified is raised. It has no effect if `at_least` is given.
        at_least: the lowest version that the caller accepts; None for any version.

    Raises:
        NotFound: there is no such document.
        TryLater: the document stayed older than `at_least`.
    """
    if at_least is None:
        return await retry_reads(lambda: read(if_none_match=etag), options)
    with suppress(NotFound):
        if version_of(document := await retry_reads(read, options)) >= at_least:
            return document
    for attempt in range(1, _REREADS + 1):
        if version_of(document := await retry_reads(lambda: read(newest=True), options)) >= at_least:
            return document
        await asyncio.sleep(options.backoff.delay(attempt))
    raise too_old(document, at_least)


def too_old(document: Mapping[str, Any], at_least: int) -> TryLater:
    """Return the error for a document that is older than its reader needs."""
    return TryLater(
        f"{document['id']!r} was read in version {version_of(document)}, and version {at_least} is asked for. If it was deleted and "
        "created again, or another program writes it without counting, read it without `at_least`."
    )


def version_of(document: Mapping[str, Any]) -> int:
    """
    Return the version of an entity's document, which counts the commits that wrote it; 1 for a document of the .NET
    sample, which counts no versions.
    """
    version = document.get("version")
    return version if isinstance(version, int) and version > 0 else 1
