"""
Fleet differences: compare workers to find mistakes that no single worker shows. These are settings that differ between the workers of
one processor, live workers that take leases from each other, and another processor that sends the same events.
`heartbeats.py` stores and reads what workers report.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cosmos_outbox.changefeed import CloseReason
from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox.records import LeaseMoved, LeasesContested, LeasesLost, LeftUnsent, Record, SentTwice
from cosmos_outbox_worker.heartbeats import Heartbeat
from cosmos_outbox_worker.settings import Settings, variable
from cosmos_outbox_worker.version import version

# All workers of a processor need the same values of these settings. With different lease expirations, workers take leases from each
# other. With different topics or message formats, the message of an event depends on the worker that sends it.
MUST_AGREE = (
    *("lease_expiration_seconds", "start", "parked_container", "event_ttl_seconds", "delete_after_publish"),
    *("topic", "routes", "publisher", "batch_scope", "message_format"),
)
_MOST_NAMES = 5
_CONTESTED = "Live workers take leases from each other"
# If a worker that keeps running gets the same lease back this many times, workers take leases from each other. Balancing moves a lease
# once and a rollout moves it a few times, but neither gives a lease back to a worker that kept running.
_RETURNS = 3
_LEAST_SECONDS, _EXPIRATIONS = 600.0, 10


class FleetWatch:
    """
    Compares this worker with the other workers of its processor (its fleet), each time their heartbeats are read.

    Attributes:
        alarms: the alarms that this worker raises.
        sentences: a sentence for each alarm of any worker, and for each setting in which workers differ.
        left: by the name of a processor that no worker serves, how many changes wait for it, from `Connection.find_unserved_processors`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._owner = settings, settings.instance_name
        self._seconds = max(_LEAST_SECONDS, _EXPIRATIONS * settings.lease_expiration_seconds)
        self._away = set[str]()
        self._back = defaultdict[str, deque[float]](lambda: deque(maxlen=_RETURNS))
        self.alarms: tuple[LeasesContested | LeftUnsent | SentTwice, ...] = ()
        self.sentences: tuple[str, ...] = ()
        self.left: Mapping[str, int] = {}
        self._lost, self._said = ("", -math.inf), tuple[str, ...]()

    def note_record(self, record: Record, now: float) -> None:
        """
        Note what a record of this worker says about leases: the worker lost a lease while it kept running, it got this lease back,
        or all leases were lost and created again.
        """
        if isinstance(record, LeasesLost):
            said = (
                f"All leases were lost ({record.reason}), and made again (start: {record.start}): what was committed since is sent again, and "
                "nothing is lost. Find out what deleted them."
            )
            self._lost, self.sentences = (said, now), (said, *self.sentences)
        if not isinstance(record, LeaseMoved):
            return
        if record.outcome in (CloseReason.HANDED_OVER, CloseReason.LOST):
            self._away.add(record.lease)
        elif record.lease in self._away:
            self._away.remove(record.lease)
            if record.previous_owner != self._owner:
                self._back[record.lease].append(now)

    def heartbeat_fields(self) -> Mapping[str, Any]:
        """Return the fields of this worker's heartbeat that other workers compare with their own, such as settings."""
        settings = self._settings
        host = settings.publisher or settings.namespace
        shared = {name: getattr(settings, name) for name in MUST_AGREE} | {"servicebus_namespace": host}
        return {
            "version": version(),
            "processor": settings.processor_name,
            "container": settings.container,
            "topics": tuple(f"{host}/{topic}" for topic in settings.topics.topics),
            "settings": {name: "" if value is None else str(value) for name, value in shared.items()},
            "alarms": self._said,
        }

    def compare(self, fleet: tuple[Heartbeat, ...], strangers: Iterable[Heartbeat], now: float) -> None:
        """
        Compare the workers of the processor, and set `alarms` and `sentences` to what was found.

        Args:
            fleet: the heartbeats of the workers of this processor, this worker's first.
            strangers: the heartbeats of workers of other processors, which may send the same events.
            now: the time of the event loop.
        """
        unsent = unserved_processor_alarms(fleet[0].processor, self.left)
        self.alarms = (*self._lease_contest_alarms(now), *double_send_alarms(fleet[0], strangers), *unsent)
        lost, at = self._lost
        self._said = (*[lost] * (now < at + self._seconds), *(alarm.reason for alarm in self.alarms))
        self.sentences = sentences((replace(fleet[0], alarms=self._said), *fleet[1:]))

    def _lease_contest_alarms(self, now: float) -> Iterator[LeasesContested]:
        since = now - self._seconds
        often = [token_of(lease) for lease, at in self._back.items() if len(at) == _RETURNS and at[0] > since]
        if often:
            reason = (
                f"{_CONTESTED}: {_names_text(often)} came back to {self._owner} again and again. Give all workers the "
                "same OUTBOX_LEASE_EXPIRATION_SECONDS, and see that none of them starts and ends over and over."
            )
            yield LeasesContested(owner=self._owner, reason=reason)


