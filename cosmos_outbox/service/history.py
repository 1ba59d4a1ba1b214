"""
History: how a program was in the last hour, in memory, for the lines on its status page.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_KEPT_SECONDS = 3600.0
_APART_SECONDS = 14.0  # of the polls, whatever their interval is


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    How a program was at one moment; None where it was not known.

    at: seconds on the loop's clock.
    waiting: changes; None of a consumer.
    oldest_seconds: the age of the oldest that waits.
    per_second: events sent, or messages handled, a second in the minute before.
    parked: keys.
    """

    at: float
    waiting: int | None
    oldest_seconds: float | None
    per_second: float
    parked: int | None


class History:
    """
    The samples of the last hour, oldest first; the newest is always among them.
    """

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def note(self, sample: Sample) -> None:
        """
        Keep a sample; it replaces the previous one if that came too soon after its own predecessor.
        """
        if len(self._samples) > 1 and self._samples[-1].at - self._samples[-2].at < _APART_SECONDS:
            self._samples.pop()
        self._samples.append(sample)
        while self._samples[0].at < sample.at - _KEPT_SECONDS:
            self._samples.popleft()

    def samples(self) -> tuple[Sample, ...]:
        """
        Return all samples that are kept.
        """
        return tuple(self._samples)
