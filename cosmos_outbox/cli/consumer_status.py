"""
Consumer status: what waits for a consumer, and what it parked, as the services show it; its processes are not asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.adapters.servicebus.administration import messages_counted
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.service.connection import Connection
from cosmos_outbox.service.consumer_settings import ConsumerSettings
from cosmos_outbox.service.health import ParkedSeen, parked_seen
from cosmos_outbox.service.named_consumer import consumer_named, made
from cosmos_outbox.write.outbox import Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    """
    A consumer at one moment.

    waiting, dead_lettered: messages of its subscription or queue; None where they may not be counted.
    parked: None without a parked container.
    errors: parked keys that cannot be read.
    """

    consumer: str
    source: str
    waiting: int | None
    dead_lettered: int | None
    parked: ParkedSeen | None
    errors: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """
        Return the status as programs read it.
        """
        return {
            "consumer": self.consumer,
            "source": self.source,
            "waiting": self.waiting,
            "dead_lettered": self.dead_lettered,
            "parked_keys": self.parked and self.parked.count,
            "parked_messages": self.parked and self.parked.events,
            "errors": list(self.errors),
        }

    def picture(self) -> Group:
        """
        Return the status as people read it.
        """
        figures = {"waiting": self.waiting, "dead-lettered": self.dead_lettered}
        if self.parked is not None:
            figures |= {"parked keys": self.parked.count, "parked messages": self.parked.events}
        said = ", ".join(
            f"{name} {'unknown' if number is None else number}" for name, number in figures.items()
        )
        return Group(Text(f"{self.consumer} of {self.source}: {said}"), *map(Text, self.errors))


async def consumer_status_of(named: str, outbox: Connection, settings: ConsumerSettings) -> ConsumerStatus:
    """
    Return the status of the consumer that an option names.
    """
    consumer, parked = made(consumer_named(named), Outbox(CosmosStore(outbox.data))), None
    if outbox.parked is not None:
        scope = Scope(processor=consumer.name, container=settings.source)
        parked = parked_seen(await ParkedKeys(await outbox.parked_store(), scope=scope).list())
    source = settings.topic, settings.subscription
    waiting, dead_lettered = await messages_counted(*source, **outbox.namespace)
    return ConsumerStatus(
        consumer=consumer.name,
        source=settings.source,
        waiting=waiting,
        dead_lettered=dead_lettered,
        parked=parked,
        errors=tuple(map(str, parked.unreadable.values())) if parked else (),
    )