def double_send_alarms(own: Heartbeat, strangers: Iterable[Heartbeat]) -> Iterator[SentTwice]:
    """Yield an alarm for each other processor that sends the events of the same container to one of this worker's topics."""
    workers = defaultdict[str, list[str]](list)
    for one in strangers:
        if {*one.topics} & {*own.topics}:
            workers[one.processor].append(one.worker)
    for other, names in sorted(workers.items()):
        reason = (
            f"Processor {other!r} (workers: {_names_text(names)}) sends the same events to the same topics as {own.processor!r}, so each is "
            "sent twice: stop one of the two. If OUTBOX_PROCESSOR_NAME was changed by mistake, set the old name again."
        )
        yield SentTwice(processor=own.processor, other=other, reason=reason)


def unserved_processor_alarms(own: str, left: Mapping[str, int]) -> Iterator[LeftUnsent]:
    """
    Yield an alarm for each other processor that has waiting changes but no worker. Perhaps that processor was renamed to
    `own`. The processor `own` began with OUTBOX_START `now`, so it never sends these changes.
    """
    for other, waiting in sorted(left.items()):
        reason = (
            f"{waiting:,} changes wait for processor {other!r}, which has no worker, and {own!r} has OUTBOX_START=now: it does not send what "
            "was committed before its first leases. If OUTBOX_PROCESSOR_NAME was changed, set the old name again until all is sent. "
            "Otherwise start workers of that processor, or delete its leases."
        )
        yield LeftUnsent(processor=own, other=other, reason=reason)


def sentences(fleet: Sequence[Heartbeat]) -> tuple[str, ...]:
    """
    Return a sentence that names the settings in which live workers differ, and one sentence for each alarm. If settings differ, the
    alarm that workers take leases from each other is left out, because the difference explains it.
    """
    differ, alarms = tuple(differences(fleet)), alarms_of(fleet)
    return (*differ, *(said for said in alarms if not (differ and said.startswith(_CONTESTED))))


def alarms_of(fleet: Iterable[Heartbeat]) -> Iterable[str]:
    """Return the texts of the alarms in the heartbeats of live workers. A text that several workers report is returned once."""
    return dict.fromkeys(said for one in fleet if not one.silent for said in one.alarms)


def differences(fleet: Iterable[Heartbeat]) -> Iterator[str]:
    """
    Yield a sentence that names all settings in which live workers differ, if they differ in any. If the version of a worker does not
    know a setting, that worker is left out of the comparison of this setting.
    """
    live = [one for one in fleet if not one.silent]
    said = {
        variable(name): {one.worker: one.settings[name] or "unset" for one in live if name in one.settings}
        for name in sorted({name for one in live for name in one.settings})
    }
    return _differ(said)


def versions(fleet: Iterable[Heartbeat]) -> Iterator[str]:
    """Yield a sentence that names the versions of live workers, if they do not all have the same version."""
    return _differ({"version": {one.worker: one.version or "unknown" for one in fleet if not one.silent}})


def _differ(each: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    parts = []
    for what, said in each.items():
        values = sorted({*said.values()})
        named = [f"{value} ({_names_text(one for one in said if said[one] == value)})" for value in values]
        parts += [f"{what}: {', '.join(named)}"] * (len(values) > 1)
    if parts:
        yield f"The workers differ in {'; in '.join(parts)}."


def _names_text(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = len(shown) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + f" and {more:,} more" * (more > 0)
