"""Checks the signature that every request carries, which is made with one of the account's keys."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request

_MISMATCH = (
    "The input authorization token can't serve the request. The wrong key is being used or the expected payload is not built as "
    "per the protocol."
)


def signature(key: bytes, method: str, segments: Sequence[str], date: str, *, by_rid: bool = False) -> str:
    """
    Sign a request as Azure's SDKs do, and return the signature. The verb, resource type, resource link and date are signed.

    A path with an odd number of segments ends with a resource type, a path with an even number ends with an id. If a path consists
    of resource ids (`by_rid`), its link is the last id alone, in lower case.
    """
    if tuple(segments[4:]) == ("operations", "partitionkeydelete"):
        segments = segments[:4]
    resource_type = segments[-1] if len(segments) % 2 else segments[-2] if segments else ""
    owner = segments[: len(segments) // 2 * 2]
    link = owner[-1].lower() if by_rid and owner else "/".join(owner)
    text = f"{method.lower()}\n{resource_type.lower()}\n{link}\n{date.lower()}\n\n"
    return base64.b64encode(hmac.digest(key, text.encode(errors="surrogateescape"), "sha256")).decode()


def check_signature(
    keys: Iterable[str], method: str, segments: Sequence[str], headers: Mapping[str, str]
) -> None:
    """Refuse a request with 401 unless it was signed with one of the account's keys."""
    token = headers.get("authorization")
    date = headers.get("x-ms-date") or headers.get("date")
    fields = dict(field.split("=", 1) for field in unquote(token or "").split("&") if "=" in field)
    if fields.get("type") == "aad":
        _check_bearer(keys, fields.get("sig", ""))
        return
    if token is None or date is None:
        raise CosmosError(
            401, "Required Header authorization or x-ms-date is missing. Ensure a valid token is passed."
        )
    if fields.get("type") != "master" or fields.get("ver") != "1.0":
        raise CosmosError(401, "The authorization token must be of type master and version 1.0.")
    given = fields.get("sig", "").encode(errors="surrogateescape")
    valid = (
        signature(base64.b64decode(key), method, segments, date, by_rid=by_rid).encode()
        for by_rid in (False, True)
        for key in keys
    )
    if not any(hmac.compare_digest(expected, given) for expected in valid):
        raise CosmosError(401, _MISMATCH)


def _check_bearer(keys: Iterable[str], token: str) -> None:
    """Accept the Entra ID token that the SDKs' own tests make for Microsoft's emulator. Its signature is the account's key."""
    signed = token.rpartition(".")[2].rstrip("=")
    if signed not in [base64.urlsafe_b64encode(key.encode()).decode().rstrip("=") for key in keys]:
        raise CosmosError(401, "The signature of an Entra ID token must be the account's key in base64url.")


def check_item_id(segments: Sequence[str]) -> None:
    """
    Refuse a request with an item id that Azure's gateway was seen to refuse. The option --strict-ids turns this check on. Azure's
    gateway decodes percent escapes once too often, trims a trailing space, and does not accept tabs or line ends.
    """
    item_id = segments[5] if tuple(segments[4:5]) == ("docs",) and len(segments) > 5 else ""
    if set(item_id) & set("\t\r\n"):
        raise bad_request("The id of the item has a tab or a line end.")
    if item_id != unquote(item_id) or item_id.endswith(" "):
        raise CosmosError(
            401,
            f"{_MISMATCH} The id of the item ends with a space, or has an escape such as %20 (--strict-ids).",
        )
