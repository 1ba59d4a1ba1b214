"""
The master-key signature that every request carries.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from cosmos_outbox_emulators.cosmos.errors import CosmosError


def signature(key: bytes, method: str, segments: Sequence[str], date: str) -> str:
    """
    Sign a request as the service does: verb, resource type, resource link, date; an odd path ends with a type, an even with an id.
    """
    if len(segments) % 2:
        resource_type, link = segments[-1], "/".join(segments[:-1])
    else:
        resource_type, link = (segments[-2] if segments else ""), "/".join(segments)
    text = f"{method.lower()}\n{resource_type.lower()}\n{link}\n{date.lower()}\n\n"
    return base64.b64encode(hmac.digest(key, text.encode(errors="surrogateescape"), "sha256")).decode()


def check_signature(key: bytes, method: str, segments: Sequence[str], headers: Mapping[str, str]) -> None:
    """
    Raise 401 unless the request was signed with the account's key.
    """
    token = headers.get("authorization")
    date = headers.get("x-ms-date") or headers.get("date")
    if token is None or date is None:
        raise CosmosError(
            401, "Required Header authorization or x-ms-date is missing. Ensure a valid token is passed."
        )
    fields = dict(field.split("=", 1) for field in unquote(token).split("&") if "=" in field)
    if fields.get("type") != "master" or fields.get("ver") != "1.0":
        raise CosmosError(401, "The authorization token is not of type master, version 1.0.")
    expected = signature(key, method, segments, date)
    if not hmac.compare_digest(expected.encode(), fields.get("sig", "").encode(errors="surrogateescape")):
        raise CosmosError(
            401,
            "The input authorization token can't serve the request. The wrong key is being used or the expected "
            "payload is not built as per the protocol.",
        )
