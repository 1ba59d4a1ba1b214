"""
The command `cosmos-outbox where`: say what became of the events or messages of one partition key. `cosmos_outbox_worker/where.py` finds
this out.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cosmos_outbox_worker.cli.leases import require_leases
from cosmos_outbox_worker.cli.output import NothingMatches, answer, table_of
from cosmos_outbox_worker.cli.parked_key_owner import OfConsumer
from cosmos_outbox_worker.cli.running import AsJson, command, connect, open_consumer
from cosmos_outbox_worker.where import find_events, find_messages


@command
async def where(
    key: Annotated[str, typer.Argument(help="The partition key, as lists and logs have it.")],
    *,
    consumer: OfConsumer = None,
    as_json: AsJson = False,
) -> None:
    """
    Say what became of a key: its last commit, the events that are sent or wait, the events that are parked and why.

    With --consumer, the command says which messages of the key the consumer handled, and which it parked. It reads only the key's
    partition, its lease and its parked documents. The exit code is 5 if nothing is stored for the key, or if OUTBOX_PROCESSOR_NAME
    names no processor that has leases.
    """
    if consumer is None:
        async with connect() as outbox:
            await require_leases(outbox)
            found = await find_events(outbox, key)
    else:
        async with open_consumer(consumer) as (outbox, settings, named):
            found = await find_messages(outbox, named.name, settings.source, key)
    if not found.known:
        raise NothingMatches(found.said[0])
    answer(found.facts, *found.said, *([table_of(found.rows)] if found.rows else []), as_json=as_json)
