"""
What is kept of the last hour, for the lines of the status page.
"""

from __future__ import annotations

from cosmos_outbox.service.history import History, Sample


def sample(at: float) -> Sample:
    return Sample(at=at, waiting=0, oldest_seconds=None, per_second=0.0, parked=None)


def test_an_hour_is_kept_and_what_is_older_is_forgotten():
    history = History()
    for at in range(0, 7200, 15):
        history.note(sample(at))
    kept = history.samples()
    assert (3585, 7185, 241) == (kept[0].at, kept[-1].at, len(kept))


def test_polls_that_follow_each_other_fast_are_one_sample_and_the_line_ends_with_the_present():
    history = History()
    for at in range(60):
        history.note(sample(at))
    assert [0, 14, 28, 42, 56, 59] == [one.at for one in history.samples()]
