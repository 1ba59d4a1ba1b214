"""Checks shared access signatures: who signed a token, for which entity it is valid, and until when."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from urllib.parse import unquote_plus

_PREFIX = "SharedAccessSignature "


class InvalidToken(Exception):
    """The token is not valid. The client gets this message with status 401."""


def entity_path(address: str) -> str:
    """
    Return the path of an entity's address, without scheme and host. The scheme does not count, as clients write "amqps" even over
    plain TCP.

    A query is cut off, because the client for Go signs the complete URL of a management request.
    """
    if "://" in address:
        address = address.split("://", 1)[1].partition("/")[2]
    return address.partition("?")[0].strip("/")


def parse_resource(resource: str, host: str) -> str:
    """
    Return the path for which a token was made. The token's resource may be only the host of the namespace, without a scheme.

    Ports do not count, because the client for Java leaves the port of a custom endpoint out of the address.
    """
    path = entity_path(resource)
    first, _, rest = path.partition("/")
    same = first.partition(":")[0].lower() == host.partition(":")[0].lower()
    return rest if same and "://" not in resource else path


def covers(granted: str, path: str) -> bool:
    """Say whether a right on one path also holds for another path. The empty path stands for the whole namespace."""
    granted, path = granted.lower(), path.lower()
    return granted in ("", path) or path.startswith(granted + "/")


def key_name(token: str) -> str:
    """Return the name of the key with which a token says that it is signed."""
    fields = dict(part.partition("=")[::2] for part in token[len(_PREFIX) :].split("&"))
    return unquote_plus(fields.get("skn", ""))


def verify(token: str, audience: str, keys: Mapping[str, Iterable[str]], now: float) -> float:
    """
    Check a token, and return the time at which it expires.

    Raises:
        InvalidToken: the token is malformed, signed with another key, expired, or made for another entity.
    """
    if not token.startswith(_PREFIX):
        raise InvalidToken("MalformedToken: The token is not a shared access signature.")
    fields = dict(part.partition("=")[::2] for part in token[len(_PREFIX) :].split("&"))
    if not {"sr", "sig", "se", "skn"} <= fields.keys():
        raise InvalidToken("MalformedToken: The token lacks one of sr, sig, se and skn.")
    signed, given = f"{fields['sr']}\n{fields['se']}".encode(), unquote_plus(fields["sig"]).encode()
    valid = (
        base64.b64encode(hmac.digest(key.encode(), signed, hashlib.sha256))
        for key in keys.get(unquote_plus(fields["skn"]), ())
    )
    if not any(hmac.compare_digest(expected, given) for expected in valid):
        raise InvalidToken("InvalidSignature: The token has an invalid signature.")
    try:
        expires = float(int(fields["se"]))
    except ValueError:
        raise InvalidToken("MalformedToken: The expiry of the token is not a number of seconds.") from None
    if expires <= now:
        raise InvalidToken(
            f"ExpiredToken: The token is expired. Expiration time: '{formatdate(expires, usegmt=True)}'."
        )
    host = audience.split("://", 1)[-1].partition("/")[0]
    if not covers(parse_resource(unquote_plus(fields["sr"]), host), entity_path(audience)):
        raise InvalidToken("InvalidAudience: Invalid authorization token audience.")
    return expires
