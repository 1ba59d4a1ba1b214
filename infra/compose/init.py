# ruff: noqa: INP001 # a script of an image, not a module of a package
"""
Wait until both emulators are ready, and create the database and its containers. Docker Compose starts the other programs when this
program has ended.

The images of the emulators contain no shell and no curl, so no health check can run inside of them. This program checks them from
outside.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable

from examples.contacts.provision import provision

PAUSE_SECONDS = 1.0
REQUEST_SECONDS = 5.0


def wait_until_ready(urls: Iterable[str], *, seconds: float) -> None:
    """
    Wait until each of these URLs has answered with success.

    Raises:
        TimeoutError: a URL did not answer with success in time. The message contains its last answer.
    """
    deadline = time.monotonic() + seconds
    for url in urls:
        while (problem := _problem(url)) is not None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{url} is not ready after {seconds:g} s: {problem}")
            time.sleep(PAUSE_SECONDS)


def _problem(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=REQUEST_SECONDS):  # noqa: S310 # the compose file names the URLs
            return None
    except (OSError, urllib.error.URLError) as error:
        return str(error)


def main() -> int:
    """
    Wait for the emulators, then create the containers that the environment variables name. Return 1 if an emulator is not ready in
    time.
    """
    try:
        wait_until_ready(os.environ["WAIT_FOR"].split(), seconds=float(os.environ["WAIT_SECONDS"]))
    except TimeoutError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    asyncio.run(_provision(data="OUTBOX_COSMOS_CONTAINER", parked="OUTBOX_PARKED_CONTAINER"))
    asyncio.run(_provision(data="CONSUMER_CONTAINER", parked="CONSUMER_PARKED_CONTAINER"))
    return 0


async def _provision(*, data: str, parked: str) -> None:
    await provision(
        os.environ["OUTBOX_COSMOS_CONNECTION_STRING"],
        database=os.environ["OUTBOX_COSMOS_DATABASE"],
        data=os.environ[data],
        leases=os.environ["OUTBOX_LEASE_CONTAINER"],
        parked=os.environ[parked],
    )


if __name__ == "__main__":
    sys.exit(main())
