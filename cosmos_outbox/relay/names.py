"""
Names: which partition keys of a lease's range are parked, as the lease's notes have them.
"""

from __future__ import annotations

import json

from cosmos_outbox.errors import ParkingError
from cosmos_outbox.ports import Notes
from cosmos_outbox.relay.message import broker_id


class ParkedNames:
    """
    The names of the parked keys of a lease's range, as its notes have them; a name may be out of date, none is missing.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names = _names_in(notes.text)  # longest unchecked first

    def __contains__(self, partition_key: str) -> bool:
        return broker_id(partition_key) in self._names

    def __len__(self) -> int:
        return len(self._names)

    @property
    def untold(self) -> bool:
        """
        Say whether no owner of the lease has left any names yet, not even that there are none.
        """
        return self._notes.text is None

    def add(self, *partition_keys: str) -> None:
        names = map(broker_id, partition_keys)
        self._names += [name for name in dict.fromkeys(names) if name not in self._names]
        self._save()

    def discard(self, partition_key: str) -> None:
        if (name := broker_id(partition_key)) in self._names:
            self._names.remove(name)
            self._save()

    def to_check(self, most: int) -> list[str]:
        """
        Return the names that were not checked for the longest time.
        """
        due = self._names[:most]
        self._names = [*self._names[most:], *due]
        return due

    def forget(self, name: str) -> None:
        if name in self._names:
            self._names.remove(name)
            self._save()

    def _save(self) -> None:
        self._notes.text = json.dumps(self._names, ensure_ascii=False)


def _names_in(text: str | None) -> list[str]:
    try:
        names = json.loads(text) if text else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ParkingError(
            f"The notes of the lease are no list of parked keys: {str(text)[:100]!r}. Put the property `notes` of its "
            "document right, with no worker running."
        )
    return names
