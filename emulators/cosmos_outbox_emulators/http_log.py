"""
The log of all HTTP servers here: what a peer sends wrongly is answered with 400, and is no error of theirs; nor is one that
is gone before its answer.
"""

from __future__ import annotations

import logging

from aiohttp.http import HttpProcessingError


def _is_ours(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(
        record.exc_info[1], HttpProcessingError | ConnectionResetError
    )


log = logging.getLogger(__name__)
log.addFilter(_is_ours)
