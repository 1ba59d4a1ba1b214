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
LINES[6]["messages"][1][1] = True  # the first copy of a2


def traces_of(lines: Sequence[dict[str, Any]], folder: Path) -> list[Trace]:
    (folder / "record.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return fleet_traces(folder / "record.jsonl")


# Indices of LINES to leave out, and the action that the model refuses first in what remains.
LEFT_OUT: list[tuple[list[int], str | None]] = [
    ([], None),
    ([6, 7], "saves"),  # the position passes events that were not sent
    ([9], "deletes"),  # a child is missing
    ([13, 14], "saves"),
    ([12], "takes"),  # the new owner begins at a position that no owner saved
    ([17], None),  # an operator deletes only some of the leases
    ([16], "deletes"),  # no operator announced that leases are deleted
]


@needs_tlc
def test_the_model_refuses_a_record_from_which_a_needed_step_is_missing(tmp_path: Path):
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
