"""
Conditions: the etags under which a request is to be carried out, from its headers.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Header, HTTPException

from examples.contacts.service import ANY_ETAG

# Each alternative begins in its own way, so that no header makes the search go back and forth.
_ETAG = re.compile(r'\*|(?:W/)?"[^"]*"|[^\s,"*][^\s,"]*')
_ETAGS = re.compile(rf"\s*(?:{_ETAG.pattern})(?:\s*,\s*(?:{_ETAG.pattern}))*\s*")

IfMatch = Annotated[
    str | None,
    Header(description="Change the contact only while it has this etag, or one of these, or exists (*)."),
]
IfNoneMatch = Annotated[
    str | None, Header(description="Answer 304 while the contact has this etag, or one of these.")
]
SampleEtag = Annotated[str | None, Header(description="The same, as Microsoft's sample has it.")]


def _expected_etags(if_match: IfMatch = None, etag: SampleEtag = None) -> list[str]:
    return _etags(if_match if if_match is not None else etag)  # a weak one stays weak, and matches nothing


def _known_etags(if_none_match: IfNoneMatch = None, etag: SampleEtag = None) -> list[str]:
    return [tag.removeprefix("W/") for tag in _etags(if_none_match if if_none_match is not None else etag)]


def _etags(header: str | None) -> list[str]:
    if header is None:
        return []
    if not _ETAGS.fullmatch(header):
        # read as "no condition" it would let a change through that the caller wanted to guard
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, "The header with etags is malformed; it must be * or a list of etags."
        )
    # An unquoted etag, as some clients send it, means the quoted one.
    return [tag if tag == ANY_ETAG or tag.endswith('"') else f'"{tag}"' for tag in _ETAG.findall(header)]


ExpectedEtags = Annotated[list[str], Depends(_expected_etags)]
KnownEtags = Annotated[list[str], Depends(_known_etags)]
