"""
Consumer health: find out from the records that a consumer reports whether it makes progress, which keys wait, and why.
`shared_health.py` decides whether the process is ready, from the causes (`causes.py`) that are found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from cosmos_outbox import records
from cosmos_outbox.errors import error_line
from cosmos_outbox.sessions import SessionStatus
from cosmos_outbox_worker.causes import Cause, cause_of
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from cosmos_outbox_worker.shared_health import State, Vitals

_MOST_SHOWN = 10  # how many stalled keys the answer to /readyz lists
_MOST_WAITS = 1000
# If a message is this much overdue, another process may have received it. So this process stops reporting it.
_LATE_SECONDS = 30.0
_REMEMBERED_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledKey:
    """
    A key whose message waits because of an error that the message did not cause. All later messages of the key wait, too.

    why: why it waits, such as "outage" or "later" (the handler raised `TryLater`).
    waited_seconds: the time since this process first delayed the message.
    """

    why: str
    key: str
    message_id: str
    waited_seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSnapshot(State):
    """
    The health of a consumer at one moment, for probes, the status page and metrics.

    source: the subscription, as `topic/subscription`, or the queue.
    named: the `module:name` by which commands name the consumer, if it is known.
    stalled: the keys that have waited for longer than OUTBOX_STALLED_SECONDS, those that waited longest first.
    waiting_seconds: how long the oldest delayed message has waited; 0 if no message is delayed.
    """

    consumer: str
    source: str
    sessions: tuple[SessionStatus, ...]
    handled: int
    handled_per_second: float
    stalled: tuple[StalledKey, ...]
    waiting_seconds: float
    # Why the SDK took over from this library's lean receiver. None if it did not take over.
    fallback: str | None
    named: str = "MODULE:NAME"

    def readiness(self) -> dict[str, Any]:
        sessions = [asdict(session) for session in self.sessions]
        stalled = [asdict(key) for key in self.stalled[:_MOST_SHOWN]]
        return State.readiness(self) | {"sessions": sessions, "stalled": stalled, "fallback": self.fallback}


@dataclass(slots=True)
class _Wait:
    """
    A message that this process delayed, for instance during an outage.

    If another process gets the message's session, that process reports the message from then on. So this process stops reporting a
    message that is not delivered to it again in time, and forgets the message later.
    """

    why: str
    key: str
    since: float
    due: float  # when the message is delivered again
    error: BaseException

    def is_old(self, now: float) -> bool:
        return now - self.due > _REMEMBERED_SECONDS

    def is_due(self, now: float) -> bool:
        return now - self.due <= _LATE_SECONDS


class ConsumerVitals(Vitals[ConsumerSnapshot]):
    """Collects the health of a consumer. As a hook of the consumer, it is called with each record that the consumer reports."""

    name = "consumer"
    handling: Any  # the object that calls the consumer's handlers; `assemble_consumer` sets it
    named = "MODULE:NAME"

    def __init__(self, settings: ConsumerSettings, consumer: str, **clock: Any) -> None:
        super().__init__(settings, **clock)
        self._consumer, self._source = consumer, settings.source
        self._reached = False
        self._fallback: str | None = None
        self._waits: dict[str, _Wait] = {}  # by message

    def _hear(self, record: records.Record, now: float) -> None:
        if isinstance(record, records.MessageHandled) and record.outcome == "handled":
            self._count(1)
        elif isinstance(record, records.ReceivingFailed):
            self.fails("receiving", cause_of(error_line(record.error)))
        elif isinstance(record, records.ConsumingDelayed):
            if record.outcome == "outage":
                self.fails("store", cause_of(error_line(record.error)))
            self._wait(record, now)
        elif isinstance(record, records.MessageSettled) and record.outcome != "retry":
            self._waits.pop(record.message_id, None)
        elif isinstance(record, records.ConsumerHalted):
            halted = Cause(kind="handlers-fail", said=error_line(record.error), stands=True, unready=True)
            self.fails("handlers", halted)
        elif isinstance(record, records.SdkFallback) and record.part == "receiver":
            self._fallback = record.reason

    def _wait(self, record: records.ConsumingDelayed, now: float) -> None:
        known = self._waits.pop(record.message_id, None)
        since = now if known is None or known.is_old(now) else known.since
        if len(self._waits) == _MOST_WAITS:
            self._waits = {name: one for name, one in self._waits.items() if not one.is_old(now)}
        if len(self._waits) < _MOST_WAITS:
            due = now + record.delay_seconds
            self._waits[record.message_id] = _Wait(record.outcome, record.key, since, due, record.error)

    def note_reached(self) -> None:
        """Note that the broker answered, so that the consumer no longer counts as starting."""
        self._reached = True

    def snapshot(self) -> ConsumerSnapshot:
        now = self._loop.time()
        stalled = self._stalled_keys(now)
        waiting = [now - one.since for one in self._waits.values() if one.is_due(now)]
        sessions = tuple(sorted(self.processor.status(), key=lambda one: -(one.handling_seconds or 0)))
        self.works("store", so=not self.handling.delayed)
        self.works("receiving", so=self.processor.receiving)
        self.works("handlers", so=not self.handling.halted)
        return ConsumerSnapshot(
            **self._state(self._reasons(sessions, stalled), starting=not self._reached),
            consumer=self._consumer,
            source=self._source,
            sessions=sessions,
            handled=self._done,
            handled_per_second=self._per_second(),
            stalled=stalled,
            waiting_seconds=max(waiting, default=0),
            fallback=self._fallback,
            named=self.named,
        )

    def _reasons(self, sessions: Iterable[SessionStatus], stalled: tuple[StalledKey, ...]) -> Iterator[Cause]:
        """Yield the causes that keep messages from being handled: an unreachable broker or store, stalled keys and slow handlers."""
        least, source = self._stalled_seconds, self._source
        if not self._reached:
            hint = "" if "/" in source else " If it is a topic, set OUTBOX_SUBSCRIPTION."
            starting = Cause(kind="starting", said=f"The consumer has not reached {source} yet.{hint}")
            failed, *_ = self._failing.get("receiving", (starting,))
            yield replace(failed, unready=True)
        yield from (*self.lasting("receiving"), *self.lasting("store"))
        yield from map(self._of_key, stalled)
        for one in sessions:
            if one.handling_seconds is not None and one.handling_seconds > least:
                session = f"session {one.session!r}" if one.session else ""
                yield self._cause_that_stops(Cause(kind="handler-slow"), one.handling_seconds, session)
        if self._fallback is not None:
            yield Cause(kind="sdk-receives", said=self._fallback)

    def _of_key(self, key: StalledKey) -> Cause:
        kind = {"circuit": "circuit-open", "later": "asked-later"}.get(key.why)
        cause = Cause(kind=kind, said=key.error) if kind else cause_of(key.error)
        return self._cause_that_stops(cause, key.waited_seconds, f"key {key.key!r}")

    def _cause_that_stops(self, cause: Cause, seconds: float, what: str) -> Cause:
        since, stands = self._utcnow() - timedelta(seconds=seconds), not cause.words["waits"]
        return replace(cause, since=since, stops=((self._consumer, what),), stands=stands, unready=stands)

    def waits_of(self, key: str) -> list[str]:
        """
        Return a sentence for each message of a key that this process delayed because of an error that the message did not cause.
        """
        now = self._loop.time()
        waits = [(name, one) for name, one in self._waits.items() if one.key == key and one.is_due(now)]
        return [
            f"Message {of!r} waits for {now - one.since:.0f} s: {error_line(one.error)}" for of, one in waits
        ]

    def _stalled_keys(self, now: float) -> tuple[StalledKey, ...]:
        stalled = [
            StalledKey(
                waited_seconds=now - one.since,
                error=error_line(one.error),
                why=one.why,
                key=one.key,
                message_id=name,
            )
            for name, one in self._waits.items()
            if now - one.since > self._stalled_seconds and one.is_due(now)
        ]
        return tuple(sorted(stalled, key=lambda one: -one.waited_seconds))
