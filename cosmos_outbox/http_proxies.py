"""
HTTP proxies: what the environment names, as aiohttp and the SDKs read it (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).
"""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass


def any_proxy() -> bool:
    """
    Say whether the environment names a proxy for any host. If it names none, aiohttp need not look, in threads, at each request.
    """
    return bool(getproxies().keys() - {"no"})


def proxy_for(scheme: str, host: str) -> str | None:
    """Return the proxy that the environment names for a host, as it is written there."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
