"""The probes (tests) of `service_bus_claims.toml`, which check what Service Bus answers to senders and receivers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage

from cosmos_outbox.adapters.servicebus import ServiceBusPublisher, ServiceBusSubscription, message_from
from cosmos_outbox.errors import PublishError, SubscriptionError
from cosmos_outbox.ports import Complete
from cosmos_outbox_testing.verify.claims import Claim, NotHere, ask_all, claims_in
from cosmos_outbox_testing.verify.own_session import (
    ARRIVES_SECONDS,
    BRIEFLY,
    OwnSession,
    counts,
    lock_of,
    name_of,
    names,
    refusal,
    took,
)
from cosmos_outbox_testing.verify.results import Cost, Outcome, Tell
from cosmos_outbox_testing.verify.site import Site

AREA = "servicebus"
# These probes may receive messages of other probes. So each of them runs alone, after all others.
_ALONE = {"dead-letter-of-a-dead-letter", "lean-receiver"}
_AT_ONCE = 8
_LARGEST_BYTES = 5_000_000  # the largest message that a test sends
_CLOCK_SECONDS = 60
_MESSAGES = 100  # about how many messages all probes send together


async def run(site: Site, tell: Tell) -> list[Outcome]:
    """Test all claims about Service Bus. Several are tested at once, because some tests wait until the lock of their session ends."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask_one(asked: Claim) -> list[Outcome]:
        async with turns:
            return await ask_all([asked], site, tell)

    tell("asking Service Bus, and waiting for locks to end")
    together = await asyncio.gather(*(ask_one(one) for one in CLAIMS if one.name not in _ALONE))
    alone = await ask_all([one for one in CLAIMS if one.name in _ALONE], site, tell)
    return [outcome for some in (*together, alone) for outcome in some]


def cost(seconds: float) -> Cost:
    """Return what testing all claims about Service Bus costs, which `verify --dry-run` prints."""
    touches = f"about {_MESSAGES} messages to the topic, in sessions of the run, and dead letters of the run"
    return Cost(requests=_MESSAGES, request_units=0, seconds=120, touches=touches)


# Duplicates


async def duplicate_sends(own: OwnSession) -> str:
    await own.send("1", own.message("1 again", message_id=f"{own.id}-1"), "2")
    return names(await own.rest())


async def duplicate_in_a_batch(own: OwnSession) -> str:
    await own.send("1", [own.message("1 again", message_id=f"{own.id}-1"), own.message("2")])
    return names(await own.rest())


async def duplicate_after_a_while(own: OwnSession) -> str:
    await own.send("1")
    await asyncio.sleep(3)
    await own.send("1", "2")
    return names(await own.rest())


# Refusals


async def batch_is_whole(own: OwnSession) -> str:
    refused = await refusal(own.send([own.message_as_it_is(f"{own.id}-1"), _long_id(own)]))
    return f"{'accepted' if refused == 'accepted' else 'refused'}, and {names(await own.rest())} arrived"


async def too_large(own: OwnSession) -> str:
    async with own.sender() as sender:
        # This send opens the link, on which Service Bus says how large a message may be.
        await sender.send_messages(own.message("0"))
        most = int(getattr(sender, "_max_message_size_on_link", 0))
        if not 0 < most <= _LARGEST_BYTES:
            raise NotHere(
                f"The namespace accepts messages of {most} bytes. This run sends no message that is large enough to be refused."
            )
        condition = await refusal(sender.send_messages(own.message("1", body="x" * (most + 1))))
    await own.send("2")  # over a new link, because Service Bus detaches the link of the refused message
    return f"{condition}, then {names((await own.rest())[1:])}"


async def long_message_id(own: OwnSession) -> str:
    return await refusal(own.send(_long_id(own)))


async def large_property(own: OwnSession) -> str:
    return await refusal(own.send(own.message("1", application_properties={"p": "x" * 33_000})))


async def large_properties(own: OwnSession) -> str:
    properties: Any = {f"p{number}": "x" * 17_000 for number in range(4)}
    return await refusal(own.send(own.message("1", application_properties=properties)))


async def null_annotation(own: OwnSession) -> str:
    annotations: dict[str, object] = {"x-opt-scheduled-enqueue-time": None}
    return await refusal(own.send(own.message_as_it_is(f"{own.id}-1", annotations)))


async def unknown_topic(own: OwnSession) -> str:
    async with ServiceBusPublisher(own.bus, f"{own.id}-missing", lanes=1) as publisher:
        try:
            await publisher.check()
        except PublishError as error:
            return type(error).__name__
    return "accepted"


async def unknown_subscription(own: OwnSession) -> str:
    async with ServiceBusSubscription(own.bus, own.site.topic, f"{own.site.run}-missing") as missing:
        try:
            await missing.accept(BRIEFLY)
        except SubscriptionError as error:
            advice = "create it if it is missing"
            return advice if advice in str(error) else own.site.without_secrets(str(error))
    return "accepted"


async def sessions_required(own: OwnSession) -> str:
    async with asyncio.timeout(ARRIVES_SECONDS):
        return await refusal(_receive(own, session_id=None))


