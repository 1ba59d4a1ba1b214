"""Read the file in which the subscriber records each received message. The audit uses these records."""

from __future__ import annotations

import json
from pathlib import Path

from examples.contacts.received import ReceivedMessage


class RecordReader:
    """Reads the subscriber's file while the subscriber writes to it. A line that is not complete yet is read by a later call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[ReceivedMessage]:
        """Return the records that were written since the last call. While the file does not exist, return an empty list."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [ReceivedMessage(**json.loads(line)) for line in complete.splitlines()]
