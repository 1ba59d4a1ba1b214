"""The explorer's pages about Service Bus: all topics, subscriptions and queues, and the messages and sessions of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from cosmos_outbox_emulators.explorer.html import (
    Markup,
    details,
    json_text,
    link,
    moment,
    note,
    page,
    section,
    table,
)
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.decoding import DecodeError, decode
from cosmos_outbox_emulators.servicebus.entry import DEFERRED, Entry
from cosmos_outbox_emulators.servicebus.primitives import Described
from cosmos_outbox_emulators.servicebus.queue import Queue

QUEUE = "/explorer/queue"
_PAGE = 50
_MOST_SHOWN = 20_000
_SESSIONS_SHOWN = 200


def entities_section(broker: Broker) -> Markup:
    """Return the section of the first page that lists all queues, and all subscriptions of all topics."""
    rows: list[tuple[Any, ...]] = []
    for topic in broker.topics.values():
        for name, subscription in topic.subscriptions.items():
            queue = subscription.queue
            entity = link(name or topic.name, QUEUE, path=queue.path)
            dead = queue.dead_letters
            rows.append(
                (
                    topic.name if name else "a queue",
                    entity,
                    queue.active,
                    len(queue.locked),
                    queue.sessions.count if queue.sessions else None,
                    link(f"{dead.active:,}", QUEUE, path=dead.path) if dead else None,
                    topic.scheduled,
                    topic.published,
                )
            )
        if not topic.subscriptions:
            rows.append((topic.name, None, None, None, None, None, topic.scheduled, topic.published))
    heads = (
        "Topic", "Subscription or queue", "Messages", "Locked", "Sessions", "Dead letters", "Scheduled", "Published",
    )  # fmt: skip
    return section("Service Bus", table(heads, rows, empty="No entities."))


def queue_page(broker: Broker, path: str, number: int) -> str:
    """Return a page that shows some messages of a queue, a subscription or its dead-letter queue. Reading it locks no message."""
    queue = broker.queue(path)
    entries = list(islice(queue.entries.values(), number * _PAGE, (number + 1) * _PAGE + 1))
    turns = [link("Previous page", QUEUE, path=path, page=number - 1)] if number else []
    if len(entries) > _PAGE:
        turns.append(link("Next page", QUEUE, path=path, page=number + 1))
    parts = [
        section(
            f"Messages ({queue.active:,})",
            table(
                (
                    "Message",
                    "Number",
                    "Session",
                    "State",
                    "Deliveries",
                    "Enqueued",
                    "Expires",
                    "Dead-lettered for",
                ),
                [_row(entry) for entry in entries[:_PAGE]],
                empty="No messages.",
            ),
            Markup(" · ".join(turns)),
        )
    ]
    if queue.sessions:
        parts.insert(0, _sessions(queue))
    if queue.dead_letters:
        parts.append(
            section(
                "Dead letters",
                link(f"{queue.dead_letters.active:,} messages", QUEUE, path=queue.dead_letters.path),
            )
        )
    return page(queue.path, *parts)


def _sessions(queue: Queue) -> Markup:
    assert queue.sessions is not None  # noqa: S101  # the caller asked
    rows = [
        (
            session.id,
            len(session.ready) + len(session.locked),
            f"until {moment(session.locked_until)}" if session.owner else "free",
            details(f"{len(session.state):,} bytes", _readable(session.state))
            if session.state is not None
            else None,
        )
        for session in islice(queue.sessions, _SESSIONS_SHOWN)
    ]
    more = queue.sessions.count - len(rows)
    rest = note(f"and {more:,} more") if more > 0 else Markup("")
    heads = ("Session", "Messages", "Locked", "State")
    return section(f"Sessions ({queue.sessions.count:,})", table(heads, rows, empty="No sessions."), rest)


def _row(entry: Entry) -> tuple[Any, ...]:
    properties = dict(_application_properties(entry))
    state = "locked" if entry.token is not None else "deferred" if entry.state == DEFERRED else "ready"
    content = {"application properties": properties, "annotations": entry.message.annotations}
    text = f"{_body(entry)}\n\n{json_text({name: _to_text(one) for name, one in content.items() if one})}"
    return (
        details(entry.message.identity, text),
        entry.sequence,
        entry.message.session_id,
        state,
        entry.delivery_count,
        moment(entry.enqueued_at),
        moment(entry.expires_at) if entry.expires_at is not None else None,
        properties.get("DeadLetterReason"),
    )


def _to_text(values: dict[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items()}


def _application_properties(entry: Entry) -> dict[Any, Any]:
    try:
        value = decode(entry.application_properties)[0] if entry.application_properties else None
    except DecodeError:
        return {}
    return value.value if isinstance(value, Described) and isinstance(value.value, dict) else {}


def _body(entry: Entry) -> str:
    return "\n".join(_sections(entry.message.body))


def _sections(body: bytes) -> Iterator[str]:
    position = 0
    while position < len(body):
        try:
            section_, position = decode(body, position)
        except DecodeError:
            yield "(a body that cannot be read)"
            return
        value = section_.value if isinstance(section_, Described) else section_
        yield _readable(value) if isinstance(value, bytes) else str(value)[:_MOST_SHOWN]


def _readable(data: bytes) -> str:
    text = data[:_MOST_SHOWN].decode(errors="replace")
    return text + ("…" if len(data) > _MOST_SHOWN else "")
