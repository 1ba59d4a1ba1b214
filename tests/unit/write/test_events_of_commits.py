"""
Each event is written by exactly one commit: the first one that is written after the event was recorded. Events keep the order of
recording.

The test changes a note in several steps and calls `commit` after each. The commit succeeds, its answer is lost, or the store is too busy.
`EventsModel` says which events the store must contain.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox import CommitOutcomeUnknown, Outbox, RetryOptions, TooManyRequests
from cosmos_outbox.adapters.memory.container import MemoryContainer
from tests.support.effort import examples
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Note, events, stored

# For each outcome of a call of `commit`: the faults of its writes, the faults of its reads, and the error that it raises.
OUTCOMES = {
    "written": ([], [], None),
    "answer lost": ([CommitFault.LOST_AFTER], [ReadFault.UNAVAILABLE], CommitOutcomeUnknown),
    "store busy": ([CommitFault.THROTTLED], [], TooManyRequests),
}
Said = tuple[str, str]  # the action of an event, and a text that no other event has
Step = tuple[list[str], str]  # changes of a `Note`, and the outcome of the commit after them


class EventsModel:
    def __init__(self) -> None:
        self.recorded: list[Said] = []
        self.in_doubt: list[Said] = []  # events that are stored, but whose commit got no answer yet
        self.stored: list[tuple[int, *Said]] = []  # version of the `Note`, and its event
        self.version = 0
        self.must_write = False  # the next commit writes the note even without an event
        self.is_new = True  # whether the unit of work believes that the note is not stored yet

    def record(self, action: str, text: str) -> None:
        same = [said for said in self.recorded if said[0] == action]
        if action == "NoteTagged" and same:  # the last tag replaces the first one
            self.recorded[self.recorded.index(same[0])] = (action, text)
        else:
            self.recorded.append((action, text))

    def commit(self, outcome: str, text: str) -> type[Exception] | None:
        """
        Note what a call of `commit` has to write, and return the class of the error that it has to raise.
        """
        if self.in_doubt and outcome == "answer lost":
            return CommitOutcomeUnknown
        self._settle()
        if not self.unwritten(text) and not self.must_write:
            return None
        if outcome != "store busy":
            self.version += 1
            self.must_write = False
            self.stored += [(self.version, *said) for said in self.unwritten(text)]
            self.in_doubt = list(self.recorded) or self.unwritten(text)
        if outcome == "written":
            self._settle()
        return OUTCOMES[outcome][2]

    def unwritten(self, text: str) -> list[Said]:
        """
        Return the events that a commit would write. For a new note, these are one event NoteWritten for its creation, changes and
        tags, and its events NoteFiled.
        """
        if not self.is_new:
            return self.recorded
        return [("NoteWritten", text), *(said for said in self.recorded if said[0] == "NoteFiled")]

    def _settle(self) -> None:
        self.recorded = [said for said in self.recorded if said not in self.in_doubt]
        self.is_new = self.is_new and not self.in_doubt
        self.in_doubt = []


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["changed", "tagged", "filed", "updated"]), max_size=4),
            st.sampled_from([*OUTCOMES]),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=examples(100, many=500), deadline=None)
@pytest.mark.looptime
async def test_each_event_is_written_by_the_first_successful_commit_after_it(steps: list[Step]) -> None:
    container, model, number = MemoryContainer(), EventsModel(), 0
    network = FaultyStore(container)
    uow = Outbox(network, retries=RetryOptions(deadline_seconds=3, attempt_seconds=1)).unit_of_work()
    notes = uow.repository(Note)
    note = notes.create(Note(id="n"))
    for changes, wanted in [*steps, ([], "written")]:
        for change in changes:
            if change == "updated":
                notes.update(note)
                model.must_write = True
                continue
            number += 1
            do = {"changed": note.change, "tagged": note.tag_as, "filed": note.file_as}[change]
            do(str(number))
            model.record(f"Note{change.capitalize()}", str(number))
        # Without an event, only the answer shows that the commit was written, so the test then loses no answer.
        proven = model.unwritten(note.text) or wanted != "answer lost"
        outcome = wanted if proven else "written"
        commit_faults, read_faults, _ = OUTCOMES[outcome]
        network.commit_faults, network.read_faults = commit_faults * 40, read_faults * 40
        expected = model.commit(outcome, note.text)
        with nullcontext() if expected is None else pytest.raises(expected):
            await uow.commit()
        assert model.version == max((one["version"] for one in stored(container, "note")), default=0)
        assert model.stored == [told_by(document) for document in events(container)]
        assert [action for action, _ in model.unwritten(note.text)] == [event.action for event in note.events]


def told_by(document: dict[str, object]) -> tuple[int, str, str]:
    meta, data = document["meta"], document["data"]
    assert isinstance(meta, dict)
    assert isinstance(data, dict)
    text = next(data[name] for name in ("text", "tag", "folder") if name in data)
    return meta["entityVersion"], data["action"], text
