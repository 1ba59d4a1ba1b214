"""
URLs: whether a text that somebody set names a server of HTTP at all.
"""

from __future__ import annotations

from urllib.parse import urlsplit


def is_url(text: str) -> bool:
    """
    Say whether a text is a URL with a host, and a port that may be.
    """
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that stay open, or a port that is none
        return False
