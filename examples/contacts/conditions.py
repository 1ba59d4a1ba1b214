"""
Conditions: the etags under which a request is to be carried out, from its headers (RFC 9110, section 13).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Header, HTTPException

from examples.contacts.service import ANY_ETAG, Conditions

# Each alternative begins in its own way, so that no header makes the search go back and forth.
_ETAG = re.compile(r'(?:W/)?"[^"]*"|[^\s,"*][^\s,"]*')
_ETAGS = re.compile(rf"[\s,]*(?:{_ETAG.pattern})(?:\s*,[\s,]*(?:{_ETAG.pattern}))*[\s,]*")

# A header may come in several lines, which are one list; so are the etags of one line.
IfMatch = Annotated[
    list[str] | None,
    Header(description="Go on only while the contact has this etag, or one of these, or exists (*)."),
]
IfNoneMatch = Annotated[
    list[str] | None,
    Header(
        description="Go on only while the contact has not this etag, nor one of these, nor exists (*). "
        "Else a read is answered with 304, a change with 412."
    ),
]
SampleEtag = Annotated[
    list[str] | None,
    Header(description="As Microsoft's sample has it: If-None-Match of a read, If-Match of a change."),
]


def _of_read(
    if_match: IfMatch = None, if_none_match: IfNoneMatch = None, etag: SampleEtag = None
) -> Conditions:
    return _conditions(if_match, if_none_match if if_none_match is not None else etag)


def _of_change(
    if_match: IfMatch = None, if_none_match: IfNoneMatch = None, etag: SampleEtag = None
) -> Conditions:
    return _conditions(if_match if if_match is not None else etag, if_none_match)


def _conditions(if_match: Sequence[str] | None, if_none_match: Sequence[str] | None) -> Conditions:
    return Conditions(
        match=_etags(if_match),  # a weak one stays weak, and matches nothing
        none_match=tuple(etag.removeprefix("W/") for etag in _etags(if_none_match)),
    )


def _etags(lines: Sequence[str] | None) -> tuple[str, ...]:
    if lines is None:
        return ()
    text = ",".join(lines)
    if text.strip() == ANY_ETAG:
        return (ANY_ETAG,)
    if not _ETAGS.fullmatch(text):
        # read as "no condition" it would let a change through that the caller wanted to guard
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, "The header with etags is malformed; it must be * or a list of etags."
        )
    # An unquoted etag, as some clients send it, means the quoted one.
    return tuple(tag if tag.endswith('"') else f'"{tag}"' for tag in _ETAG.findall(text))


ReadConditions = Annotated[Conditions, Depends(_of_read)]
ChangeConditions = Annotated[Conditions, Depends(_of_change)]
