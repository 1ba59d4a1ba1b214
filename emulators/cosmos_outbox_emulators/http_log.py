"""
The log of all HTTP servers of the emulators. It leaves out malformed requests, which are answered with 400, and clients that
disconnect before they get their answer, because neither is an error of the server.
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
