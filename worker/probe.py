# This script is copied into the container image, which runs it as its health check. It belongs to no Python package.
"""Health probe for a container image without curl: request a URL, print the answer, and exit with 0 on success, otherwise with 1."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

# Shorter than the time limit of the image's health check, so that this script can still print the reason.
TIMEOUT_SECONDS = 4


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
