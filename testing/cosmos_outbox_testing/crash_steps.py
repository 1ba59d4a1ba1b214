"""
Crash steps: the calls of a scenario's ports at which a process may die, and how they are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosmos_outbox.domain.entities import INBOX_TYPE
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking.parked_documents import NO_ETAG
from cosmos_outbox.ports import Write
from cosmos_outbox.sessions.held_session import OUTCOMES
from cosmos_outbox.stored_documents import claims_to_be_an_event
from cosmos_outbox_testing.port_calls import Call

_OPERATIONS = {
    ("store", "read"): "read",
    ("store", "query"): "query",
    ("store", "list"): "query",
    ("store", "commit"): "commit",
    ("publisher", "publish"): "send",
    ("leases", "replace"): "checkpoint",
    ("parked", "commit"): "park",
    ("subscription", "settle"): "settle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call that was made: its number among calls of its kind, its caller, and its subject."""

    name: str
    process: str
    about: str


def operation_of(call: Call, tokens: dict[str, object]) -> str | None:
    """
    Name a call. Return None for polls and calls about locks: a crash there equals a crash after the call before.

    Args:
        call: of a port.
        tokens: by the id of a lease, how far it came; updated.
    """
    operation = _OPERATIONS.get((call.port, call.method))
    if operation == "commit" and any(map(is_inbox, arguments_of(call)[1])):
        return "inbox-commit"
    if operation == "settle":
        return OUTCOMES[type(arguments_of(call)[1])]
    if operation == "checkpoint":
        document = arguments_of(call)[0]
        token = document.get("ContinuationToken")
        before = tokens.setdefault(document["id"], token)  # the first write acquires the lease
        tokens[document["id"]] = token
        return None if token == before else operation
    if operation == "park" and all(write.etag == NO_ETAG for write in arguments_of(call)[1]):
        return None  # this only asks whether the key is parked
    return operation


def is_inbox(write: Write) -> bool:
    """Say whether a write is the record that a message took effect."""
    return write.document is not None and write.document.get("type") == INBOX_TYPE


def arguments_of(call: Call) -> tuple[Any, ...]:
    """Return the arguments of a call, in the order of the port's protocol."""
    return (*call.arguments, *call.named.values())


def about_of(call: Call) -> str:
    """Return the subject of a call, in a few words."""
    first, *others = arguments_of(call)
    match call.port, call.method:
        case "store" | "parked", "commit":
            return ", ".join(map(_write_text, others[0]))
        case "publisher", _:
            messages: Sequence[OutboundMessage] = others[0]
            return ", ".join(f"{message.subject} of {message.session_id}" for message in messages)
        case "subscription", _:
            return f"{first.subject} of {first.session_id}"
        case "leases", _:
            return f"range {first['id'].rpartition('..')[2]}"
    return str(first) if isinstance(first, str) else ""


def _write_text(write: Write) -> str:
    document = write.document
    if document is None:
        return f"{write.kind.lower()} {write.id}"
    if claims_to_be_an_event(document):
        return f"event {document['data'].get('action')}"
    return f"{document.get('type') or 'document'} {write.id}"
