"""Identifiers: which ids and partition keys Cosmos DB takes, and which types are taken."""

from __future__ import annotations

from cosmos_outbox.errors import UsageError
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, bytes_of

# The `type` of the library's own documents: the relay would publish an entity with the first one as an event.
EVENT_TYPE, PAYLOAD_TYPE = "domainEvent", "eventPayload"
INBOX_TYPE = "inboxRecord"
RESERVED_TYPES = frozenset({EVENT_TYPE, PAYLOAD_TYPE, INBOX_TYPE, "parkedKey", "parkedEvent"})

_FORBIDDEN = frozenset("/\\?#\t\r\n")
_RELATIVE = frozenset({".", ".."})
_MAX_ID_BYTES = 1023
_SHOWN = 100


def check_id(document_id: str, *, of: str = "a document") -> None:
    """
    Check that Cosmos DB takes an id and returns the document under it.

    Args:
        document_id: the id.
        of: what has it, for the message.

    Raises:
        UsageError: it does not.
    """
    # The service accepts most of these, but they break the URL of the document, or the SDK refuses them.
    if (
        not isinstance(document_id, str)
        or not 1 <= (bytes_of(document_id) or 0) <= _MAX_ID_BYTES
        or not _FORBIDDEN.isdisjoint(document_id)
        or document_id in _RELATIVE
        or document_id.endswith(" ")
    ):
        raise UsageError(
            f"{_shown(document_id)} cannot be the id of {of}: an id has 1 to {_MAX_ID_BYTES} bytes of valid text "
            "without / \\ ? #, tabs and line ends, does not end with a space, and is not . or .."
        )


def check_partition_key(
    partition_key: object,
    paths: KeyPaths = ON_PARTITION_KEY,
    *,
    of: str = "a document",
    by_default: bool = False,
) -> None:
    """
    Check that a container takes a partition key, and that Service Bus can name a session after it.

    Args:
        partition_key: the partition key.
        of: what has it, for the message.
        by_default: it is the id, as the caller gave no partition key.

    Raises:
        UsageError: one of them cannot.
    """
    if (problem := paths.problem(partition_key)) is not None:
        advice = " It is the id, as no `partition_key=` was given: pass one." if by_default else ""
        raise UsageError(f"{_shown(partition_key)} cannot be the partition key of {of}: {problem}.{advice}")


def _shown(value: object) -> str:
    return repr(value[:_SHOWN]) if isinstance(value, str) else repr(value)[:_SHOWN]
