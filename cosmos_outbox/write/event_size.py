"""
How large the message of an event may be, and the claim check: a payload that is larger is stored as a document of its own, in the
same batch, and the message carries its address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cosmos_outbox.documents import Document, event_with_claim, payload_document
from cosmos_outbox.errors import EventTooLarge, UsageError
from cosmos_outbox.event_messages import content_bytes

MAX_STANDARD_MESSAGE_BYTES = 256 * 1024  # Service Bus, Standard tier: with all properties
_OVERHEAD_BYTES = 2 * 1024  # ids, annotations, AMQP's frames, and what CloudEvents adds


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSizes:
    """
    What becomes of large events.

    max_message_bytes   the largest message that the topics take; default: 256 KB, as Service Bus Standard does.
    claim_check         True: a payload that would be larger is stored beside the event. False: the commit is refused.
    """

    max_message_bytes: int = MAX_STANDARD_MESSAGE_BYTES
    claim_check: bool = False

    def __post_init__(self) -> None:
        if self.max_message_bytes < 2 * _OVERHEAD_BYTES:
            raise UsageError(
                f"max_message_bytes is {self.max_message_bytes}; a message needs {2 * _OVERHEAD_BYTES} at least."
            )

    def fitted(self, document: Document, *, size_bytes: int, partition_key: Any) -> list[Document]:
        """
        Return what to store of an event: its document and, if its payload goes into one of its own, that one.

        Args:
            document: of the event.
            size_bytes: of its JSON, which is never less than that of its message without the overhead.
            partition_key: of the event.

        Raises:
            EventTooLarge: its message would be too large, and there is no claim check.
        """
        limit = self.max_message_bytes - _OVERHEAD_BYTES
        if size_bytes <= limit or (size := content_bytes(document["data"], document["meta"])) <= limit:
            return [document]
        if not self.claim_check:
            raise EventTooLarge(
                f"The message of {document['data']['action']} {document['id']!r} of partition key {partition_key!r} would "
                f"have {size + _OVERHEAD_BYTES} bytes; this outbox sends {self.max_message_bytes}, and Service Bus Standard "
                f"takes {MAX_STANDARD_MESSAGE_BYTES}. Have the payload stored beside the event (claim_check=True), put a "
                "reference into the event or, on Premium, raise max_message_bytes.",
                document_id=document["id"],
                partition_key=partition_key,
            )
        return [event_with_claim(document, partition_key=partition_key), payload_document(document)]
