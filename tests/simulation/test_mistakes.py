"""
Tests of the change feed simulation itself. Each test replaces a line of the processor by a wrong one and plays a short script (a story).
The invariant that forbids the mistake must report a violation.
"""

from __future__ import annotations
import __future__

import inspect
import random
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from cosmos_outbox.changefeed import (
    balancing,
    bootstrap,
    leases,
    owned_lease,
    owned_leases,
    polling,
    processor,
    splits,
)
from tests.simulation.changefeed import Simulation, Step, Violation

pytestmark = pytest.mark.timeout(900)  # in real seconds, not in those of the simulated clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """
    A mistake that a test plants: a line of a function, the wrong line that replaces it, a script that reveals the mistake, and a
    part of the violation's text.
    """

    owner: Any
    name: str
    right: str
    wrong: str
    story: str
    ranges: int = 2
    said: str

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the function by a copy that has the wrong line, until the end of the test."""
        function = getattr(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(function))
        if self.right not in source:  # no AssertionError, because tests take one for a noticed mistake
            raise LookupError(
                f"cannot plant the mistake: {self.name} has no line {self.right!r} any more; adapt `right` and `wrong`"
            )
        code = compile(
            source.replace(self.right, self.wrong), f"<mistaken {self.name}>", "exec", dont_inherit=True,
            flags=ANNOTATIONS,
        )  # fmt: skip
        names: dict[str, Any] = {}
        exec(code, function.__globals__, names)  # noqa: S102 - code of this repository, one line changed
        monkeypatch.setattr(self.owner, self.name, names[self.name])


# The flag of `from __future__ import annotations`, with which every module of the library is compiled.
ANNOTATIONS = __future__.annotations.compiler_flag

LOAD = "write 0 5, write 3 5, "
TWO = "start 0 0, wait 0 2, start 1 0, wait 0 3, wait 0 3, "
CUT_OFF = "cut-leases 0 0, " + 16 * (LOAD + "wait 0 1, wait 0 1, ")

# Story: after a split, a worker dies before it deletes the parent lease, whose children it has created. Later the range is merged.
CUT_SHORT = (
    "start 0 0, wait 0 2, merge 0 0, wait 0 3, split 0 0, wait 0 2, split 0 0, doom 0 7, wait 0 2, merge 0 0, "
    "start 1 0, start 2 0, wait 0 4, "
) + 6 * (LOAD + "wait 0 2, ")

# Story: Cosmos DB fails over to a region without the newest changes, so the leases are ahead of the change feed.
ASTRAY = "start 0 0, leap 0 0, " + LOAD + "wait 0 3, lose 0 0, " + LOAD + "wait 0 3"

