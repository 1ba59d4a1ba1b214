"""
SDK request: one that the SDK sent, whose endpoint, path and headers the next plain REST request of its kind reuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

SESSION_TOKEN = "x-ms-session-token"  # noqa: S105 - a header's name
PARTITION_KEY = "x-ms-documentdb-partitionkey"
KNOWN_SECONDS = 300.0  # then the SDK sends one again, to the region that it uses by now


class SentRequest(Protocol):
    """
    A request as the SDK sent it.
    """

    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """
    What is kept of it.
    """

    endpoint: str
    path: str
    headers: Mapping[str, str]
    until: float  # on the loop's clock

    @property
    def documents(self) -> str:
        """
        Return the path of the container's documents: dbs/NAME/colls/NAME/docs.
        """
        return "/".join(self.path.split("/")[:5])


def kept_of(request: SentRequest, names: Iterable[str], *, now: float) -> Sent:
    """
    Return what is kept of a request: the headers of these names that it had.
    """
    url, given = urlsplit(request.url), {name.lower(): value for name, value in request.headers.items()}
    return Sent(
        endpoint=f"{url.scheme}://{url.netloc}",
        path=unquote(url.path.strip("/")),
        headers={name: given[name.lower()] for name in names if name.lower() in given},
        until=now + KNOWN_SECONDS,
    )
