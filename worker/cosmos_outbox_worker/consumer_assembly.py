"""
Consumer assembly: build a running consumer from its settings (`consumer_settings.py`), for the command `consume` or for another program that
embeds it.
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
# The time limit of a message is twice the time of all its attempts, plus this margin for requests to Cosmos DB and a short outage.
_MARGIN = timedelta(minutes=2)

_logger = logging.getLogger("consumer")


class RunningConsumer(Program[SessionProcessor, ConsumerSnapshot]):
    """A consumer process with all its parts: it receives messages from Service Bus and calls the consumer's handlers with them."""


def running_consumer(
    consumer: ConsumerSource, settings: ConsumerSettings | None = None, *, serve_health: bool = False
) -> AbstractAsyncContextManager[RunningConsumer]:
    """
    Run a consumer inside another program for as long as the block lasts. The end of the block drains the consumer.

    No signal handlers are installed, and logging is not configured. If the consumer fails, it ends, and `snapshot()` gives the reason as
    `unready`.

    Args:
        consumer: the consumer, or a function that takes the outbox and returns a consumer.
        settings: the settings. Defaults to those of the environment.
        serve_health: whether to listen on OUTBOX_HEALTH_PORT. Defaults to False.

    Raises:
        ConfigurationError: a setting, or a resource that a setting names, cannot be used.
        OutboxError: the consumer failed inside the block. The error is raised at the end of the block.
    """
    settings = settings or load_consumer()
    return running(assemble_consumer(consumer, settings), settings, serve_health=serve_health)


@asynccontextmanager
async def assemble_consumer(
    source: ConsumerSource, settings: ConsumerSettings, *, named: str = ConsumerVitals.named
) -> AsyncIterator[RunningConsumer]:
    """
    Open the resources that the settings name, yield a consumer that is ready to run, and close the resources at the end.

    Args:
        source: the consumer, or a function that takes the outbox and returns a consumer.
        settings: the settings of the consumer.
        named: the `module:name` of the consumer, for the commands that the status page shows to operators.

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
    """Return the options of the session processor that follow from the settings and from the consumer's retry policy."""
    return SessionOptions(
        max_concurrent_sessions=settings.concurrent_sessions,
        max_handling=2 * consumer.policy.longest_handling + _MARGIN,
        grace_period=timedelta(seconds=settings.grace_seconds),
    )
