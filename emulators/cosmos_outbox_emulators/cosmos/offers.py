"""Offers: the provisioned throughput of a container, or of a database for all its containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject

DEFAULT_THROUGHPUT = 400
PER_NEW_PARTITION = 6_000
_PER_PARTITION = 10_000
_MOST = 1_000_000
_LEAST_MANUAL, _LEAST_AUTOSCALE = 400, 1000


def requested_content(headers: Mapping[str, str]) -> JsonObject | None:
    """
    Return the content of the offer that a request to create a database or container asks for; None if it asks for no throughput.
    """
    manual, autoscale = (
        headers.get(f"x-ms-{name}") for name in ("offer-throughput", "cosmos-offer-autopilot-settings")
    )
    if manual is not None and autoscale is not None:
        raise bad_request("A request may have manual or autoscale throughput, not both.")
    if autoscale is not None:
        return _autoscale(jsontext.decode_object(autoscale.encode()))
    return None if manual is None else _manual(manual)


def manual(throughput: Any) -> JsonObject:
    return _manual(str(throughput))


def replace(old: JsonObject, content: Any) -> JsonObject:
    """Return the new content of an offer. Manual throughput stays manual, and autoscale stays autoscale."""
    if not isinstance(content, dict):
        raise bad_request("The offer has no 'content'.")
    if "offerAutopilotSettings" in old:
        return _autoscale(content.get("offerAutopilotSettings"))
    if "offerAutopilotSettings" in content:
        raise bad_request(
            "Manual throughput becomes autoscale only by a migration, which this emulator does not support."
        )
    return manual(content.get("offerThroughput"))


def partitions_of_new(content: JsonObject) -> int:
    """Return the number of partitions of a new container with this throughput: one for each 6,000 RU/s, rounded up."""
    return -(-_most(content) // PER_NEW_PARTITION)


def partitions_for(content: JsonObject) -> int:
    """Return how many partitions this throughput needs, as each partition has at most 10,000 RU/s."""
    return -(-_most(content) // _PER_PARTITION)


def _most(content: JsonObject) -> int:
    settings = content.get("offerAutopilotSettings")
    most: int = settings["maxThroughput"] if settings else content["offerThroughput"]
    return most


def describe(content: JsonObject, *, rid: str, owner: JsonObject, stamp: JsonObject) -> JsonObject:
    """Return an offer as the resource that clients read, with the database or container that owns it."""
    return {
        "resource": owner["_self"],
        "offerType": "Invalid",
        "offerVersion": "V2",
        "offerResourceId": owner["_rid"],
        "content": content,
        "id": rid,
        "_rid": rid,
        "_self": f"offers/{rid}/",
        **stamp,
    }


def least(content: JsonObject) -> int:
    return _LEAST_AUTOSCALE if "offerAutopilotSettings" in content else _LEAST_MANUAL


def _manual(text: str) -> JsonObject:
    throughput = (
        int(text) if text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 19 else None
    )
    if throughput is None:
        raise bad_request(f"The throughput {text[:50]} is not a whole number.")
    _check(throughput, _LEAST_MANUAL)
    return {"offerThroughput": throughput, "offerIsRUPerMinuteThroughputEnabled": False}


def _autoscale(settings: Any) -> JsonObject:
    most = settings.get("maxThroughput") if isinstance(settings, dict) else None
    if not isinstance(most, int) or isinstance(most, bool):
        raise bad_request("Autoscale throughput needs a whole number as 'maxThroughput'.")
    _check(most, _LEAST_AUTOSCALE)
    return {"offerThroughput": max(_LEAST_MANUAL, most // 10), "offerAutopilotSettings": settings}


def _check(throughput: int, least: int) -> None:
    if throughput < least:
        raise bad_request(
            f"Requested throughput {throughput} is less than required minimum throughput {least}."
        )
    if throughput > _MOST or throughput % 100:
        raise bad_request(
            f"The offer should have valid throughput values between {least} and {_MOST} inclusive in increments of 100."
        )
