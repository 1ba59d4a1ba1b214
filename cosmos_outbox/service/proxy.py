"""
The proxy that the environment names, for connections to Service Bus over port 443: its SDK ignores the environment.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.proxies import proxy_for


def https_proxy(host: str) -> str | None:
    """
    Return the URL of the proxy on the way to a host: of HTTPS_PROXY, unless NO_PROXY names the host.

    Raises:
        ConfigurationError: it is none.
    """
    named = proxy_for("https", host)
    if named is None:
        return None
    url = named if "://" in named else f"http://{named}"
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
    except ValueError:  # its text may quote the password
        pass
    raise ConfigurationError("HTTPS_PROXY: must be a URL such as http://proxy.example:3128")
