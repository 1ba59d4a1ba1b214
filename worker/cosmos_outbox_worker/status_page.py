"""
The status page: render the health of a worker or a consumer as HTML, with problems first. The page works without JavaScript.
`shared_health.py` and `causes.py` decide what a problem is.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cosmos_outbox_worker.heartbeats import Heartbeat
from cosmos_outbox_worker.readable_times import clock_time, duration_text, readable_time
from cosmos_outbox_worker.several_containers_health import Snapshots
from cosmos_outbox_worker.shared_health import State
from cosmos_outbox_worker.version import version
from cosmos_outbox_worker.where import KeyReport
from cosmos_outbox_worker.worker_health import LeaseView, Snapshot

LIVE_SCRIPT = (files(__package__) / "templates/live.js").read_text("utf-8")
_MOST_CHARACTERS = 500
# The page replaces these characters, because texts in events may contain them. Control characters (except tab and newline) can change the
# terminal of a reader who fetches the page with curl. The control characters of bidirectional text can show the next text in reverse.
_CONTROLS = (*range(9), *range(11, 32), *range(0x7F, 0xA0))
_TURNS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN_AS = dict.fromkeys((*_CONTROLS, *_TURNS), "\ufffd")


def page_of(
    snapshot: State, container: str | None = None, *, key: str | None = None, found: KeyReport | None = None
) -> str:
    """
    Return the HTML of the status page of a worker or a consumer.

    Args:
        snapshot: the health of the worker or consumer, or of the workers of several containers.
        container: the container to show, if there are several. Defaults to None: an overview of all containers.
        key: the partition key that the reader entered in the form, or "". Defaults to None: the page has no form in which to enter a key.
        found: what became of that key.
    """
    option = ""
    if isinstance(snapshot, Snapshots) and container is not None and container in snapshot.of:
        snapshot, option = snapshot.of[container], f" --container {shlex.quote(container)}"
    causes = snapshot.causes()
    mood = "bad" if any(one.unready or one.stands for one in causes) else "waits" if causes else "good"
    facts: dict[str, Any] = {"snapshot": snapshot, "mood": mood, "causes": causes, "option": option}
    facts |= {"key": None if isinstance(snapshot, Snapshots) else key, "found": found, "of": container}
    kind = "worker" if isinstance(snapshot, Snapshot | Snapshots) else "consumer"
    template = "workers" if isinstance(snapshot, Snapshots) else kind
    if isinstance(snapshot, Snapshot):
        leases = snapshot.leases()
        facts |= {"leases": leases, "workers": _workers(snapshot, leases)}
    name = f"{kind} {snapshot.instance}"
    return _TEMPLATES.get_template(f"{template}.html").render(facts, name=name, version=version())


def _workers(snapshot: Snapshot, leases: Sequence[LeaseView]) -> list[tuple[str, ...]]:
    owned: dict[str, list[LeaseView]] = defaultdict(list)
    for lease in leases:
        if lease.owner and lease.state != "damaged":
            owned[lease.owner].append(lease)
    others = {other.worker: other for other in snapshot.others or ()}
    shown = []
    for worker in sorted({snapshot.instance, *owned, *others}):
        lags = [lease.lag for lease in owned[worker]]
        waiting = "unknown" if None in lags else f"{sum(lag.transactions for lag in lags if lag):,}"
        ages = [lag.oldest_age for lag in lags if lag and lag.oldest_age is not None]
        oldest = _age(max(ages, default=None)) if all(lag and lag.age_known for lag in lags) else "unknown"
        state, seen = _state(snapshot, worker, others.get(worker), owns=bool(lags))
        troubled = ", ".join(lease.token for lease in owned[worker] if lease.trouble)
        its = version() if worker == snapshot.instance else others[worker].version if worker in others else ""
        row = worker, state, seen, f"{len(lags):,}", waiting, oldest, troubled, its
        shown.append((not troubled and state not in ("not ready", "silent"), row))
    return [row for _, row in sorted(shown)]


def _state(snapshot: Snapshot, worker: str, other: Heartbeat | None, *, owns: bool) -> tuple[str, str]:
    if worker == snapshot.instance:
        return "not ready" if snapshot.unready else str(snapshot.phase), "now: this page"
    # A worker of an old version or of another SDK writes no heartbeats. The page knows such a worker only from the leases that it owns.
    state = other.state(owns=owns) if other else ""
    return state, f"{duration_text(other.silent_for)} ago" if other else "by its leases"


def _age(age: timedelta | None) -> str:
    return "nothing waits" if age is None else duration_text(age)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


_TEMPLATES = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    finalize=lambda value: value.translate(_SHOWN_AS) if isinstance(value, str) else value,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=["jinja2.ext.do"],
)
_TEMPLATES.filters |= {"age": _age, "cut": _cut, "duration": duration_text, "moment": clock_time}
_TEMPLATES.filters["seconds"] = lambda seconds: duration_text(timedelta(seconds=seconds))
# With this Jinja test, a template recognises the error of an event that is too large. It then advises to release the key with an edited
# payload, because Service Bus would refuse the same event again.
_TEMPLATES.tests["too_large"] = re.compile("too large|exceeds the limit|message-size-exceeded").search
_TEMPLATES.filters |= {"number": "{:,}".format, "quote": shlex.quote, "stored_moment": readable_time}
