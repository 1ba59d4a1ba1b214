"""Converts JSON text to values and back. It refuses values that could not be stored or sent again."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from cosmos_outbox_emulators.cosmos.errors import bad_request

JsonObject = dict[str, Any]

_MOST_LEVELS = 128


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value).encode()
    # Encoding raises ValueError for infinity, a lone surrogate or a number of 4,300 digits, and RecursionError if the value is
    # nested too deep.
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The value cannot be written as JSON: {error}.") from error


def decode(raw: bytes | str) -> Any:
    if raw[:1] == b"\x80":
        raise bad_request(
            "The body is binary JSON, which this emulator does not read: switch binary encoding off."
        )
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(
            "The request payload is invalid JSON. Ensure to provide a valid request payload."
        ) from error
    if "\\ud" in text or "\\uD" in text:
        # Python's JSON decoder accepts a lone surrogate, which has no UTF-8 form. So the value is encoded here once. Otherwise it
        # would be stored, and each reply with it would fail.
        encode(value)
    return value


def check_depth(value: JsonObject, encoded: bytes) -> None:
    """Refuse an item that has more levels of nesting than the service stores."""
    # Counting brackets is fast, so the slow walk through the item is only made if the item has enough brackets to be too deep.
    if encoded.count(b"{") + encoded.count(b"[") > _MOST_LEVELS and not _fits(value, _MOST_LEVELS):
        raise bad_request("The request payload is invalid. Ensure to provide a valid request payload.")


def _fits(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_fits(one, levels - 1) for one in inside)


def decode_object(raw: bytes | str) -> JsonObject:
    value = decode(raw)
    if not isinstance(value, dict):
        raise bad_request("The request payload must be a JSON object.")
    return value
