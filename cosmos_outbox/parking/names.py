"""
Names: which partition keys of a lease's range are parked, as the lease's notes have them.
"""

from __future__ import annotations

import json

from cosmos_outbox.errors import ParkingError
from cosmos_outbox.messages import broker_id
from cosmos_outbox.ports import Notes


class ParkedNames:
    """
    The names of the parked keys of a lease's range, as its notes have them; a name may be out of date, none is missing.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names = dict.fromkeys(_names_in(notes.text))  # longest unchecked first

    def __contains__(self, partition_key: str) -> bool:
        return bool(self._names) and broker_id(partition_key) in self._names

    def __len__(self) -> int:
        return len(self._names)

    @property
    def untold(self) -> bool:
        """
        Say whether no owner of the lease has left any names yet, not even that there are none.
        """
        return self._notes.text is None

    def add(self, *partition_keys: str) -> None:
        self._names |= {name: None for name in map(broker_id, partition_keys) if name not in self._names}
        self._save()

    def discard(self, partition_key: str) -> None:
        self.forget(broker_id(partition_key))

    def to_check(self, most: int) -> list[str]:
        """
        Return the names that were not checked for the longest time.
        """
        due = list(self._names)[:most]
        for name in due:  # to the end
            del self._names[name]
            self._names[name] = None
        return due

    def forget(self, name: str) -> None:
        if name in self._names:
            del self._names[name]
            self._save()

    def _save(self) -> None:
        self._notes.text = json.dumps(list(self._names), ensure_ascii=False)


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
