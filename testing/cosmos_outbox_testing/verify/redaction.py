"""Remove secrets from the texts of a report, and the names of the account and of the namespace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cosmos_outbox.adapters.cosmos.client import connection_parts

if TYPE_CHECKING:
    from cosmos_outbox_worker.settings import Settings

_SHORT = 12  # a value in a connection string is no secret if it is not longer than this, such as `true`
_GUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def without_secrets(text: str, settings: Settings) -> str:
    """Return a text in which the values of the connection strings, such as keys and endpoints, are replaced with "…"."""
    for secret in (settings.cosmos_connection_string, settings.servicebus_connection_string):
        for part in (secret.get_secret_value() if secret else "").split(";"):
            value = part.partition("=")[2]
            text = text.replace(value, "…") if len(value) > _SHORT else text
    return text


def without_names(text: str, settings: Settings, run: str = "") -> str:
    """
    Return a text without the names of the account and of the namespace, and without GUIDs, which may identify principals and tenants.

    A name is replaced only where it is a whole word. The id of the run stays in the text, even if it contains a name.
    """
    given = settings.cosmos_connection_string
    url = connection_parts(given.get_secret_value())["accountendpoint"] if given else settings.cosmos_endpoint
    namespace = (settings.namespace or "").partition(":")[0]
    words: dict[str, str] = {}
    for host, word in ((urlsplit(str(url)).hostname, "ACCOUNT"), (namespace.lower(), "NAMESPACE")):
        if host:
            name, _, domain = host.partition(".")
            words |= {host: word, **({name: word} if domain and not name.isdigit() else {})}
    # Try the longest name first. The name of the namespace often begins with the name of the account, and has to be replaced as a whole.
    known = [re.escape(one) for one in sorted(words, key=len, reverse=True)]
    kept = re.escape(run) or "(?!)"
    pattern = rf"({kept})|(?<![a-z0-9])(?:{'|'.join([*known, _GUID])})(?![a-z0-9])"
    return re.sub(
        pattern, lambda found: found[1] or words.get(found[0].lower(), "GUID"), text, flags=re.IGNORECASE
    )
