"""
EventSizes: store the payload of a large event in a document of its own, or refuse the event. Correlation ids that are
too long for a message are refused too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cosmos_outbox.domain.entities import PAYLOAD_TYPE
from cosmos_outbox.domain.events import MAX_TTL
from cosmos_outbox.errors import EventTooLarge, UsageError
from cosmos_outbox.message_format import content_bytes
from cosmos_outbox.ports import MAX_EVENT_BYTES
from cosmos_outbox.stored_documents import CLAIM, Document

MAX_STANDARD_MESSAGE_BYTES = 256 * 1024  # the largest message of the Standard tier, with all properties
_PAYLOAD_OUTLIVES_SECONDS = 30 * 86_400
# How many bytes of a message are left for ids, annotations, AMQP's frames, and the attributes of CloudEvents
MESSAGE_OVERHEAD_BYTES = 2 * 1024
# How many bytes all correlation ids and trace headers may have. A message may have properties of 32 KB each
# and 64 KB in all, including those that the relay adds.
_LONGEST_CORRELATION = 24 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSizes:
    """
    The rules for large events. The payload of a large event may be stored as a document of its own, in the same batch. The
    message then carries the address of that document (claim check).

    max_message_bytes   the largest message that the topics take; default: 256 KB, the limit of Service Bus Standard.
    claim_check         True: a larger payload is stored as a document of its own. False: the commit is refused.
    """

    max_message_bytes: int = MAX_STANDARD_MESSAGE_BYTES
    claim_check: bool = False

    def __post_init__(self) -> None:
        if self.max_message_bytes < 2 * MESSAGE_OVERHEAD_BYTES:
            raise UsageError(
                f"max_message_bytes is {self.max_message_bytes}, and must be at least {2 * MESSAGE_OVERHEAD_BYTES}."
            )

    def fit(self, document: Document, *, size_bytes: int, partition_key: Any) -> list[Document]:
        """
        Return the documents that store an event: the event's own document and, for a large payload, a second one with
        the payload.

        Args:
            document: the document of the event.
            size_bytes: the bytes of that document's JSON. Apart from a fixed overhead, the event's message is not larger.
            partition_key: the partition key of the event.

        Raises:
            EventTooLarge: the event could not be parked; or its message would be too large, and `claim_check` is off.
        """
        limit = self.max_message_bytes - MESSAGE_OVERHEAD_BYTES
        if size_bytes <= limit or (size := content_bytes(document["data"], document["meta"])) <= limit:
            if size_bytes <= MAX_EVENT_BYTES:
                return [document]
            raise EventTooLarge(
                f"{document['data']['action']} {document['id']!r} of partition key {partition_key!r} takes {size_bytes} bytes; an event "
                f"of more than {MAX_EVENT_BYTES} cannot be parked if the topic refuses it. Store the data elsewhere, and a reference in "
                "the event.",
                document_id=document["id"],
                partition_key=partition_key,
            )
        if not self.claim_check:
            raise EventTooLarge(
                f"The message of {document['data']['action']} {document['id']!r} of partition key {partition_key!r} would "
                f"have {size + MESSAGE_OVERHEAD_BYTES} bytes; this outbox sends {self.max_message_bytes}, and Service Bus Standard "
                f"takes {MAX_STANDARD_MESSAGE_BYTES}. Have the payload stored beside the event (claim_check=True), put a "
                "reference into the event or, on Premium, raise max_message_bytes.",
                document_id=document["id"],
                partition_key=partition_key,
            )
        return [_with_claim(document, partition_key=partition_key), _payload_document(document)]


def check_correlation(correlation: Mapping[str, str]) -> None:
    """
    Check the size of the correlation that a commit stores with every event.

    Raises:
        EventTooLarge: the correlation is too large for the properties of a message.
    """
    sizes = {name: len(value.encode()) for name, value in correlation.items()}
    if sum(sizes.values()) > _LONGEST_CORRELATION:
        raise EventTooLarge(
            f"{' and '.join(sizes)} have {sum(sizes.values())} bytes in all; a message carries at most {_LONGEST_CORRELATION}. Pass on "
            "shorter ones."
        )


def _with_claim(document: Document, *, partition_key: Any) -> Document:
    """
    Return the document of an event whose payload is stored in a second document. Instead of the payload it contains the
    address of the second document (claim check).
    """
    claim = {
        "id": _payload_id(document),
        "partitionKey": [*partition_key] if isinstance(partition_key, tuple) else partition_key,
    }
    kept = {name: document["data"][name] for name in ("id", "action", "createdAt")}
    return {**document, "data": {**kept, CLAIM: claim}, "meta": {**document["meta"], CLAIM: claim["id"]}}


def _payload_document(document: Document) -> Document:
    """
    Return the document of an event's payload. It lives 30 days longer than the event's document, because a copy of the
    event may be parked for that long, and still needs the payload.
    """
    content = {name: value for name, value in document.items() if name != "meta"}
    ttl = min(document["ttl"] + _PAYLOAD_OUTLIVES_SECONDS, int(MAX_TTL.total_seconds()))
    return {**content, "id": _payload_id(document), "type": PAYLOAD_TYPE, "ttl": ttl}


def _payload_id(document: Document) -> str:
    return f"payload-{document['id']}"
