"""
Conditions: the etags under which a request is to be carried out, from its headers (RFC 9110, section 13).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Request, Response

from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.errors import NotModified, PreconditionFailed

ANY = "*"
# Each alternative begins with another character, so no header makes the search backtrack.
_ETAG = re.compile(r'(?:W/)?"[^"]*"|[^\s,"*][^\s,"]*')
_ETAGS = re.compile(rf"[\s,]*(?:{_ETAG.pattern})(?:\s*,[\s,]*(?:{_ETAG.pattern}))*[\s,]*")

# For the `responses` of a route that reads under `IfNoneMatch`.
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {
        "description": "It still has the etag of If-None-Match.",
        "headers": {"ETag": {"schema": {"type": "string"}}},
    }
}


@dataclass(frozen=True, slots=True)
class Match:
    """The etags of which an entity must have one; without any there is no condition."""

    etags: tuple[str, ...] = ()

    @classmethod
    def of(cls, lines: Sequence[str] | None) -> Match:
        """
        Read a header's lines; a weak etag stays weak, and matches nothing.

        Raises:
            HTTPException: 400, it is no list of etags.
        """
        return cls(_etags(lines))

    def check(self, entity: Entity) -> None:
        """Raise PreconditionFailed (412) if the entity has none of these etags."""
        if self.etags and not _matches(self.etags, entity):
            raise PreconditionFailed(
                expected=", ".join(self.etags), actual=entity.etag, document_id=entity.id
            )


@dataclass(frozen=True, slots=True)
class NoneMatch:
    """The etags of which an entity must have none. `reads` says whether the request only reads."""

    etags: tuple[str, ...] = ()
    reads: bool = False

    @classmethod
    def of(cls, request: Request, lines: Sequence[str] | None) -> NoneMatch:
        """
        Read a header's lines; a weak etag counts as the strong one.

        Raises:
            HTTPException: 400, it is no list of etags.
        """
        etags = tuple(etag.removeprefix("W/") for etag in _etags(lines))
        return cls(etags, reads=request.method in ("GET", "HEAD"))

    def check(self, entity: Entity) -> None:
        """For a read, raise NotModified (304) if the entity has one of these etags. For a change, raise PreconditionFailed (412)."""
        if _matches(self.etags, entity):
            if self.reads:
                raise NotModified(etag=entity.etag)
            raise PreconditionFailed(
                f"The document {entity.id!r} has the etag {entity.etag}, which the request excludes.",
                actual=entity.etag,
                document_id=entity.id,
            )


def set_etag(response: Response, entity: Entity) -> None:
    """
    Give the response the entity's etag, where it is known: after a commit whose answer was lost it may not be.
    """
    if entity.etag is not None:
        response.headers["ETag"] = entity.etag


def _matches(etags: tuple[str, ...], entity: Entity) -> bool:
    return ANY in etags or entity.etag in etags


def _etags(lines: Sequence[str] | None) -> tuple[str, ...]:
    # A client may send a header in several lines, which form one list.
    if lines is None:
        return ()
    text = ",".join(lines)
    if text.strip() == ANY:
        return (ANY,)
    if not _ETAGS.fullmatch(text):
        # treated as "no condition", it would let a change through that the caller wanted to guard
        said = "The header with etags is malformed; it must be * or a list of etags."
        raise HTTPException(HTTPStatus.BAD_REQUEST, said)
    # An unquoted etag, as some clients send it, means the quoted one.
    return tuple(tag if tag.endswith('"') else f'"{tag}"' for tag in _ETAG.findall(text))


_Lines = list[str] | None
_ONE = "Go on only if the entity has one of these etags or, with *, exists."
_NONE = "Go on only if the entity has none of these etags or, with *, does not exist. Otherwise a read gets 304, a change 412."
_Guard = Annotated[_Lines, Header(description=_ONE)]
_Known = Annotated[_Lines, Header(description=_NONE)]


async def _if_match(if_match: _Guard = None) -> Match:
    return Match.of(if_match)


async def _require_if_match(if_match: _Guard = None) -> Match:
    if if_match is None:
        said = "Send If-Match with the etag that you read, or with *."
        raise HTTPException(HTTPStatus.PRECONDITION_REQUIRED, said)
    return Match.of(if_match)


async def _if_none_match(request: Request, if_none_match: _Known = None) -> NoneMatch:
    return NoneMatch.of(request, if_none_match)


# The parameters of a route. Without the header, the required one answers 428.
IfMatch = Annotated[Match, Depends(_if_match)]
RequiredIfMatch = Annotated[Match, Depends(_require_if_match)]
IfNoneMatch = Annotated[NoneMatch, Depends(_if_none_match)]