MISTAKES = {
    "a position is saved before its changes are handled": Mistake(
        owner=polling.Pump, name="_work_on",
        right="handled = await self._handle(page)",
        wrong="handled = self._owned.advance(page.continuation) or await self._handle(page)",
        story="start 0 0, wait 0 2, hang 0 1, write 0 5, wait 0 3", said="was not handled",
    ),
    "trust counts from the answer": Mistake(
        owner=owned_lease.OwnedLease, name="_write",
        right="_note_write(written, sent_at, pages)", wrong="_note_write(written, loop.time(), pages)",
        story="start 0 0, wait 0 2, start 1 0, start 2 0, start 3 0, wait 0 4, late 0 2, wait 0 4, " + CUT_OFF,
        ranges=4, said="both trust",
    ),
    "trust never ends": Mistake(
        owner=owned_lease.OwnedLease, name="_note_write",
        right="sent_at + self._trust_seconds", wrong="sent_at + 3600",
        story=TWO + CUT_OFF, said="both trust",
    ),
    "the work goes on after the lease is lost": Mistake(
        owner=owned_leases, name="_keep_and_pump",
        right="group.create_task(owned.keep())",
        wrong="asyncio.gather(owned.keep(), return_exceptions=True)",
        story="start 0 0, wait 0 2, hang 0 2, write 0 5, cut-leases 0 0, wait 0 4, wait 0 3", said="still handles",
    ),
    "a process that wakes does not check the time": Mistake(
        owner=owned_lease.OwnedLease, name="ensure_trusted",
        right="asyncio.get_running_loop().time() >= self.trusted_until", wrong="False",
        story="start 0 0, wait 0 2, freeze 0 0, wait 0 4, thaw 0 0, wait 0 0", said="not trusting it any more",
    ),
    "a machine that wakes counts its sleep for nothing": Mistake(
        owner=owned_lease.OwnedLease, name="ensure_trusted", right="self.trusted_until - asleep", wrong="self.trusted_until",
        story="start 0 0, wait 0 2, sleep 0 0, wait 0 4, thaw 0 0, write 0 5, wait 0 0", said="begins a page",
    ),
    "a cancellation that the handler keeps to itself is none": Mistake(
        owner=owned_lease.OwnedLease, name="ensure_active", right="if self._ended:", wrong="if True:\n        return\n    if self._ended:",
        story="start 0 0, wait 0 2, swallow 0 0, hang 0 2, write 0 20, write 1 20, cut-leases 0 0, wait 0 4, wait 0 2",
        ranges=1, said="begins a page",
    ),
    "a live lease of ours is taken": Mistake(
        owner=balancing, name="_from_overloaded", right="asked.append(lease)", wrong="taken.append(lease)",
        story=TWO, said="which is alive",
    ),
    "the worker's own clock decides what is expired": Mistake(
        owner=processor.ChangeFeedProcessor, name="_balance",
        right="now=listing.read_at", wrong="now=self._bootstrap._worker.utcnow()",
        story="start 0 0, wait 0 2, start 1 4, wait 0 4, cut-leases 0 0, wait 0 3, wait 0 3, wait 0 2, ",
        said="which is alive",
    ),
    "a renewal brings a deleted lease back": Mistake(
        owner=owned_lease.OwnedLease, name="_write",
        right='raise errors.LeaseLost(f"Lease {self.lease.id} was deleted.") from gone',
        wrong="document = await worker.store.create(changed.raw)",
        story="start 0 0, wait 0 2, delete-lease 0 0, wait 0 3", said="with an owner",
    ),
    "a lease that an operator deleted is missed for ever": Mistake(
        owner=processor.ChangeFeedProcessor, name="_fill", right="self._bootstrap.create(only)", wrong="asyncio.sleep(0)",
        story="start 0 0, wait 0 2, delete-lease 0 0, wait 0 3, " + LOAD, said="half an hour",
    ),
    "a lease is released without saving": Mistake(
        owner=owned_lease.OwnedLease, name="release",
        right="continuation=self.continuation, owner=None", wrong="owner=None",
        story="start 0 0, wait 0 2, cut-leases 0 0, " + LOAD + "wait 0 1, heal 0 0, stop 0 0", said="without saving",
    ),
    "a parent goes before its children are there": Mistake(
        owner=splits, name="write_children",
        right="for child in children:",
        wrong="await store.delete(parent.id, parent.partition_key, etag=parent.etag)\n    for child in children:",
        story="start 0 0, wait 0 2, split 0 0, wait 0 2", said="before all of its children",
    ),
    "children start from the beginning": Mistake(
        owner=splits, name="children_of",
        right="continuation=lease.continuation", wrong="continuation=None",
        story="start 0 0, " + LOAD + "wait 0 2, split 0 0, wait 0 2", said="its parent is at",
    ),
    "a child is as wide as its partition": Mistake(
        owner=splits, name="children_of",
        right="for part in missing:", wrong="for part in overlapping:",
        story="start 0 0, wait 0 2, merge 0 0, wait 0 2, merge 0 0, wait 0 2, split 0 0, wait 0 2, wait 0 3",
        ranges=3, said="before all of its children",
    ),
    "a split that a crash cut short is not noticed": Mistake(
        owner=leases.ByRange, name="has_unfinished_split",
        right="any(is_child_of(self.leases[at], lease) for at in self._places[first:end])", wrong="False",
        story=CUT_SHORT, said="both trust",
    ),
    "a split that a crash cut short is made anew": Mistake(
        owner=splits, name="children_of",
        right="cut(lease, feed_range, physical, others)", wrong="cut(lease, feed_range, physical, ())",
        story=CUT_SHORT, said="half an hour",
    ),
    "a merged partition is read on under its old name": Mistake(
        owner=polling.Pump, name="_read", right="page.range_id != self._owned.lease.token", wrong="False",
        story="start 0 0, wait 0 2, merge 0 0, wait 0 3", said="half an hour",
    ),
    "a hot range fails the whole list": Mistake(
        owner=bootstrap, name="identify", right="error.retriable or isinstance(error, RangeGone)", wrong="isinstance(error, RangeGone)",
        story="hot 0 0, start 0 0, " + LOAD + "wait 0 3", said="half an hour",
    ),
    "a child waits until the other one cools": Mistake(
        owner=splits, name="_split_what_answers",
        right="if [owned.range] == list(silent):", wrong="if silent:",
        story="start 0 0, wait 0 2, split 0 0, hot 0 0, " + LOAD + "wait 0 3", ranges=1, said="half an hour",
    ),
    "a position ahead is believed": Mistake(
        owner=polling.Pump, name="_next", right="newest_below(owned.continuation, page)", wrong="None",
        story=ASTRAY, said="half an hour",
    ),
    "a lease that halts is not marked": Mistake(
        owner=polling.Pump, name="_ahead", right="self._owned.mark({AHEAD:", wrong="({AHEAD:",
        story=ASTRAY, said="half an hour",
    ),
    "a lease that is handed over goes on from the lowest that was seen": Mistake(
        owner=polling.Pump, name="run",
        right="owned.mark({BEHIND: str(self._regression.lowest)})",
        wrong="owned.advance(position_at(self._regression.lowest))",
        story="start 0 0, wait 0 2, stop 0 0, " + LOAD + "ahead 0 0, ahead 0 1, start 0 0, wait 0 2, stop 0 0, " + LOAD + "start 1 0, wait 0 3",
        said="arrived before",
    ),
    "a page that failed is skipped": Mistake(
        owner=polling.Pump, name="_handle", right="delay = self._back_off(error, attempt, halted=attempt % options.halt_after_attempts == 0)", wrong="break",
        story="start 0 0, wait 0 2, fail 0 3, " + LOAD + "wait 0 3", said="was not handled",
    ),
}  # fmt: skip


def script(story: str) -> list[Step]:
    steps = [step.split() for step in story.strip(", ").split(", ")]
    return [Step(kind, int(a), int(b)) for kind, a, b in steps]


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
async def test_the_correct_processor_violates_no_invariant_in_any_script(mistake: Mistake):
    random.seed(1)
    await Simulation(ranges=mistake.ranges).play(script(mistake.story))


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_processor_with_a_planted_mistake_violates_an_invariant(
    mistake: Mistake, monkeypatch: pytest.MonkeyPatch
):
    mistake.plant(monkeypatch)
    random.seed(1)
    with pytest.raises(Violation, match=mistake.said):
        await Simulation(ranges=mistake.ranges).play(script(mistake.story))
