"""
Lease notes: the names of parked keys, which an owner keeps in its lease, so that the next owner knows them. `park.py` parks a key.
"""

from __future__ import annotations

import asyncio
import json

from cosmos_outbox.errors import ParkingError, ParkingFull
from cosmos_outbox.parking.park import Parking
from cosmos_outbox.parking.parked_documents import Scope
from cosmos_outbox.partition_key import broker_id
from cosmos_outbox.ports import Notes

POLL_TIMEOUT_SECONDS = 1.0  # a parked store that does not answer may delay a page no longer than this
# How often a relay asks the parked store which keys an operator has parked by hand, or released.
POLL_SECONDS = 15.0
# How many of the parked keys that a lease names are looked up in one poll. The number is small, because looking up a released key costs
# three requests.
_CHECKED_AT_ONCE = 10


class ParkedNames:
    """
    The names of the parked keys of a lease's range, stored in the lease's property `notes`. All parked keys are named. A name may
    stay for a while after its key was released.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        # The names of the parked keys. The name that was not looked up for the longest time comes first.
        self._names = dict.fromkeys(_names_in(notes.text))
        self._polled_at = 0.0
        # True if no owner of the lease has saved a list of names, not even an empty one. Then the relay asks the parked store which keys
        # are parked.
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
        At most every `POLL_SECONDS`, look some of the named keys up in the parked store, and forget the names of released keys.

        Raises:
            StoreError: the store refused or failed.
        """
        now = asyncio.get_running_loop().time()
        if self._names and now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            await self._forget_handed_back(parking, scope, most=_CHECKED_AT_ONCE)

    async def make_room(self, parking: Parking, scope: Scope, *, for_key: str, check: bool = True) -> None:
        """
        If the lease names as many parked keys as the limit allows, forget the names of keys that the parked store no longer has.

        `check` is False if the parked store was asked a moment ago.

        Raises:
            ParkingFull: as many keys as the limit allows are still parked.
            StoreError: the store refused or failed.
        """
        if len(self) >= parking.max_keys and for_key not in self and check:
            await self._forget_handed_back(parking, scope, most=parking.max_keys)
        if len(self) >= parking.max_keys and for_key not in self:
            raise ParkingFull(
                f"{len(self._names)} partition keys of one lease are parked, as many as the limit allows, so "
                f"{for_key!r} cannot be parked. List the keys, release some of them, or raise the limit."
            )

    async def _forget_handed_back(self, parking: Parking, scope: Scope, *, most: int) -> None:
        due = list(self._names)[:most]
        for name in due:  # move these names to the end, so that the next poll looks up other names
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
