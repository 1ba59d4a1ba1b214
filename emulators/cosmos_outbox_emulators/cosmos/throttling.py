"""
Throttling: a container has a number of request units for each second, spread evenly over its physical partitions. Requests beyond
that are refused.

A request is admitted while its partition has units left in this second, whatever the request will cost. Units that were spent
beyond the limit are taken from the following seconds. Requests of low priority are refused first: a request of high priority is
refused only if requests of high priority alone have used up the units of this second. Microsoft does not document how Azure
weighs the two priorities, and over what time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request

PRIORITY, BUCKET = "x-ms-cosmos-priority-level", "x-ms-cosmos-throughput-bucket"
_BUCKETS = ("1", "2", "3", "4", "5")
_ALL = "all"
_OVER_BUDGET, _OVER_BUCKET = 3200, 3212
_SECOND_MS = 1000


def bucket_of(headers: Mapping[str, str]) -> str | None:
    """Return the throughput bucket that a request names, or None. Refuse a request that names a bucket that does not exist."""
    bucket = headers.get(BUCKET)
    if bucket is not None and bucket not in _BUCKETS:
        raise bad_request(f"The throughput bucket must be from 1 to 5, not {bucket[:20]!r}.")
    return bucket


@dataclass(slots=True)
class _Partition:
    """
    The request units that a partition spent in this second, with those that it still owes for earlier seconds. There are separate
    counts for all requests, for requests of high priority, and for each throughput bucket.
    """

    second: int
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Throttle:
    """
    The limit of one container's request units.

    Args:
        per_second: Request units a second of all the container's partitions together.
        buckets: Percentage of these units that each throughput bucket may spend, by its id. Requests without a bucket may spend
            all.
    """

    def __init__(self, per_second: float, buckets: Mapping[str, float] | None = None) -> None:
        self._per_second = per_second
        self._shares = {bucket: percent / 100 for bucket, percent in (buckets or {}).items()}
        if wrong := [bucket for bucket in self._shares if bucket not in _BUCKETS]:
            raise ValueError(f"the id of a throughput bucket must be from 1 to 5, not {wrong[0]!r}")
        self._partitions: dict[str, _Partition] = {}

    def admit(self, range_id: str, ranges: int, headers: Mapping[str, str], now: float) -> None:
        """Refuse a request with 429 if its partition has no request units left for it."""
        budget, bucket = self._per_second / ranges, bucket_of(headers)
        partition = self._partitions.setdefault(range_id, _Partition(int(now)))
        if passed := int(now) - partition.second:
            partition.second = int(now)
            for name in partition.spent:
                earned = passed * budget * self._shares.get(name, 1.0)
                partition.spent[name] = max(0.0, partition.spent[name] - earned)
        if bucket in self._shares and partition.spent[bucket] >= budget * self._shares[bucket]:
            raise _too_many(_OVER_BUCKET, now)
        if partition.spent[_level(headers)] >= budget:
            raise _too_many(_OVER_BUDGET, now)

    def charge(self, range_id: str, headers: Mapping[str, str], units: float) -> None:
        """Count the cost of a request that was admitted."""
        for name in {_ALL, _level(headers), bucket_of(headers) or _ALL}:
            self._partitions[range_id].spent[name] += units


def is_low(headers: Mapping[str, str]) -> bool:
    """Say whether a request has low priority. Without a header it has high priority."""
    return headers.get(PRIORITY, "").casefold() == "low"


def _level(headers: Mapping[str, str]) -> str:
    return _ALL if is_low(headers) else "high"


def _too_many(substatus: int, now: float) -> CosmosError:
    return CosmosError(
        429,
        "The request rate is too large: the request units of this second are used up. Retry later.",
        substatus=substatus,
        retry_after_ms=_SECOND_MS - int(now * _SECOND_MS) % _SECOND_MS,
    )
