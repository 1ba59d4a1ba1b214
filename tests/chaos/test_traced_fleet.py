"""
Tests that the TLA+ model accepts the record of a correct fleet, and refuses that of a fleet with a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cosmos_outbox.changefeed.leases import new_lease
from cosmos_outbox.partition_key import FeedRange
from tests.chaos.traced_fleet import WIPES, fleet_traces
from tests.support.effort import LONG
from tests.support.mistaken_code import run_with
from tests.support.traces import TLC, Trace, check, needs_tlc

pytestmark = pytest.mark.looptime(False)
LOW, MIDDLE, HIGH = "", "10", "20"


def committed(lsn: int, epk: str, *ids: str) -> dict[str, Any]:
    documents = {
        name: {"id": name, "type": "domainEvent", "meta": {"sequence": place}}
        for place, name in enumerate(ids)
    }
    return {"did": "transaction", "container": "data", "lsn": lsn, "range": [LOW, HIGH], "epk": epk, "documents": documents}  # fmt: skip


def lease(
    token: str, low: str, high: str, owner: str | None = None, lsn: int | None = None
) -> dict[str, Any]:
    position = None if lsn is None else f'"{lsn}"'
    document = {
        **new_lease("p", token, FeedRange(min=low, max=high), continuation=position).raw,
        "Owner": owner,
    }
    return {"did": "transaction", "container": "leases", "documents": {document["id"]: document}}


def gone(token: str) -> dict[str, Any]:
    return {"did": "transaction", "container": "leases", "documents": {f"p..{token}": None}}


def sent(by: str, *ids: str, first: bool = True, answered: bool = True) -> list[dict[str, Any]]:
    where = {"link": by, "delivery": ids[0]}
    messages = [[name, first] for name in ids]
    stored = {"did": "stored", "topic": "events", "by": by, "messages": messages, **where}
    return [stored, {"did": "answered", **where}] if answered else [stored]


LINES: list[dict[str, Any]] = [
    lease("0", LOW, HIGH),
    lease("0", LOW, HIGH, "w1"),
    committed(2, "05", "a1", "a2"),
    committed(3, "15", "b1"),
    *sent("w1", "a1", answered=False),
    lease("0", LOW, HIGH, "w2"),
    *sent("w2", "a1", "a2", first=False),
    lease("0", LOW, HIGH, "w2", 2),
    lease("1", LOW, MIDDLE, lsn=2),
    lease("2", MIDDLE, HIGH, lsn=2),
    gone("0"),
    lease("2", MIDDLE, HIGH, "w1", 2),
    *sent("w1", "b1"),
    lease("2", MIDDLE, HIGH, "w1", 3),
    {"did": "transaction", "container": "leases", "documents": {WIPES: {"ids": ["p..1", "p..2"]}}},
    gone("1"),
    gone("2"),
]
# Worker w1 never sent event a2, so the message from worker w2 is the first copy at the broker.
LINES[6]["messages"][1][1] = True


def traces_of(lines: Sequence[dict[str, Any]], folder: Path) -> list[Trace]:
    (folder / "record.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return fleet_traces(folder / "record.jsonl")


# Which lines of LINES a test leaves out (by index), and the first action of the remaining record that the
# model has to refuse. None: the model allows the record.
LEFT_OUT: list[tuple[list[int], str | None]] = [
    ([], None),
    ([6, 7], "saves"),  # the recording lacks lines 6 and 7: a worker saves a position beyond unsent events
    ([9], "deletes"),  # the recording lacks line 9: a worker deletes a lease before both child leases exist
    ([13, 14], "saves"),
    ([12], "takes"),  # record without line 12: a worker takes a lease with a position that no owner saved
    ([17], None),  # record without line 17: an operator deletes only some leases, which the model allows
    ([16], "deletes"),  # record without line 16: leases are deleted, but no operator announced it
]


@needs_tlc
def test_the_tla_model_refuses_a_record_that_lacks_a_needed_step(tmp_path: Path):
    assert TLC is not None
    traces = [
        trace
        for left_out, _ in LEFT_OUT
        for trace in traces_of([line for n, line in enumerate(LINES) if n not in left_out], tmp_path)
    ]
    refused = [(verdict.refused or "null").splitlines()[-1] for verdict in check(traces, TLC)]
    assert [action for _, action in LEFT_OUT] == [(json.loads(line) or {}).get("action") for line in refused]


@needs_tlc
@pytest.mark.skipif(not LONG, reason="make test-long")
def test_the_tla_model_refuses_a_fleet_that_sends_one_key_over_two_links(tmp_path: Path):
    arguments = ("-m", "tests.chaos", "--traces", "--seconds", "6", "--seed", "1")
    ended = run_with("a key is spread over two lanes", tmp_path, *arguments)
    assert (1, True) == (ended.returncode, "is no step of the model" in ended.stdout), (
        ended.stdout + ended.stderr
    )