async def sessions_missing(own: OwnSession) -> str:
    async with asyncio.timeout(ARRIVES_SECONDS):
        return await refusal(_receive(own, subscription_name=own.site.plain))


async def no_session_id(own: OwnSession) -> str:
    async with own.hold("first") as (_, (first,)):
        await own.send(own.message("none", session_id=None))
        async with asyncio.timeout(ARRIVES_SECONDS):
            while not (found := await own.dead(first.sequence_number or 0)):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(BRIEFLY / 4)
    return str(found[0].dead_letter_reason or found[0].dead_letter_error_description)


# The next functions test claims about sessions and their locks.


async def locked_session(own: OwnSession) -> str:
    async with own.hold("1"):
        return await refusal(_receive(own))


async def order_after_abandon(own: OwnSession) -> str:
    await own.send("1", "2", "3")
    async with own.receiver() as receiver:
        await receiver.abandon_message((await took(receiver))[0])
    return counts(await own.rest())


async def order_after_close(own: OwnSession) -> str:
    async with own.hold("1", "2", "3"):
        pass
    return counts(await own.rest())


async def order_after_lost_lock(own: OwnSession) -> str:
    return names(await _after_lost_lock(own))


async def count_after_lost_lock(own: OwnSession) -> str:
    return counts(await _after_lost_lock(own))


async def settled_after_lost_lock(own: OwnSession) -> str:
    async with own.hold("1") as (receiver, (message,)):
        await asyncio.sleep(lock_of(receiver.session.locked_until_utc))
        # Remove the end of the lock from the SDK's session. If the SDK knew that the lock has ended, it would refuse the call itself, and
        # Service Bus would not be asked.
        setattr(receiver.session, "_locked_until_utc", None)  # noqa: B010 - private
        condition = await refusal(receiver.complete_message(message))
    return f"{condition}, then {names(await own.rest())}"


async def renewed_lock(own: OwnSession) -> str:
    async with own.hold("1") as (receiver, (message,)):
        seconds = lock_of(receiver.session.locked_until_utc)
        await asyncio.sleep(seconds * 0.55)
        await receiver.session.renew_lock()
        await asyncio.sleep(seconds * 0.55)
        settled = await refusal(receiver.complete_message(message))
    return "settled in time" if settled == "accepted" else settled


async def lock_of_a_message(own: OwnSession) -> str:
    await own.send("1")
    plain: dict[str, Any] = {"subscription_name": own.site.plain, "session_id": None}
    async with own.receiver(**plain) as receiver:
        seconds = lock_of((await own.of_plain(receiver)).locked_until_utc)
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(seconds + ARRIVES_SECONDS), own.receiver(**plain) as receiver:
        again = await own.of_plain(receiver, seconds + ARRIVES_SECONDS)
        waited = asyncio.get_running_loop().time() - started
        await receiver.complete_message(again)
    early = "locked" if waited > (seconds - 1) / 2 else f"free after {waited:.1f} s"
    return f"{early}, then counted {again.delivery_count}"


# The next functions test claims about dead letters and deferred messages.


async def dead_letter(own: OwnSession) -> str:
    async with own.hold("1") as (receiver, (message,)):
        await receiver.dead_letter_message(message, reason="reason ☃", error_description="why")
    (dead,) = await own.dead(message.sequence_number or 0)
    before = ("reason ☃", "why", message.sequence_number, message.delivery_count, own.id)
    after = (
        dead.dead_letter_reason,
        dead.dead_letter_error_description,
        dead.sequence_number,
        dead.delivery_count,
        dead.session_id,
    )
    return "kept" if before == after else " ".join(str(one) for one in after).replace(own.id, "its own")


async def dead_letter_order(own: OwnSession) -> str:
    async with own.hold("1", "2") as (receiver, (first, second)):
        for message in (second, first):
            await receiver.dead_letter_message(message, reason="order")
    dead = await own.dead(first.sequence_number or 0)
    kept = {one.enqueued_time_utc for one in dead} == {first.enqueued_time_utc, second.enqueued_time_utc}
    return f"{names(dead)}, times {'kept' if kept else 'changed'}"


async def dead_letter_time_to_live(own: OwnSession) -> str:
    await own.send(ServiceBusMessage("1", message_id=f"{own.id}-1", session_id=own.id))
    async with own.receiver() as receiver:
        (message,) = await took(receiver)
        await receiver.dead_letter_message(message, reason="time to live")
    (dead,) = await own.dead(message.sequence_number or 0)
    return f"{dead.time_to_live / timedelta(milliseconds=1):.0f} ms" if dead.time_to_live else "none"


async def dead_letter_of_a_dead_letter(own: OwnSession) -> str:
    async with own.hold("1") as (receiver, (message,)):
        await receiver.dead_letter_message(message, reason="first")
    async with own.dead_letters() as receiver:
        return await refusal(receiver.dead_letter_message(await own.of_plain(receiver), reason="second"))


