# A script of an image, not a module of a package.
"""Health probe of an image without curl: print what the URL answers; exit 0 if that is success, else 1."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4  # shorter than the health check's own timeout, so that the reason can still be printed


def main(url: str) -> int:
    """Ask once. An answer from 400 on counts as unhealthy, as does no answer."""
    # A proxy that the environment names cannot reach the container's own loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as answer:
            sys.stdout.write(f"{answer.read().decode(errors='replace')}\n")
            return 0
    except urllib.error.HTTPError as refusal:
        sys.stderr.write(f"{url}: {refusal}\n{refusal.read().decode(errors='replace')}\n")
        return 1
    except (OSError, urllib.error.URLError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
