"""
Emulators that record what they do: `python -m tests.chaos.recorded_emulators RECORD`, followed by the emulators' own arguments.

Each line of the record is something that an emulator did, in order: it committed a transaction, stored a transfer of
messages, or answered that transfer. The record also shows which worker sent a message, because each worker signs its
connections with a key of its own name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cosmos_outbox_emulators.__main__ import main
from cosmos_outbox_emulators.cosmos.transaction import Transaction
from cosmos_outbox_emulators.servicebus import config, injection
from cosmos_outbox_emulators.servicebus.channel import LinkEnd
from cosmos_outbox_emulators.servicebus.connection import Connection
from cosmos_outbox_emulators.servicebus.inbound import Inbound
from cosmos_outbox_emulators.servicebus.message import parse_transfer
from cosmos_outbox_emulators.servicebus.performatives import ACCEPTED
from cosmos_outbox_emulators.servicebus.publish_link import PublishLink

# Names of signing keys: one for each worker and one for each process that replaces it.
_SIGNERS = [
    f"worker-{place}{again}" for place in range(1, 6) for again in ("", *(f".{n}" for n in range(2, 40)))
]


def record(file: Path) -> None:
    """Make the emulators of this process append what they do to a file."""
    lines = file.open("a", buffering=1, encoding="utf-8")

    def note(did: str, **values: Any) -> None:
        lines.write(f"{json.dumps({'did': did, **values})}\n")

    _record_transactions(note)
    _record_sends(note)
    value = next(iter(config.DEFAULT_KEYS.values()))
    config.DEFAULT_KEYS.update(dict.fromkeys(_SIGNERS, value))


def _record_transactions(note: Any) -> None:
    commit = Transaction.commit

    def recorded(self: Transaction) -> None:
        staged, partition = dict(self._staged), self.partition
        commit(self)
        documents = {
            key[1]: None if item is None else {**item.body, "data": None} for key, item in staged.items()
        }
        if documents:
            container = self._container.path.rpartition("/")[2]
            note(
                "transaction",
                container=container,
                lsn=partition.lsn,
                range=[partition.low, partition.high],
                epk=self._key.epk,
                documents=documents,
            )

    Transaction.commit = recorded  # type: ignore[method-assign]


def _record_sends(note: Any) -> None:
    rights_of, authorise = config.BrokerConfig.rights_of, Connection.authorise
    store, acknowledge = PublishLink._store, injection.acknowledge
    asked: list[str] = [""]
    signers: dict[Any, str] = {}

    def remember(self: config.BrokerConfig, key: str) -> frozenset[str]:
        asked[0] = key  # `authorised` reads this key: it is called next, for the same connection
        return rights_of(self, key)

    def authorised(self: Connection, path: str, expires: float, rights: frozenset[str]) -> None:
        signers[self] = asked[0]
        authorise(self, path, expires, rights)

    def stored(self: PublishLink, inbound: Inbound) -> bytes:
        topic = self._topic
        messages = parse_transfer(inbound.payload, inbound.message_format)
        first = [message.identity not in topic._seen for message in messages]
        outcome = store(self, inbound)
        if outcome is ACCEPTED:
            sent = [[str(message.message_id), it] for message, it in zip(messages, first, strict=True)]
            signer = signers[self.end.channel.wire]
            note(
                "stored",
                topic=topic.name,
                by=signer,
                link=self.end.name,
                delivery=inbound.delivery_id,
                messages=sent,
            )
        return outcome

    def acknowledged(
        end: LinkEnd, delivery_id: int, outcome: bytes, delay: float, *, to_sender: bool
    ) -> None:
        acknowledge(end, delivery_id, outcome, delay, to_sender=to_sender)
        if to_sender and outcome is ACCEPTED:
            note("answered", link=end.name, delivery=delivery_id)

    config.BrokerConfig.rights_of = remember  # type: ignore[method-assign]
    Connection.authorise = authorised  # type: ignore[method-assign]
    PublishLink._store = stored  # type: ignore[method-assign]
    injection.acknowledge = acknowledged


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
