"""
Consumer: the handlers of a service for messages of other services, and the rules for messages that fail. `handling.py` applies the
rules to each message.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar, overload

from opentelemetry import metrics, trace
from pydantic import BaseModel

from cosmos_outbox.consumer.handling import Handling
from cosmos_outbox.consumer.inbox import Inbox
from cosmos_outbox.consumer.policy import OnFailure, OnUnknown, Policy
from cosmos_outbox.consumer.routes import Route, Routes
from cosmos_outbox.domain.events import DomainEvent, Upcaster, check_upcasters
from cosmos_outbox.errors import ConfigurationError, UsageError, require
from cosmos_outbox.message_format import Message
from cosmos_outbox.parking import Parking
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.records import Hook, log_hook
from cosmos_outbox.retries import Backoff
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.unit_of_work import UnitOfWork

EventT = TypeVar("EventT", bound=BaseModel)
UnitT = TypeVar("UnitT", bound=UnitOfWork)
ChoiceT = TypeVar("ChoiceT", bound=StrEnum)
Handler = Callable[[EventT, Message, UnitT], Awaitable[None]]
_LONGEST_NAME = 100
_GIVEN = BaseModel, Message, UnitOfWork  # the types that an annotation of a handler may ask for
# The shortest `record_ttl` that is accepted: the broker's default window of duplicate detection (10 min) plus its longest lock (5 min).
# The command `doctor` compares `record_ttl` with what is really configured in Service Bus.
_SHORTEST_RECORD_TTL = timedelta(minutes=15)


class Consumer:
    """
    Handlers that change data once for each message, however often it is delivered.

        consumer = Consumer("invoicing", outbox)

        @consumer.on(OrderPaid)
        async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
            uow.repository(Invoice).create(Invoice(order_id=event.order_id))

    What a handler adds to the unit of work and the record that the message took effect are committed in one batch; then the
    message is completed. A handler must not commit.

    Args:
        name: the name of the consumer. It must never change: under another name every message takes effect again. Consumers with different
            names know nothing of each other, even in one container.
        outbox: writes the effects of messages. Defaults to the outbox that `bind` gives, as the worker's command does.
        partition_key: a function that returns the partition key of a message's effect. Defaults to the message's session id; in a container
            of hierarchical keys, to the key that the session id names (see `key_of_text`).
        outbox_of: a function that returns the outbox for a message's effect, if not all messages use `outbox`.
        record_ttl: how long the inbox remembers that a message took effect: at least as long as a message can live, in the subscription and
            then behind a parked key. Defaults to 30 days.
        on_failure: what becomes of a message that failed: `park` holds it and the later messages of its key until an operator decides;
            `dead_letter` moves it to the dead-letter queue and goes on without it. Defaults to `park`.
        unknown: what becomes of a message without a handler: `ignore` or `dead_letter`. Defaults to `ignore`.
        attempts: how often a handler is tried before its message has failed. Defaults to 5.
        max_deliveries: how often a message of a session may be delivered without an outcome before it has failed, for example because its
            process dies or its handler blocks the event loop. At least two less than the broker allows. Defaults to 8.
        backoff: the wait between attempts. Defaults to 0.2 s … 5 s, full jitter.
        handler_timeout: how long one attempt may take. Defaults to 30 s.
        waits_for: an error class, or a tuple of them, that shows that another service is away, such as `httpx.TransportError`. If a handler
            raises one, its message is tried later, as after `TryLater`. An error that is `permanent` for the handler fails at once all the
            same.
        longest_wait: for how long a message may ask for a later time before it has failed. Each process counts for itself. Defaults to
            12 hours.

    Raises:
        ConfigurationError: a value cannot work.
    """

    def __init__(
        self,
        name: str,
        outbox: Outbox | None = None,
        *,
        partition_key: Callable[[Message], PartitionKey] | None = None,
        outbox_of: Callable[[Message], Outbox] | None = None,
        record_ttl: timedelta = timedelta(days=30),
        on_failure: OnFailure | str = OnFailure.PARK,
        unknown: OnUnknown | str = OnUnknown.IGNORE,
        attempts: int = 5,
        max_deliveries: int = 8,
        backoff: Backoff | None = None,
        handler_timeout: timedelta = timedelta(seconds=30),
        waits_for: type[Exception] | tuple[type[Exception], ...] = (),
        longest_wait: timedelta = timedelta(hours=12),
    ) -> None:
        if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or "." in name or "/" in name:
            raise ConfigurationError(
                f"A consumer needs a name of 1 to {_LONGEST_NAME} characters without dots and slashes, not {name!r}."
            )
        for limit, number in {"attempts": attempts, "max_deliveries": max_deliveries}.items():
            if not isinstance(number, int) or number < 1:
                raise ConfigurationError(f"{limit} must be a whole number from 1, such as 5, not {number!r}.")
        lengths = {"handler_timeout": handler_timeout, "longest_wait": longest_wait, "record_ttl": record_ttl}
        for limit, length in lengths.items():
            if not isinstance(length, timedelta) or length <= timedelta(0):
                raise ConfigurationError(
                    f"{limit} must be a timedelta of more than 0, such as timedelta(seconds=30), not {length!r}."
                )
        if record_ttl < _SHORTEST_RECORD_TTL:
            raise ConfigurationError(
                f"record_ttl must be at least {_SHORTEST_RECORD_TTL}, not {record_ttl}: the broker may deliver a message "
                "again within that time, and without a record the message would take effect again."
            )
        said = f"A consumer takes an Outbox(await open_store(client, database, container)), not a {type(outbox).__name__}."
        require(outbox is None or isinstance(outbox, Outbox), said, ConfigurationError)
        said = f"backoff takes Backoff(initial_seconds=…, maximum_seconds=…), not {backoff!r:.50}."
        require(backoff is None or isinstance(backoff, Backoff), said, ConfigurationError)
        self.policy = Policy(
            record_ttl=record_ttl,
            partition_key=partition_key,
            on_failure=_one_of(OnFailure, "on_failure", on_failure),
            unknown=_one_of(OnUnknown, "unknown", unknown),
            attempts=attempts,
            max_deliveries=max_deliveries,
            handler_timeout=handler_timeout,
            backoff=backoff or Backoff(initial_seconds=0.2, maximum_seconds=5.0),
            waits_for=_errors_of("waits_for", waits_for),
            longest_wait=longest_wait,
        )
        self.name, self._outbox, self._outbox_of = name, outbox, outbox_of
        self._bound: Outbox | None = None
        self._routes = Routes()

    @property
    def subjects(self) -> frozenset[str]:
        """Return the subjects of messages for which the consumer has a handler."""
        return self._routes.subjects

    @property
    def routes(self) -> tuple[tuple[str, Route], ...]:
        """
        Return each subject for which there is a handler, with the handler's `Route`. A subject has one entry for each schema version.
        """
        return tuple(self._routes)

    @overload
    def on(
        self,
        event_type: type[EventT],
        *,
        subject: str | None = ...,
        version: int | None = ...,
        upcasters: Mapping[int, Upcaster] | None = ...,
        permanent: type[Exception] | tuple[type[Exception], ...] = ...,
    ) -> Callable[[Handler[EventT, UnitOfWork]], Handler[EventT, UnitOfWork]]: ...
    @overload
    def on(
        self,
        event_type: type[EventT],
        *,
        kind: type[UnitT],
        subject: str | None = ...,
        version: int | None = ...,
        upcasters: Mapping[int, Upcaster] | None = ...,
        permanent: type[Exception] | tuple[type[Exception], ...] = ...,
    ) -> Callable[[Handler[EventT, UnitT]], Handler[EventT, UnitT]]: ...
    def on(
        self,
        event_type: Any = None,
        *,
        subject: str | None = None,
        version: int | None = None,
        upcasters: Mapping[int, Upcaster] | None = None,
        permanent: type[Exception] | tuple[type[Exception], ...] = (),
        kind: type[UnitOfWork] = UnitOfWork,
    ) -> Any:
        """
        Register a function as the handler of a type of message: `async def handler(event, message, uow)`.

        Args:
            event_type: a DomainEvent, or any pydantic model that can read the body.
            subject: the subject of the messages, or the type of the CloudEvents. Defaults to the action of the event. For another model it
                is required.
            version: the schema version that the model takes. Defaults to the version of the event. Another model without a version takes
                messages of all versions.
            upcasters: for each earlier version, the function that turns its payload into that of the next version. Defaults to the event's.
            permanent: an error class, or a tuple of them. The message has failed at the first such error, because another attempt would
                fail again.
            kind: the subclass of UnitOfWork that the handler takes.

        Raises:
            TypeError: the function is no coroutine function of three arguments, or its annotations name other types than it is given; the
                subject is missing or has a handler already; or an upcaster would never be called.
        """
        if not (isinstance(event_type, type) and issubclass(event_type, BaseModel)):
            raise TypeError(
                f"`on` takes the class of an event, as in `@consumer.on(OrderPaid)`, and optionally `subject=`; it was given {event_type!r}."
            )
        if issubclass(event_type, DomainEvent) and event_type is not DomainEvent:
            subject, version = subject or event_type.action, version or event_type.schema_version
            upcasters = event_type.upcasters if upcasters is None else upcasters
        if subject is None:
            raise TypeError(f"{event_type.__name__} is no DomainEvent: pass the subject as `subject=`.")
        check_upcasters(event_type.__name__, upcasters or {}, leading_to=version or 1)
        errors = _errors_of("permanent", permanent)

        def register(handler: Callable[[Any, Message, Any], Awaitable[None]]) -> Any:
            _check_handler(handler, event_type, kind)
            route = Route(
                handler=handler,
                model=event_type,
                version=version,
                upcasters=upcasters or {},
                permanent=errors,
                kind=kind,
            )
            self._routes.add(subject, route)
            return handler

        return register

    def bind(self, outbox: Outbox) -> None:
        """
        Give the consumer its outbox, unless it was made with one.

        A later call replaces the outbox, because a program that is started again in the same process opens another
        outbox.
        """
        self._bound = outbox

    def handling(
        self,
        *,
        source: str,
        parking: Parking | None = None,
        notify: Hook = log_hook,
        server_address: str | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        through: Callable[[Outbox], Outbox] = lambda outbox: outbox,
    ) -> Handling:
        """
        Return the handler for a SessionProcessor.

        Args:
            source: the subscription, as `topic/subscription`, or the queue.
            parking: holds the messages of parked keys; made with `references=False`. It may be left out with `on_failure="dead_letter"`.
            notify: called with a record of everything that happens. Defaults to logging it.
            server_address: the host of the Service Bus namespace, for spans and metrics. Defaults to none.
            tracer_provider, meter_provider: receive a span of each attempt, and how long it took. Default to OpenTelemetry's global
                ones.
            through: a function that returns the outbox to use in place of the given outbox. Tests use it. Defaults to the same outbox.

        Raises:
            ConfigurationError: the consumer has no handler, or it parks messages and there is no parked store.
            UsageError: the consumer has no outbox.
        """
        if not self.subjects:
            raise ConfigurationError(f"The consumer {self.name!r} has no handler.")
        outbox, outbox_of = self._outbox or self._bound, self._outbox_of
        if outbox_of is None:
            if outbox is None:
                raise UsageError(f"The consumer {self.name!r} has no outbox: pass `outbox=` or call `bind`.")
            outbox_of = lambda message: outbox  # noqa: E731 - one line says it
        inbox = Inbox(
            self.name,
            self._routes,
            self.policy,
            outbox_of=lambda message: through(outbox_of(message)),
            source=source,
            notify=notify,
            server_address=server_address,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
        )
        return Handling(inbox, parking)


def _one_of(kind: type[ChoiceT], name: str, value: ChoiceT | str) -> ChoiceT:
    try:
        return kind(value)
    except ValueError:
        raise ConfigurationError(
            f"{name} takes {' or '.join(map(repr, map(str, kind)))}, not {value!r}."
        ) from None


def _errors_of(name: str, said: type[Exception] | tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    errors = said if isinstance(said, tuple) else (said,)
    if wrong := [one for one in errors if not (isinstance(one, type) and issubclass(one, Exception))]:
        raise ConfigurationError(f"{name} takes classes of errors, not {wrong[0]!r}.")
    return errors


def _check_handler(handler: Callable[..., object], event: type, kind: type) -> None:
    if not inspect.iscoroutinefunction(inspect.unwrap(handler)):
        raise TypeError(f"A handler must be an `async def` function, but {handler!r} is not one.")
    try:
        inspect.signature(handler).bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"A handler takes three arguments (event, message, uow), and {handler!r} does not."
        ) from None
    known = getattr(inspect.unwrap(handler), "__globals__", {})
    parameters = inspect.signature(handler).parameters.values()
    for one, given in zip(parameters, (event, Message, kind), strict=False):
        said = one.annotation
        # An annotation that is a text is checked only if the handler's module has a class of this name. A class that is defined inside a
        # function cannot be looked up.
        said = known.get(said) if isinstance(said, str) and said != given.__name__ else said
        if isinstance(said, type) and issubclass(said, _GIVEN) and not issubclass(given, said):
            raise TypeError(
                f"{handler!r} declares `{one.name}: {said.__name__}`, but receives {given.__name__} there. A handler takes (event, message, uow) in this order: the event of the class that `on` names, and the unit of work of `kind=`."
            )