async def deferred_of_a_session(own: OwnSession) -> str:
    async with own.hold("1") as (receiver, (message,)):
        own.site.deferred.add(own.id)
        await receiver.defer_message(message)
        number, session = message.sequence_number or 0, receiver.session
        setattr(receiver, "_session", None)  # noqa: B010 - private: the SDK would name it
        condition = await refusal(receiver.receive_deferred_messages(number))
        setattr(receiver, "_session", session)  # noqa: B010 - as above
        for one in await receiver.receive_deferred_messages(number):
            await receiver.complete_message(one)
    return condition


async def deferred_and_expired(own: OwnSession) -> str:
    async with own.hold(own.message("1", time_to_live=timedelta(seconds=6))) as (receiver, (message,)):
        own.site.deferred.add(own.id)
        await receiver.defer_message(message)
    await asyncio.sleep(7)
    async with own.receiver() as receiver:
        return await refusal(receiver.receive_deferred_messages(message.sequence_number or 0))


# Messages for later


async def scheduled_in_a_batch(own: OwnSession) -> str:
    due = datetime.now(UTC) + timedelta(seconds=4)
    await own.send([own.message("later", scheduled_enqueue_time_utc=due), own.message("now")])
    async with own.receiver() as receiver:
        first, second = (await took(receiver))[0], (await took(receiver))[0]
        when = second.enqueued_time_utc
        await receiver.complete_message(first)
        await receiver.complete_message(second)
    in_time = when is not None and when.replace(tzinfo=UTC) >= due - timedelta(seconds=1)
    return f"{name_of(first)}, then {name_of(second)} {'at its time' if in_time else f'at {when}'}"


async def scheduled_twice(own: OwnSession) -> str:
    due = datetime.now(UTC) + timedelta(seconds=2)
    await own.send(*(own.message("once", scheduled_enqueue_time_utc=due) for _ in range(2)), "once")
    async with own.receiver() as receiver:
        (message,) = await took(receiver)
        await receiver.complete_message(message)
    return names([message, *await own.rest()])


async def scheduled_in_the_past(own: OwnSession) -> str:
    past = datetime.now(UTC) - timedelta(hours=1)
    async with own.hold() as (receiver, _):
        await own.send(own.message("1", scheduled_enqueue_time_utc=past))
        return names(await took(receiver))


async def scheduled_and_cancelled(own: OwnSession) -> str:
    due = datetime.now(UTC) + timedelta(seconds=8)
    async with own.sender() as sender:
        await sender.cancel_scheduled_messages(await sender.schedule_messages(own.message("1"), due))
    await asyncio.sleep(9)
    async with own.hold() as (receiver, _):
        return names(await receiver.receive_messages(1, max_wait_time=BRIEFLY))


async def clock(own: OwnSession) -> str:
    async with own.hold("1") as (_, (message,)):
        enqueued = message.enqueued_time_utc.replace(tzinfo=UTC)
        ahead = (enqueued - datetime.now(UTC)).total_seconds()
    return "within a minute" if abs(ahead) < _CLOCK_SECONDS else f"{ahead:.0f} s ahead"


# The lean receiver


async def lean_receiver(own: OwnSession) -> str:
    try:
        from cosmos_outbox_amqp import AmqpSubscription  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotHere("Install the extra `amqp` to test the lean receiver.") from error
    properties: Any = {"é": "☃", "whole": 2**31 - 1, "small": -1, "flag": True, "part": 0.5, "none": None}
    bodies = ("1", "2" * 300)
    sent = (
        own.message(body[:1], body=body, application_properties=properties, subject="é") for body in bodies
    )
    await own.send(*sent)
    async with own.receiver() as receiver:
        by_sdk: list[Any] = []
        while len(by_sdk) < 2:  # noqa: PLR2004 - both
            by_sdk += [message_from(one) for one in await took(receiver, 2)]
    given_back = []
    async with AmqpSubscription(own.bus, own.site.topic, own.site.sessions) as lean:
        try:
            while (session := await lean.accept(ARRIVES_SECONDS)) and session.id != own.id:
                given_back.append(session)
            if session is None:
                return "the lean receiver did not get the session"
            for expected in by_sdk:
                found = await session.receive(ARRIVES_SECONDS)
                if found is None or found != expected:
                    return f"{found!r}, not {expected!r}".replace(own.id, "…")
                await session.settle(found, Complete())
            await session.close()
        finally:
            for other in given_back:
                await other.close()
    return "the same"


async def _receive(own: OwnSession, **options: Any) -> None:
    async with own.receiver(**options) as receiver:
        await receiver.receive_messages(1, max_wait_time=BRIEFLY)


async def _after_lost_lock(own: OwnSession) -> list[Any]:
    async with own.hold("1", "2", "3") as (receiver, _):
        await asyncio.sleep(lock_of(receiver.session.locked_until_utc))
    return await own.rest()


def _long_id(own: OwnSession) -> Any:
    return own.message_as_it_is(f"{own.id}-" + "x" * 128)


CLAIMS = claims_in(__file__, AREA, globals(), OwnSession)
NAMES = [one.name for one in CLAIMS]
