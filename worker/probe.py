# This is a script that is copied into a container image. It is not a module of a package.
"""Health probe for a container image without curl: request a URL, print the answer, and exit with 0 on success, otherwise with 1."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4  # shorter than the health check's own timeout, so that the reason can still be printed


def main(url: str) -> int:
    """Request the URL once, and return the exit code. A status of 400 or more, or no answer, counts as unhealthy."""
    # Use no proxy, even if the environment names one: a proxy cannot reach the loopback address of this container.
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
