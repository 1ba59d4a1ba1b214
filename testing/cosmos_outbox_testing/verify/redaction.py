"""Redaction: what a report must not hold: what signs in, and the names of the account and of the namespace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cosmos_outbox.adapters.cosmos.client import connection_parts

if TYPE_CHECKING:
    from cosmos_outbox_worker.settings import Settings

_SHORT = 12  # a part of a connection string that is too short for a secret, such as `true`
_GUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def without_secrets(text: str, settings: Settings) -> str:
    """Return a text without any part of a connection string."""
    for secret in (settings.cosmos_connection_string, settings.servicebus_connection_string):
        for part in (secret.get_secret_value() if secret else "").split(";"):
            value = part.partition("=")[2]
            text = text.replace(value, "…") if len(value) > _SHORT else text
    return text


def without_names(text: str, settings: Settings, run: str = "") -> str:
    """
    Return a text of a service without the names of the account and of the namespace, wherever they stand as a word, and without
    GUIDs, which may be those of principals and tenants. The run's id stays.
    """
    given = settings.cosmos_connection_string
    url = connection_parts(given.get_secret_value())["accountendpoint"] if given else settings.cosmos_endpoint
    namespace = (settings.namespace or "").partition(":")[0]
    words: dict[str, str] = {}
    for host, word in ((urlsplit(str(url)).hostname, "ACCOUNT"), (namespace.lower(), "NAMESPACE")):
        if host:
            name, _, domain = host.partition(".")
            words |= {host: word, **({name: word} if domain and not name.isdigit() else {})}
    # The longest first: a namespace is often the account's name and more.
    known = [re.escape(one) for one in sorted(words, key=len, reverse=True)]
    kept = re.escape(run) or "(?!)"
    pattern = rf"({kept})|(?<![a-z0-9])(?:{'|'.join([*known, _GUID])})(?![a-z0-9])"
    return re.sub(
        pattern, lambda found: found[1] or words.get(found[0].lower(), "GUID"), text, flags=re.IGNORECASE
    )
