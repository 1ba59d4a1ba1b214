"""
The load of the demo: create and change many contacts at once over HTTP. The changes of one contact are sent one after another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from cosmos_outbox_testing.verify.audit import CommittedEvent

FIRST_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Grace", "Hedy", "Katherine", "Ken", "Margaret", "Radia")
LAST_NAMES = (
    "Dijkstra",
    "Hamilton",
    "Hopper",
    "Johnson",
    "Lamarr",
    "Liskov",
    "Lovelace",
    "Perlman",
    "Turing",
)
CITIES = ("Amsterdam", "Berlin", "Copenhagen", "Dublin", "Lisbon", "Vienna")
MAX_ATTEMPTS = 8
REFUSED_FOR_NOW = {429, 503}


class LoadFailed(Exception):
    """The API answered a request of the load with an error, or could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One request to the API. `path` is relative to the URL of the contact, and empty for the request that creates it."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many contacts and changes to send, and how many at once. The same seed gives the same requests."""

    contacts: int
    changes: int  # the changes of each contact; the first change creates the contact
    concurrency: int = 16
    seed: int = 0


OnCommit = Callable[[Sequence[CommittedEvent]], None]


def changes_of(contact: int, load: Load) -> Iterator[Change]:
    """Return the requests that create and change a contact, in order. Each request changes a value, so each raises an event."""
    chance = random.Random(f"{load.seed}/{contact}")
    email = f"contact{contact}@example.com"
    yield Change(
        path="",
        body={
            "name": _name(chance, contact),
            "description": "created by the demo",
            "email": email,
            "company": _company(chance, contact),
        },
    )
    for number in range(2, load.changes + 1):
        match chance.choice(("name", "description", "email", "company")):
            case "name":
                yield Change(path="/name", body={"name": _name(chance, number)})
            case "description":
                yield Change(path="/description", body={"description": f"change {number}"})
            case "email":
                yield Change(path="/email", body={"email": f"v{number}.{email}"})
            case _:
                yield Change(path="/company", body={"company": _company(chance, number)})


def _name(chance: random.Random, number: int) -> dict[str, str]:
    return {"firstName": chance.choice(FIRST_NAMES), "lastName": f"{chance.choice(LAST_NAMES)} {number}"}


def _company(chance: random.Random, number: int) -> dict[str, str]:
    return {
        "companyName": f"Company {number}",
        "street": "Main Street",
        "houseNumber": str(number),
        "postalCode": f"{chance.randrange(10_000, 99_999)}",
        "city": chance.choice(CITIES),
        "country": "Europe",
    }


async def drive(url: str, load: Load, on_commit: OnCommit) -> None:
    """
    Send all requests of the load. Call `on_commit` with the events that each successful response names, as soon as it arrives.

    Raises:
        LoadFailed: the API answered a request with an error, or could not be reached.
    """
    waiting = iter(range(load.contacts))
    try:
        async with (
            aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=30)) as session,
            asyncio.TaskGroup() as lanes,
        ):
            for _ in range(load.concurrency):
                lanes.create_task(_drive_lane(session, load, waiting, on_commit))
    except* (aiohttp.ClientError, TimeoutError) as errors:
        raise LoadFailed(f"The API cannot be reached: {errors.exceptions[0]!r}") from errors
    except* LoadFailed as errors:
        raise LoadFailed(str(errors.exceptions[0])) from errors


async def _drive_lane(
    session: aiohttp.ClientSession, load: Load, waiting: Iterator[int], on_commit: OnCommit
) -> None:
    # All of these tasks share the iterator `waiting`, so each task takes the next contact when it is free.
    for contact in waiting:
        url, etag = "/api/contacts", None
        for change in changes_of(contact, load):
            url, etag = await _send(session, url, change, etag, on_commit)


async def _send(
    session: aiohttp.ClientSession, url: str, change: Change, etag: str | None, on_commit: OnCommit
) -> tuple[str, str]:
    for attempt in range(MAX_ATTEMPTS):
        async with session.request(
            "PUT" if change.path else "POST",
            url + change.path,
            json=change.body,
            headers={"If-Match": etag} if etag else {},
        ) as response:
            if response.status in REFUSED_FOR_NOW:
                await asyncio.sleep(float(response.headers.get("Retry-After", 2**attempt / 10)))
                continue
            if not response.ok:
                raise LoadFailed(
                    f"{response.method} {response.url}: {response.status} {await response.text()}"
                )
            contact_url = url if change.path else response.headers["Location"]
            contact_id = contact_url.rpartition("/")[2]
            version = int(response.headers["X-Contact-Version"])
            on_commit(
                [
                    CommittedEvent(
                        event_id=event_id, contact_id=contact_id, version=version, position=position
                    )
                    for position, event_id in enumerate(
                        filter(None, response.headers["X-Event-Ids"].split(","))
                    )
                ]
            )
            return contact_url, response.headers["ETag"]
    raise LoadFailed(f"The API was busy and refused a request to {url}{change.path} {MAX_ATTEMPTS} times.")
