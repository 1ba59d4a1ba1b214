"""
Fresh reads: the read of one document that is no older than its caller knows it to be, such as from the message about it.

A replica that is behind returns an old document, or none. Then the document is read again where writes go: nothing that was committed is
missing there. So what is not found then is gone, and does not have to be waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from cosmos_outbox.errors import NotFound, TryLater
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.stored_documents import Document

_REREADS = 6  # so many reads take about 2 s


async def read_new_enough(
    read: Callable[..., Awaitable[Document]], options: RetryOptions, etag: str | None, at_least: int | None
) -> Document:
    """
    Return a document in the given version or a later one.

    Args:
        read: it, as `Store.read` does.
        options: how long a read is tried.
        etag: raise NotModified while it has it; has no effect where a version is given.
        at_least: the version; None for what a replica has.

    Raises:
        NotFound: there is none.
        TryLater: it stayed older.
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
    """Return the error of a document that is older than its reader needs."""
    return TryLater(
        f"{document['id']!r} is read in version {version_of(document)}, and version {at_least} is asked for. If it was deleted and "
        "created again, or another program writes it without counting, read it without `at_least`."
    )


def version_of(document: Mapping[str, Any]) -> int:
    """Return how many commits wrote an entity's document; 1 for a document of the .NET sample, which does not count."""
    version = document.get("version")
    return version if isinstance(version, int) and version > 0 else 1
