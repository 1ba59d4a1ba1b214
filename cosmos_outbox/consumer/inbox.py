"""
The inbox: one record for each message that took effect, `inbox.<consumer>.<message id>`, created in the batch of the effect.

Of any number of attempts, one creates it. Its time to live deletes it once no copy of the message can come.
"""

from __future__ import annotations

import functools
import hashlib
from datetime import datetime, timedelta

from cosmos_outbox.documents import KEPT_FOREVER
from cosmos_outbox.domain.identifiers import INBOX_TYPE, check_id
from cosmos_outbox.errors import UsageError
from cosmos_outbox.messages import REMEMBERED_FOR, Message
from cosmos_outbox.partition_key import KeyPaths, PartitionKey
from cosmos_outbox.write.batch import CommitRecord

# At least what a message can live: in the subscription, as an event before, and behind a parked key
DEFAULT_RECORD_TTL = timedelta(days=30)
_LONGEST_NAME = 200


def may_be_known(message: Message, *, created_at: datetime | None) -> bool:
    """
    Say whether a message may be in the inbox already, so that the inbox is worth a read before its handler is called.

    Without the read, what the inbox knows is refused with the batch, and its handler was called in vain. So it is asked about what was
    delivered before, and about what was sent long after its event was created: a replay, say, or a relay that lost its position.

    Args:
        message: that is to be handled.
        created_at: when its event was created; None if it does not say so.
    """
    if message.delivery_count or created_at is None or message.enqueued_at is None:
        return True
    # Of copies that are sent so soon after the event, the broker delivers one.
    return abs(message.enqueued_at - created_at) > REMEMBERED_FOR  # also where a producer's clock is wrong


def record_of(
    message: Message,
    *,
    consumer: str,
    key: PartitionKey,
    paths: KeyPaths,
    ttl: timedelta | None,
    now: datetime,
) -> CommitRecord:
    """
    Return the record that a message took effect.

    Args:
        message: that is handled.
        consumer: its name; consumers know nothing of each other.
        key: the partition key of the effect.
        paths: of the container.
        ttl: how long the record lives; None for ever.
        now: for an operator who reads it.
    """
    document = {
        "id": record_id(consumer, message.message_id),
        **paths.fields(key),
        "type": INBOX_TYPE,
        "consumer": consumer,
        "ttl": KEPT_FOREVER if ttl is None else int(ttl.total_seconds()),
        "messageId": message.message_id,
        "handledAt": now.isoformat(),
    }
    return CommitRecord(partition_key=key, document=document)


def record_id(consumer: str, message_id: str) -> str:
    """Return the id of a message's record."""
    return ".".join(["inbox", _short(consumer), _short(message_id)])


@functools.lru_cache(maxsize=1024)
def _short(name: str) -> str:
    # Two names with dots could form the same id
    try:
        check_id(name)
    except UsageError:
        usable = False
    else:
        usable = len(name.encode()) <= _LONGEST_NAME and "." not in name
    return name if usable else f"sha256-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
