"""OwnSubscription: a view of the subscription that the user of `verify` named. Each contract test sees only its own sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from cosmos_outbox.adapters.servicebus.encoding import sdk_message
from cosmos_outbox.errors import SubscriptionError
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Session, Settlement, Subscription
from cosmos_outbox_testing.contracts import Opened, SubscriptionBackend
from cosmos_outbox_testing.contracts.subscription import LOCK_SECONDS, Letters, a_message
from cosmos_outbox_testing.verify.claims import NotRun
from cosmos_outbox_testing.verify.own_session import OwnSession, lock_of
from cosmos_outbox_testing.verify.site import Site

_LONGEST_LOCK_SECONDS = 20.0  # if locks last longer, the tests that wait until a lock ends are skipped
_BRIEFLY = 0.3
_DELIVERIES = 10  # how many deliveries a subscription allows by default


class _OwnReceived:
    """A session as its test sees it. On Service Bus, the ids begin with the test's name. Here this prefix is removed from them."""

    def __init__(self, session: Session, entity: OwnSubscription) -> None:
        self._session, self._entity = session, entity
        self.id = str(session.id).removeprefix(entity.name)
        self.renew, self.close = session.renew, session.close

    @property
    def trusted_until(self) -> float:
        return self._session.trusted_until

    async def receive(self, max_wait: float) -> Message | None:
        if (message := await self._session.receive(max_wait)) is None:
            return None
        own = message.message_id.removeprefix(self._entity.name)
        return replace(message, message_id=own, session_id=self.id)

    async def settle(self, message: Message, settlement: Settlement) -> None:
        await self._session.settle(message, settlement)
        self._entity.count -= isinstance(settlement, Complete | DeadLetter)
        if isinstance(settlement, Defer):
            self._entity.site.deferred.add(str(self._session.id))


class OwnSubscription(SubscriptionBackend):
    """The subscription with sessions as one contract test sees it. The test sees only the sessions whose ids begin with its name."""

    def __init__(self, own: OwnSession, received: Subscription, lock_seconds: float) -> None:
        self._own, self._received, self._lock_seconds = own, received, lock_seconds
        self.name, self.count = f"{own.id}-", 0
        self.site = own.site
        self._accepted: list[Session] = []
        self.subscription: Any = self  # contract tests call `accept` on this attribute of the backend

    async def accept(self, max_wait: float) -> Session | None:
        if (session := await self._received.accept(max_wait)) is None:
            return None
        if not str(session.id).startswith(self.name):
            await session.close()
            raise NotRun(
                "Other programs' messages wait in the subscription. Name a subscription that only this run uses."
            )
        self._accepted.append(session)
        return _OwnReceived(session, self)

    async def empty(self) -> None:
        """
        Complete the messages that earlier tests of this run left in the subscription.

        Messages of another program stay there. A later call of `accept` gets their session, and raises an error.
        """
        ours = True
        while ours and (session := await self._received.accept(_BRIEFLY)) is not None:
            ours = str(session.id).startswith(self._own.site.run)
            try:
                while ours and (message := await session.receive(_BRIEFLY)):
                    await session.settle(message, Complete())
            finally:
                await session.close()

    async def send(self, *names: str) -> None:
        for name in names:
            sent = a_message(name)
            sent = replace(sent, message_id=self.name + name, session_id=self.name + sent.session_id)
            await self._own.send(sdk_message(sent))
            self.count += 1

    async def passes(self, seconds: float) -> None:
        if self._lock_seconds > _LONGEST_LOCK_SECONDS:
            pytest.skip(
                f"A lock lasts longer than {_LONGEST_LOCK_SECONDS:.0f} s, or this suite does not wait for locks."
            )
        await asyncio.sleep(seconds / LOCK_SECONDS * self._lock_seconds)

    async def waited_for(self) -> None:
        # Service Bus does not say whether a call of `accept` waits for a session, so assume after a second that it does.
        await asyncio.sleep(1)

    def go_away(self) -> None:
        pytest.skip("A test cannot make Service Bus unavailable.")

    def come_back(self) -> None:
        """Do nothing: `go_away` has skipped the test, because a test cannot make Service Bus unavailable."""

    async def dead_letters(self) -> Letters:
        return [
            (
                str(one.message_id).removeprefix(self.name),
                one.dead_letter_reason or "",
                one.dead_letter_error_description or "",
            )
            for one in await self._own.dead(1)
        ]

    def stored(self) -> int:
        """
        Return how many messages of the test were sent and neither completed nor dead-lettered. They are counted here, because Service Bus
        has no count for a session. The messages that the test receives later show whether the count is right.
        """
        return self.count

    async def end(self) -> None:
        """
        Close the sessions that a failed test still holds, so that later tests can accept sessions. The test's deferred messages are
        deleted at the end of the run.
        """
        for accepted in self._accepted:
            with suppress(SubscriptionError):
                await accepted.close()


def opener_for(
    site: Site, receiving: Callable[..., AbstractAsyncContextManager[Subscription]], *, waits: bool
) -> Opened:
    """
    Return the fixture `opened` of the subscription contract: a function that opens the caller's subscription for a test.

    Args:
        site: names the subscription.
        receiving: opens the subscription with the receiver under test, which is that of the SDK or the lean receiver.
        waits: whether to run the tests that wait until a lock ends. If False, these tests are skipped.
    """

    @asynccontextmanager
    async def opened(
        *, sessions: bool = True, max_deliveries: int = _DELIVERIES, prefetch: int | None = None
    ) -> AsyncIterator[OwnSubscription]:
        if not sessions or max_deliveries != _DELIVERIES:
            pytest.skip("This test needs a subscription with other settings.")
        own = OwnSession(site)
        async with own.receiver() as receiver:
            lock_seconds = lock_of(receiver.session.locked_until_utc) if waits else inf
        options = {} if prefetch is None else {"prefetch": prefetch}
        async with receiving(own.bus, site.topic, site.sessions, **options) as received:
            entity = OwnSubscription(own, received, lock_seconds)
            await entity.empty()
            try:
                yield entity
            finally:
                await entity.end()

    return opened
