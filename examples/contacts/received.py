"""
What the subscriber received: one JSON line a message, in the order received, the evidence of the demo's audit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """
    One delivery of a message; a second delivery of the same message is a second record.
    """

    message_id: str
    session_id: str
    subject: str
    entity_version: int | None
    sequence: int | None
    sequence_number: int  # the broker's: the order in which it accepted messages
    enqueued_at: str | None
    created_at: str | None  # from the event itself, by the clock of the API's process
    received_ns: int  # wall clock, nanoseconds since 1970


def to_line(message: ReceivedMessage) -> str:
    """
    Return the record as a line of JSON.
    """
    return json.dumps(asdict(message), separators=(",", ":")) + "\n"


class RecordReader:
    """
    A record file that is read while it grows; a line that is not complete yet is left for the next time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[ReceivedMessage]:
        """
        Return the records written since the last call; none while the file does not exist.
        """
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [ReceivedMessage(**json.loads(line)) for line in complete.splitlines()]
