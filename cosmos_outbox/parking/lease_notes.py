"""Lease notes: which partition keys of a lease's range are parked, as the lease's notes list them."""

from __future__ import annotations

import asyncio
import json

from cosmos_outbox.errors import ParkingError, ParkingFull
from cosmos_outbox.parking.park import Parking
from cosmos_outbox.parking.parked_documents import Scope
from cosmos_outbox.partition_key import broker_id
from cosmos_outbox.ports import Notes

POLL_TIMEOUT_SECONDS = 1.0  # the longest time by which a silent store may delay a page
# the time between two polls for keys that an operator parked by hand, and for names of keys that were handed back
POLL_SECONDS = 15.0
# how many names of a lease one poll checks; the check of a key that was handed back costs three requests
_CHECKED_AT_ONCE = 10


class ParkedNames:
    """The names of the parked keys of a lease's range, stored in the lease's notes. None is missing; one may be of a key handed back."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        # the names in the order in which they were last checked, oldest check first
        self._names = dict.fromkeys(_names_in(notes.text))
        self._polled_at = 0.0
        # whether no owner of the lease has saved names yet, not even an empty list
        self.never_saved = notes.text is None

    def __contains__(self, partition_key: str) -> bool:
        return bool(self._names) and broker_id(partition_key) in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, *partition_keys: str) -> None:
        new = {name: None for name in map(broker_id, partition_keys) if name not in self._names}
        if new or self.never_saved:
            self._names |= new
            self._save()

    def discard(self, partition_key: str) -> None:
        self._forget(broker_id(partition_key))

    async def poll(self, parking: Parking, scope: Scope) -> None:
        """
        If the last poll was long enough ago, check some names in the parked store, and forget those of keys that were handed back.

        Raises:
            StoreError: the store refused or failed.
        """
        now = asyncio.get_running_loop().time()
        if self._names and now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            await self._forget_handed_back(parking, scope, most=_CHECKED_AT_ONCE)

    async def make_room(self, parking: Parking, scope: Scope, *, for_key: str, check: bool = True) -> None:
        """
        If the limit of parked keys is reached, check the names, and forget those of keys that were handed back.

        `check` is False if the names were checked a moment ago.

        Raises:
            ParkingFull: as many keys as the limit allows are still parked.
            StoreError: the store refused or failed.
        """
        if len(self) >= parking.max_keys and for_key not in self and check:
            await self._forget_handed_back(parking, scope, most=parking.max_keys)
        if len(self) >= parking.max_keys and for_key not in self:
            raise ParkingFull(
                f"{len(self._names)} partition keys of one lease are parked, as many as the limit allows, so "
                f"{for_key!r} cannot be; list them, release or drop some, or raise the limit."
            )

    async def _forget_handed_back(self, parking: Parking, scope: Scope, *, most: int) -> None:
        due = list(self._names)[:most]
        for name in due:  # checked names move to the end
            self._names[name] = self._names.pop(name)
        for name in due:
            if not await parking.is_parked(name, scope):
                self._forget(name)

    def _forget(self, name: str) -> None:
        if name in self._names:
            del self._names[name]
            self._save()

    def _save(self) -> None:
        self._notes.text, self.never_saved = json.dumps(list(self._names), ensure_ascii=False), False


def _names_in(text: str | None) -> list[str]:
    try:
        names = json.loads(text) if text else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ParkingError(
            f"The notes of the lease are not a list of parked keys: {str(text)[:100]!r}. Correct the property `notes` of its "
            "document while no worker runs."
        )
    return names
