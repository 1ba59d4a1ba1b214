"""Redaction: what a report must not hold: what signs in, and the names of the account and of the namespace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cosmos_outbox.adapters.cosmos.client import connection_parts

if TYPE_CHECKING:
    from cosmos_outbox_worker.settings import Settings

_SHORT = 12  # a part of a connection string that is too short for a secret, such as `true`


def without_secrets(text: str, settings: Settings) -> str:
    """Return a text without any part of a connection string."""
    for secret in (settings.cosmos_connection_string, settings.servicebus_connection_string):
        for part in (secret.get_secret_value() if secret else "").split(";"):
            value = part.partition("=")[2]
            text = text.replace(value, "…") if len(value) > _SHORT else text
    return text


def without_names(text: str, settings: Settings) -> str:
    """Return a text without the host names of the account and of the namespace."""
    given = settings.cosmos_connection_string
    url = connection_parts(given.get_secret_value())["accountendpoint"] if given else settings.cosmos_endpoint
    namespace = (settings.namespace or "").partition(":")[0]
    for host, word in ((urlsplit(str(url)).hostname, "ACCOUNT"), (namespace, "NAMESPACE")):
        if host:
            # The name also appears in the hosts of regions, ACCOUNT-westeurope.documents.azure.com, and alone, as in `account
            # 'ACCOUNT'`.
            name, _, domain = host.partition(".")
            text = re.sub(re.escape(host), word, text, flags=re.IGNORECASE)
            if domain.endswith((".azure.com", ".windows.net", ".azure.us", ".azure.cn", ".chinacloudapi.cn")):
                beside = rf"(?<![\w-]){re.escape(name)}(?=-\w+\.|\.{re.escape(domain)}|['\"])"
                text = re.sub(beside, word, text, flags=re.IGNORECASE)
    return text
