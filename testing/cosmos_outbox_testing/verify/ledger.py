"""
The consumer that `verify` runs in its main job. For each account, it notes in a ledger which deposits took effect, in which order and
when.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

from cosmos_outbox import Entity, NotFound, UnitOfWork
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox_testing.verify.load import Deposited
from cosmos_outbox_testing.verify.site import TTL_SECONDS, key_of


class Ledger(Entity):
    """
    The deposits of one account that took effect, in order, one line each. The lines are stored as one string, because Cosmos DB would
    index each element of a list, which costs request units.
    """

    ttl = timedelta(seconds=TTL_SECONDS)
    account: str
    levels: int
    lines: str = ""

    @property
    def partition_key(self) -> PartitionKey:
        return key_of(self.account, self.levels)


# Without a parked container, dead-letter the messages that the handler fails on. The run deletes its dead letters at its end.
_ON_FAILURE = "park" if os.environ.get("OUTBOX_PARKED_CONTAINER") else "dead_letter"
consumer = Consumer("verify", on_failure=_ON_FAILURE, record_ttl=timedelta(minutes=15))


@consumer.on(Deposited)
async def book(event: Deposited, message: Message, uow: UnitOfWork) -> None:
    ledgers, name = uow.repository(Ledger), f"{event.account}-ledger"
    try:
        ledger = await ledgers.read(name, partition_key=key_of(event.account, event.levels))
    except NotFound:
        ledger = ledgers.create(Ledger(id=name, account=event.account, levels=event.levels))
    ledger.lines += f"{event.id} {event.created_at.isoformat()} {time.time_ns()}\n"
    ledgers.update(ledger)
