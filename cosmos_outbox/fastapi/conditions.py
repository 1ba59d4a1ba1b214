"""
Conditions: the headers If-Match and If-None-Match of a request, whose etags decide whether it is carried out (RFC 9110, section 13).
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
# The alternatives begin with different characters, so the search never backtracks, and no header can make it
# slow.
_ETAG = re.compile(r'(?:W/)?"[^"]*"|[^\s,"*][^\s,"]*')
_ETAGS = re.compile(rf"[\s,]*(?:{_ETAG.pattern})(?:\s*,[\s,]*(?:{_ETAG.pattern}))*[\s,]*")

# Describes the answer 304 in OpenAPI: pass it as `responses` of a route that reads with `IfNoneMatch`.
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {
        "description": "It still has the etag of If-None-Match.",
        "headers": {"ETag": {"schema": {"type": "string"}}},
    }
}


@dataclass(frozen=True, slots=True)
class Match:
    """The etags of an If-Match header. The entity must have one of them; without etags there is no condition."""

    etags: tuple[str, ...] = ()

    @classmethod
    def of(cls, lines: Sequence[str] | None) -> Match:
        """
        Return the condition that the lines of an If-Match header state. A weak etag stays weak, so it matches no entity.

        Raises:
            HTTPException: 400, if the header is no list of etags.
        """
        return cls(_etags(lines))

    def check(self, entity: Entity) -> None:
        """Raise PreconditionFailed (412) if there are etags and the entity has none of them."""
        if self.etags and not _matches(self.etags, entity):
            raise PreconditionFailed(
                expected=", ".join(self.etags), actual=entity.etag, document_id=entity.id
            )


@dataclass(frozen=True, slots=True)
class NoneMatch:
    """The etags of an If-None-Match header. The entity must have none of them. `reads` says whether the request only reads."""

    etags: tuple[str, ...] = ()
    reads: bool = False

    @classmethod
    def of(cls, request: Request, lines: Sequence[str] | None) -> NoneMatch:
        """
        Return the condition that the lines of an If-None-Match header state. A weak etag counts like a strong one.

        Raises:
            HTTPException: 400, if the header is no list of etags.
        """
        etags = tuple(etag.removeprefix("W/") for etag in _etags(lines))
        return cls(etags, reads=request.method in ("GET", "HEAD"))

    def check(self, entity: Entity) -> None:
        """If the entity has one of these etags, raise NotModified (304) for a read, and PreconditionFailed (412) for a change."""
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
    Set the header ETag of a response to the entity's etag, unless it is unknown, as it may be after a commit whose answer was lost.
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
        # Refuse a malformed header. If it counted as "no condition", a change would be made although the caller set a condition.
        said = "The header with etags is malformed; it must be * or a list of etags."
        raise HTTPException(HTTPStatus.BAD_REQUEST, said)
    # Some clients send an etag without quotes. It means the same as with quotes.
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


# The types of a route's parameters. With RequiredIfMatch, a request without the header is answered with 428.
IfMatch = Annotated[Match, Depends(_if_match)]
RequiredIfMatch = Annotated[Match, Depends(_require_if_match)]
IfNoneMatch = Annotated[NoneMatch, Depends(_if_none_match)]
