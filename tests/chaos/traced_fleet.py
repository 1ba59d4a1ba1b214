"""
Turns what the emulators recorded of a fleet into traces for the TLA+ model, one for each range of the container at the start.

A trace covers the leases of one range, and of the ranges into which it was split. `models/TraceFleet.tla` accepts a
trace that is a behaviour of `models/Relay.tla`. An actor in a trace is a worker for the time for which it owns a lease:
its tenure. The emulators do not know which pages a worker read. So the trace lets a page end with the next event that the
worker sends, or with the next position that it saves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

from cosmos_outbox.changefeed.leases import BEGINNING, START, Lease, from_document
from cosmos_outbox.changefeed.read_ahead import lsn_of
from cosmos_outbox.domain.entities import EVENT_TYPE
from demo.stack import DATA, LEASES
from tests.support.traces import Trace

WIPES = "wipe-of-leases"  # the document in which the run's operator lists the leases that it deletes
Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    id: str
    epk: str
    order: tuple[int, int]


@dataclass(slots=True, kw_only=True)
class _Tenure:
    name: str
    lease: str
    owner: str
    to: int  # how many commits of the range this owner of the lease has read
    saved: int
    sent: dict[str, int]  # for each partition key, the number of the last event that was sent


def fleet_traces(record: Path) -> list[Trace]:
    """
    Return one trace for each range that the container had at the start. The record is the file in which the emulators
    wrote what they did.
    """
    did = [json.loads(line) for line in record.read_text().splitlines()]
    ranges = {tuple(one["range"]) for one in did if one.get("container") == DATA}
    roots = {it for it in ranges if not any(other != it and _covers(other, *it) for other in ranges)}
    return [_Root(low, high, did).trace() for low, high in sorted(roots)]


def _covers(outer: Sequence[str], low: str, high: str) -> bool:
    return outer[0] <= low and high <= outer[1]


class _Root:
    """Builds the trace of one range that the container had at the start, from what the emulators recorded."""

    def __init__(self, low: str, high: str, did: Iterable[Mapping[str, Any]]) -> None:
        self._low, self._high, self._did = low, high, list(did)
        events = sorted(self._committed(), key=lambda event: (event.order[0], event.epk, event.order))
        commits = [list(them) for _, them in groupby(events, key=lambda event: (event.order[0], event.epk))]
        self._lsns = [them[0].order[0] for them in commits]
        keys = {epk: f"k{n}" for n, epk in enumerate(sorted({event.epk for event in events}), start=1)}
        numbers = {epk: count(1) for epk in keys}
        self._keys = keys
        self._places = {event.id: place for place, them in enumerate(commits, start=1) for event in them}
        self._events: dict[str, tuple[str, Line]] = {
            event.id: (event.epk, {"key": keys[event.epk], "number": next(numbers[event.epk])})
            for event in events
        }
        log = [[self._events[event.id][1] for event in them] for them in commits]
        self._lines: list[Line] = [{"actor": "all", "action": "begins", "log": log}]
        self._leases: dict[str, Lease] = {}
        self._all: dict[str, Lease] = {}  # all leases that ever existed, including deleted leases
        self._tenures: list[_Tenure] = []
        self._wiped: set[str] = set()

    def _committed(self) -> Iterable[_Event]:
        for one in self._did:
            if one.get("container") != DATA or not self._low <= one["epk"] < self._high:
                continue
            for document in filter(None, one["documents"].values()):
                if document.get("type") == EVENT_TYPE:
                    order = one["lsn"], document["meta"]["sequence"]
                    yield _Event(id=document["id"], epk=one["epk"], order=order)

    def trace(self) -> Trace:
        answered = {(one["link"], one["delivery"]) for one in self._did if one["did"] == "answered"}
        for one in self._did:
            if one.get("container") == LEASES:
                for document_id, document in one["documents"].items():
                    self._written(document_id, document)
            elif one["did"] == "stored" and one["topic"] == "events":
                self._stored(one, is_answered=(one["link"], one["delivery"]) in answered)
        lines = self._in_slots()
        table = [
            {"id": name, "keys": [self._keys[epk] for epk in self._keys if _is_in(lease, epk)]}
            for name, lease in self._all.items()
        ]
        slots = sorted({line["actor"] for line in lines[1:]} - {"service"})
        lines[0] |= {"leases": table, "tenures": slots}
        return Trace(name=f"range {self._low or '00'}", module="TraceFleet", lines=lines)

    # leases

    def _written(self, document_id: str, document: Mapping[str, Any] | None) -> None:
        if document_id == WIPES and document is not None:
            self._wiped = set(document["ids"])
        before = self._leases.get(document_id)
        if document is None:
            if before is not None:
                del self._leases[document_id]
                action = "wiped" if document_id in self._wiped else "deletes"
                self._wiped.discard(document_id)
                self._say("service", action, lease=before.token)
            return
        if ".." not in document_id:
            return
        lease = from_document(document)
        if lease.range is None or not _covers((self._low, self._high), lease.range.min, lease.range.max):
            return
        self._leases[document_id] = self._all[lease.token] = lease
        at = self._position(lease)
        if before is None:
            self._say("service", "creates", lease=lease.token, position=at)
            return
        if lease.owner and lease.owner != before.owner:
            number = len(self._tenures)
            taken = _Tenure(
                name=f"{number}", lease=lease.token, owner=lease.owner, to=at, saved=at, sent=self._done(at)
            )
            self._tenures.append(taken)
            self._say(taken.name, "takes", lease=lease.token, position=at)
        elif (owner := self._tenure(before.owner, lease.token)) and at != owner.saved:
            self._reads(owner, at)
            owner.saved = at
            self._say(owner.name, "saves", position=at)

    def _position(self, lease: Lease) -> int:
        """Return how many commits of the range a lease's position covers, which are the commits that were handled."""
        reached = lsn_of(lease.continuation)
        if reached is not None:
            return sum(lsn <= reached for lsn in self._lsns)
        start = lease.properties.get(START, BEGINNING)
        assert start == BEGINNING, f"a lease begins at {start}"
        return 0

    # messages

    def _stored(self, sent: Mapping[str, Any], *, is_answered: bool) -> None:
        ahead: dict[str, Line] = {}
        for message_id, is_first in sent["messages"]:
            if message_id not in self._events:
                continue
            epk, event = self._events[message_id]
            tenure = self._tenure_for(sent["by"], epk, event["number"])
            actor = tenure.name if tenure else sent["by"]
            if tenure:
                self._reads(tenure, self._places[message_id])
                tenure.sent[epk] = max(tenure.sent.get(epk, 0), event["number"])
            before = ahead.get(epk)
            if before and not is_answered:
                # The broker stored a later event of the key from the same transfer, so it has taken the
                # earlier event too.
                self._say(actor, "sent", **before, entered=False)
            ahead[epk] = event
            if is_answered:
                self._say(actor, "sent", **event, entered=is_first)
            elif is_first:
                self._say(actor, "enters", **event)

    def _tenure(self, owner: str | None, lease: str) -> _Tenure | None:
        found = (it for it in reversed(self._tenures) if it.owner == owner and it.lease == lease)
        return next(found, None)

    def _tenure_for(self, owner: str, epk: str, number: int) -> _Tenure | None:
        """
        Return the tenure (a worker's ownership of one lease) in which a worker sent this event: the newest that may
        send it now. A worker may own a lease and its child lease at the same time.
        """
        of_it = (it for it in reversed(self._tenures) if it.owner == owner)
        found = [it for it in of_it if _is_in(self._all[it.lease], epk)]
        fitting = (it for it in found if number <= it.sent.get(epk, 0) + 1)
        return next(fitting, found[0] if found else None)

    def _done(self, position: int) -> dict[str, int]:
        """Return, for each partition key, the number of its last event that a position of the feed covers."""
        behind = (self._events[name] for name, place in self._places.items() if place <= position)
        return {epk: event["number"] for epk, event in sorted(behind, key=lambda it: it[1]["number"])}

    def _reads(self, tenure: _Tenure, to: int) -> None:
        if to > tenure.to:
            tenure.to = to
            self._say(tenure.name, "reads", to=to)

    def _say(self, actor: str, action: str, **values: Any) -> None:
        self._lines.append({"actor": actor, "action": action, **values})

    def _in_slots(self) -> list[Line]:
        """
        Return the lines of the trace with few names of actors, because each name makes the model slower. When a worker
        no longer owns a lease, its actor stops, and the next owner of any lease gets the name.
        """
        last = {line["actor"]: place for place, line in enumerate(self._lines)}
        slots: dict[str, str] = {}
        lines: list[Line] = []
        for place, line in enumerate(self._lines):
            actor = line["actor"]
            if line["action"] == "takes":
                free = (f"t{n}" for n in count(1) if f"t{n}" not in slots.values())
                slots[actor] = next(free)
            lines.append({**line, "actor": slots.get(actor, actor)})
            if actor in slots and last[actor] == place:
                lines.append({"actor": slots.pop(actor), "action": "stops"})
        return lines


def _is_in(lease: Lease, epk: str) -> bool:
    return lease.range is not None and lease.range.min <= epk < lease.range.max
