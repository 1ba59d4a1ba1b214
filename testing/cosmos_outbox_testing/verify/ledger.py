"""The consumer of the main job: it notes, beside each account, which deposits took effect, in which order and when."""

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
    The bookings of one account: a line for each deposit, in order. It is one text, because Cosmos DB then keeps no index of its
    lines.
    """

    ttl = timedelta(seconds=TTL_SECONDS)
    account: str
    levels: int
    lines: str = ""

    @property
    def partition_key(self) -> PartitionKey:
        return key_of(self.account, self.levels)


# Where nothing is parked, messages of a failed run do not concern an operator.
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
