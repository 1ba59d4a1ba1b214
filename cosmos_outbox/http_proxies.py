"""
HTTP proxies: what the environment names, as aiohttp and the SDKs read it (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).
"""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass


def any_proxy() -> bool:
    """
    Say whether the environment names a proxy for whatever host. Without one aiohttp need not look at each request, in threads.
    """
    return bool(getproxies().keys() - {"no"})


def proxy_for(scheme: str, host: str) -> str | None:
    """Return the proxy on the way to a host, as the environment writes it."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
