"""Read the subscriber's record while it grows: the evidence of the audit."""

from __future__ import annotations

import json
from pathlib import Path

from examples.contacts.received import ReceivedMessage


class RecordReader:
    """A record file that is read while it grows. A line that is not complete yet is read the next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[ReceivedMessage]:
        """Return the records written since the last call; none while the file does not exist."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [ReceivedMessage(**json.loads(line)) for line in complete.splitlines()]
