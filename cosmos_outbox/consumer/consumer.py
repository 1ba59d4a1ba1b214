"""
Consumer: the handlers of a service for the messages of other services, and its rules for those that fail.
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
# The broker's default window for duplicates, and the longest lock; `doctor` reads both
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
        name: of the consumer, for good: under another name every message takes effect again. Consumers of one container with
            different names know nothing of each other.
        outbox: of the container of the effects. Defaults to the one that `bind` gives, as the worker's command does.
        partition_key: of the effect of a message. Defaults to the message's session; in a container of hierarchical keys, to the key whose
            text that is (see `key_of_text`).
        outbox_of: where the effect of a message is written, if not always to `outbox`.
        record_ttl: how long it remembers that a message took effect: at least what a message can live, in the subscription and behind a
            parked key. Defaults to 30 days.
        on_failure: `park` holds a message that failed and what follows in its key until an operator decides; `dead_letter` goes on
            without it. Defaults to `park`.
        unknown: `ignore` or `dead_letter` messages without a handler. Defaults to `ignore`.
        attempts: how often a handler is tried before it failed. Defaults to 5.
        max_deliveries: how often a message of a session is delivered without an outcome, as where its process dies or its handler
            blocks the event loop, before it failed. Two less than the broker allows, or fewer. Defaults to 8.
        backoff: between attempts. Defaults to 0.2 s … 5 s, full jitter.
        handler_timeout: how long one attempt may take. Defaults to 30 s.
        waits_for: an error, or a tuple of them, that shows that another service is away, such as `httpx.TransportError`: where a handler
            raises one, its message is tried later, as where it raises `TryLater`. What is `permanent` for a handler fails all the same.
        longest_wait: for how long a message may be tried later before it has failed; each process counts for itself. Defaults to 12 hours.

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
        """Return the subjects for which there is a handler."""
        return self._routes.subjects

    @property
    def routes(self) -> tuple[tuple[str, Route], ...]:
        """Return the subjects for which there is a handler, each with the type that its handler takes."""
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
            event_type: a DomainEvent, or any pydantic model that takes the body.
            subject: of the messages, or the type of the CloudEvents. Defaults to the action of the event; another model needs one.
            version: the schema version that the model takes. Defaults to the event's; without one, another model takes all.
            upcasters: by an earlier version, the function that makes a payload of the next one. Defaults to the event's.
            permanent: an error, or a tuple of them, that another attempt would raise again; the message has failed at the first.
            kind: the subclass of UnitOfWork that the handler takes.

        Raises:
            TypeError: the function is no coroutine function of three arguments, or is annotated with others than it is given; the subject
                has a handler or no name; or an upcaster leads nowhere.
        """
        if not (isinstance(event_type, type) and issubclass(event_type, BaseModel)):
            raise TypeError(
                f"`on` takes the class of an event, as in `@consumer.on(OrderPaid)`, and optionally `subject=`; it was given {event_type!r}."
            )
        if issubclass(event_type, DomainEvent) and event_type is not DomainEvent:
            subject, version = subject or event_type.action, version or event_type.schema_version
            upcasters = event_type.upcasters if upcasters is None else upcasters
        if subject is None:
            raise TypeError(f"{event_type.__name__} is no DomainEvent: pass `subject=` too.")
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

        A later call replaces the outbox: a program that is started again in its process opens another one.
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
            parking: of the consumer's messages, made with `references=False`; may be left out with `on_failure="dead_letter"`.
            notify: hears what happens. Defaults to logging it.
            server_address: host of the namespace, for spans and metrics. Defaults to none.
            tracer_provider, meter_provider: receive a span of each attempt, and how long it took. Default to OpenTelemetry's global
                ones.
            through: makes the outbox of an effect from that of the consumer, as a test does. Defaults to the same one.

        Raises:
            ConfigurationError: there is no parked store, and the consumer parks; or there is no handler.
            UsageError: it has no outbox.
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
        raise TypeError(f"A handler must be an `async def`, and {handler!r} is none.")
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
        # An annotation that names no class of the module is not checked: its class may be inside a function.
        said = known.get(said) if isinstance(said, str) and said != given.__name__ else said
        if isinstance(said, type) and issubclass(said, _GIVEN) and not issubclass(given, said):
            raise TypeError(
                f"{handler!r} declares `{one.name}: {said.__name__}`, but receives {given.__name__} there. A handler takes (event, message, uow) in this order: the event of the class that `on` names, and the unit of work of `kind=`."
            )
