"""HTTP proxies: which proxy the environment names for a host, as aiohttp and the SDKs read it (HTTPS_PROXY, HTTP_PROXY, NO_PROXY)."""

from __future__ import annotations

from urllib.request import getproxies, proxy_bypass


def any_proxy() -> bool:
    """
    Say whether the environment names a proxy at all. If not, aiohttp need not look for one in a thread at each request.
    """
    return bool(getproxies().keys() - {"no"})


def proxy_for(scheme: str, host: str) -> str | None:
    """Return the URL of the proxy that the environment names for a host, unchanged; None if it names none."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
