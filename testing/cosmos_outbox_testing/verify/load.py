"""
The load that `verify` puts on an outbox in its main job: tasks change accounts through the outbox, and record the events of each commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from pydantic import Field

from cosmos_outbox import (
    Commit,
    CommitOutcomeUnknown,
    DomainEvent,
    Entity,
    Outbox,
    StoreUnavailable,
    TooManyRequests,
    UnitOfWork,
)
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox_testing.verify.audit import CommittedEvent
from cosmos_outbox_testing.verify.site import TTL_SECONDS, key_of

_RETRY_SECONDS = 0.2
Record = Callable[[CommittedEvent], None]


class Deposited(DomainEvent):
    """The event that an account records for each deposit. One commit has up to five such events."""

    ttl = timedelta(seconds=TTL_SECONDS)
    account: str
    amount: int
    levels: int


class Account(Entity):
    """An account that receives deposits. Its events have to be delivered in order, which the audit checks."""

    ttl = timedelta(seconds=TTL_SECONDS)
    balance: int = 0
    levels: int = 1
    papers: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def partition_key(self) -> PartitionKey:
        return key_of(self.id, self.levels)

    def deposit(self, amount: int) -> None:
        self.balance += amount
        self.record(Deposited(account=self.id, amount=amount, levels=self.levels))


async def change_accounts(
    outbox: Outbox,
    *,
    accounts: Sequence[Account],
    commits_per_second: float,
    seed: int,
    stop: asyncio.Event,
    record: Record,
) -> None:
    """
    Commit changes of all `Account` entities, each entity in a task of its own, until `stop` is set. A commit that has begun by then is
    finished and recorded.
    """
    async with asyncio.TaskGroup() as group:
        for number, account in enumerate(accounts):
            chance = random.Random(f"{seed}/{number}")
            group.create_task(
                _change(
                    outbox,
                    account,
                    chance=chance,
                    mean_pause=len(accounts) / commits_per_second,
                    stop=stop,
                    record=record,
                )
            )


async def _change(
    outbox: Outbox,
    account: Account,
    *,
    chance: random.Random,
    mean_pause: float,
    stop: asyncio.Event,
    record: Record,
) -> None:
    version = 0
    async with outbox.unit_of_work() as uow:
        repository = uow.repository(Account)
        repository.create(account)
        while not await _is_stopped_within(stop, chance.expovariate(1 / mean_pause)):
            for _ in range(chance.choice((1, 1, 1, 2, 5))):
                account.deposit(chance.randrange(1, 100))
            if version:
                repository.update(account)
            events = await _commit(uow.commit)
            version += 1
            account = await _with_etag(uow, account)
            for position, event in enumerate(events):
                record(
                    CommittedEvent(
                        event_id=event.id, contact_id=account.id, version=version, position=position
                    )
                )
        # Drop an account that was created but not committed, because the unit of work would warn about it at the end of the block.
        uow.rollback()


async def _commit(commit: Callable[[], Awaitable[Commit]]) -> tuple[DomainEvent, ...]:
    # While a partition splits, the outcome of a commit is sometimes unknown. Commit the same unit of work again: the library then finds out
    # whether the first attempt was stored.
    while True:
        try:
            return (await commit()).events
        except (CommitOutcomeUnknown, StoreUnavailable, TooManyRequests):
            await asyncio.sleep(_RETRY_SECONDS)


async def _with_etag(uow: UnitOfWork, account: Account) -> Account:
    """Return the account. If its etag is not known, because the answer to a commit was lost, read the account again first."""
    while account.etag is None:
        uow.rollback()
        try:
            account = await uow.repository(Account).read(account.id, partition_key=account.partition_key)
        except (StoreUnavailable, TooManyRequests):
            await asyncio.sleep(_RETRY_SECONDS)
    return account


async def _is_stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
