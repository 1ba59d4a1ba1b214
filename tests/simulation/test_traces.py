"""
Tests that the TLA+ models refuse a wrong trace. A trace lists the steps of a simulated run. The model checker TLC must refuse it if a
line is missing, or if the code has a planted mistake. The tests of TLC need its jar, which TLA2TOOLS names.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.traces import consumer_trace_of, parked_trace_of, trace_of
from tests.support.effort import LONG
from tests.support.mistaken_code import ROOT, run_with
from tests.support.traces import TLC, Trace, check, needs_tlc

pytestmark = pytest.mark.looptime(False)
# The name of a planted mistake, and a random seed whose run takes a step that only the mistake allows
MISTAKES: list[tuple[str, int]] = [
    ("a read without an answer counts as an absence", 12),
    ("a replacement is sent without its etag", 22),
    ("a batch has no event", 0),
    ("an answer that was lost leaves no doubt", 184),
    ("a commit without an answer counts as refused", 106),
    ("a second call does not ask whether the first was written", 104),
    ("a key is spread over two lanes", 23),
    ("events behind a parked one are sent", 17),
    ("the halves of a refused batch change places", 27),
    ("a lease that is alive is taken", 12),
    ("a lease is written without its etag", 8),
    ("the position moves before the page is handled", 0),
    ("a release goes on after another took the key", 129),
    ("the document is taken off before the effect", 11),
    ("a missing key is believed without proof", 27),
    ("a parked key's next message is handled", 5),
    ("an effect leaves no record", 5),
]


@pytest.mark.parametrize("seed", range(4))
def test_a_simulated_run_with_the_same_seed_gives_the_same_trace(seed: int):
    trace = trace_of(seed)
    assert (None, "begins") == (trace.failure, trace.lines[0]["action"])
    # Only runs of relays (odd seeds) can be compared: a unit of work draws its commit id from the system, not from the seed.
    if seed % 2:
        assert trace == trace_of(seed)
    json.dumps(trace.lines)


def refused(trace: Trace) -> bool:
    assert TLC is not None
    (verdict,) = check([trace], TLC)
    assert verdict.refused is None or "is no step of the model" in verdict.refused, verdict.refused
    return verdict.refused is not None


@pytest.mark.parametrize("page", ["docs/explanation/protocol-model.md", "models/README.md"])
def test_the_pages_state_how_many_planted_mistakes_the_traces_reveal(page: str):
    said = re.search(r"(\d+)\s+in\s+simulated\s+runs", (ROOT / page).read_text())

    assert said is not None
    assert len(MISTAKES) == int(said[1])


@needs_tlc
@pytest.mark.parametrize("left_out", ["appends", "sent", "takes off", "proves"])
def test_tlc_refuses_the_trace_of_a_parked_key_with_a_missing_line(left_out: str):
    trace = parked_trace_of(27)
    at = next(n for n, line in enumerate(trace.lines) if line["action"] == left_out)
    less = replace(trace, lines=[*trace.lines[:at], *trace.lines[at + 1 :]])
    assert (False, True) == (refused(trace), refused(less))


@needs_tlc
@pytest.mark.parametrize("left_out", ["proves", "sends", "enters", "appends", "takes off", "sent"])
def test_tlc_refuses_the_trace_of_a_session_with_a_missing_line(left_out: str):
    trace = consumer_trace_of(5)
    at = next(n for n, line in enumerate(trace.lines) if line["action"] == left_out)
    less = replace(trace, lines=[*trace.lines[:at], *trace.lines[at + 1 :]])
    assert (False, True) == (refused(trace), refused(less))


@needs_tlc
@pytest.mark.parametrize(
    ("seed", "left_out"), [(28, "looks"), (13, "enters"), (13, "accepted"), (13, "saves"), (13, "reads")]
)
def test_tlc_refuses_the_trace_of_a_commit_or_relay_with_a_missing_line(seed: int, left_out: str):
    trace = trace_of(seed)
    at = next(n for n, line in enumerate(trace.lines) if line["action"] == left_out)
    less = replace(trace, lines=[*trace.lines[:at], *trace.lines[at + 1 :]])
    assert (False, True) == (refused(trace), refused(less))


@needs_tlc
@pytest.mark.skipif(not LONG, reason="make test-long")
@pytest.mark.parametrize(("mistake", "seed"), MISTAKES)
def test_tlc_refuses_the_trace_of_code_with_a_planted_mistake(mistake: str, seed: int, tmp_path: Path):
    arguments = ("-m", "tests.simulation.traces", "--seeds", "1", "--first", str(seed))
    ended = run_with(mistake, tmp_path, *arguments)
    assert (1, True) == (ended.returncode, "is no step of the model" in ended.stdout), (
        ended.stdout + ended.stderr
    )
