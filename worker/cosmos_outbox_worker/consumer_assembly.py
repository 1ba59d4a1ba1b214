"""
Consumer assembly: the composition root of a consumer; a process of its own, or part of another program, runs what it yields.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

from cosmos_outbox.consumer import Consumer, OnFailure
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.event_loop import watch_loop
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.sessions import SessionOptions, SessionProcessor
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_worker.backlog_polls import keep_polling
from cosmos_outbox_worker.consumer_health import ConsumerSnapshot, ConsumerVitals
from cosmos_outbox_worker.consumer_settings import ConsumerSettings, load_consumer
from cosmos_outbox_worker.doctor.check import finding
from cosmos_outbox_worker.measured_subscription import MeasuredSubscription
from cosmos_outbox_worker.named_consumer import ConsumerSource, resolve_consumer
from cosmos_outbox_worker.program import Program, open_parts, running
from cosmos_outbox_worker.shared_health import PARKED, summarize_parked
from cosmos_outbox_worker.where import find_messages

_BLOCKED_LOOP_SECONDS = 5.0
# Seconds beside all attempts at a message: for requests to the stores, and for a store that is away.
_MARGIN = timedelta(minutes=2)

_logger = logging.getLogger("consumer")


class RunningConsumer(Program[SessionProcessor, ConsumerSnapshot]):
    """A consumer with all its parts: it receives messages and has its handlers process them."""


def running_consumer(
    consumer: ConsumerSource, settings: ConsumerSettings | None = None, *, serve_health: bool = False
) -> AbstractAsyncContextManager[RunningConsumer]:
    """
    Run a consumer inside another program. The end of the block drains the consumer.

    Installs no signal handlers and configures no logs. A consumer that fails ends; its snapshot is then unready and says why.

    Args:
        consumer: or a function that takes the outbox and returns one.
        settings: Defaults to those of the environment.
        serve_health: listen on OUTBOX_HEALTH_PORT. Defaults to False.

    Raises:
        ConfigurationError: the settings, or what they name, cannot be used.
        OutboxError: at the end of the block, what ended the consumer before.
    """
    settings = settings or load_consumer()
    return running(assemble_consumer(consumer, settings), settings, serve_health=serve_health)


@asynccontextmanager
async def assemble_consumer(
    source: ConsumerSource, settings: ConsumerSettings, *, named: str = ConsumerVitals.named
) -> AsyncIterator[RunningConsumer]:
    """
    Open all that the settings name, yield the consumer, and close all again.

    Args:
        named: how commands name the consumer, for those that the page shows.

    Raises:
        ConfigurationError: settings contradict each other, or a container is missing or cannot be used.
    """
    async with open_parts(settings, consumer=True) as (stack, telemetry, connection, parked, found):
        tracers = telemetry.tracer_provider
        store = await retry_reads(connection.store, RetryOptions())
        consumer = resolve_consumer(source, Outbox(store, tracer_provider=tracers))
        if parked is None and consumer.policy.on_failure is OnFailure.PARK:
            unset = finding("parked-container.unset", consumer)
            raise ConfigurationError(f"{unset.message} {unset.fix}")
        health = ConsumerVitals(settings, consumer.name)
        health.named, health.found_at_start = named, found
        program = RunningConsumer(health, telemetry)
        notify = program.notify
        parking = None if parked is None else Parking(parked, references=False)
        handling = health.handling = consumer.handling(
            source=settings.source,
            parking=parking,
            notify=notify,
            server_address=settings.server_address,
            tracer_provider=tracers,
            meter_provider=telemetry.meter_provider,
        )
        subscription = await stack.enter_async_context(connection.subscription(settings, notify=notify))
        measured = MeasuredSubscription(
            subscription,
            telemetry,
            source=settings.source,
            host=settings.server_address,
            reached=health.note_reached,
        )
        program.processor = health.processor = SessionProcessor(
            measured,
            handling,
            session_options(settings, consumer),
            hooks=[notify],
        )

        async def poll_keys() -> Iterable[Exception]:
            if parked is None:
                return ()
            seen = summarize_parked(await ParkedKeys(parked, scope=handling.scope).list())
            health.note_parked(seen)
            handling.seen_parked = {key.partition_key for key in seen.keys}
            return seen.unreadable.values()

        async def poll() -> None:
            with watch_loop(notify, after_seconds=_BLOCKED_LOOP_SECONDS):
                await keep_polling(program, {PARKED: poll_keys})

        program.search = lambda key, _: find_messages(
            connection.to(settings), consumer.name, settings.source, key, health.waits_of(key)
        )
        program.poll = poll
        _logger.info("consumer.opened %s, for the messages of %s", consumer.name, settings.source)
        yield program


def session_options(settings: ConsumerSettings, consumer: Consumer) -> SessionOptions:
    """Return the options of the session processor, as the settings say."""
    return SessionOptions(
        max_concurrent_sessions=settings.concurrent_sessions,
        max_handling=2 * consumer.policy.longest_handling + _MARGIN,
        grace_period=timedelta(seconds=settings.grace_seconds),
    )
