"""
Asks each program (worker, consumer, api) which environment variables it reads, and which mistakes it finds in those that a platform sets.

The programs are installed only in the project's `.venv`. Callers that run in another Python environment use `asked`, which runs this
module in the `.venv`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# For each program: the module of its settings, the function that reads them, and the attribute with their fields.
_READERS = {
    "worker": ("cosmos_outbox_worker.settings", "load", "Settings.model_fields"),
    "consumer": ("cosmos_outbox_worker.consumer_settings", "load_consumer", "CONSUMER_FIELDS"),
    "api": ("examples.contacts.settings", "Settings", "Settings.model_fields"),
}
# Settings without which a program starts, but that each platform should set. Without a parked container, one
# bad event would halt its whole range.
_NEEDED = {"worker": {"OUTBOX_PARKED_CONTAINER"}, "consumer": {"OUTBOX_PARKED_CONTAINER"}}
# A program needs up to 15 s after its grace period to close, so a platform must not kill it earlier. If the
# program still runs 60 s after the grace period, it hangs, so a platform must not kill it later.
_CLOSING_SECONDS, _LOITERING_SECONDS = 15, 60


def variables(program: str) -> dict[str, Any]:
    """
    Return the environment variables that a program reads, each with its default as JSON, or None for a variable without a default.
    """
    module, _, path = _READERS[program]
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    defaults = {f"OUTBOX_{name.upper()}": field.default for name, field in found.items()}
    return {name: value if isinstance(value, str | int | float) else None for name, value in defaults.items()}


def problems(program: str, environment: Mapping[str, str], stopped_after: float | None) -> list[str]:
    """
    Return one line for each mistake in the environment variables that a platform sets for a program, and in the seconds after which it
    kills a program that should stop.
    """
    known = variables(program)
    ours = {name for name in environment if name.startswith("OUTBOX_")}
    found = [f"{name} is no setting" for name in sorted(ours - known.keys())]
    found += [f"{name} is missing" for name in sorted(_NEEDED.get(program, set()) - ours)]
    found += [f"{name} is empty" for name in sorted(ours) if not environment[name]]
    if stopped_after is not None:
        grace = float(environment.get("OUTBOX_GRACE_SECONDS", known["OUTBOX_GRACE_SECONDS"]))
        if not grace + _CLOSING_SECONDS <= stopped_after <= grace + _LOITERING_SECONDS:
            found.append(f"is killed after {stopped_after:g} seconds, with a grace of {grace:g}")
    module, load, _ = _READERS[program]
    read = getattr(importlib.import_module(module), load)
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        read()
    except Exception as error:  # noqa: BLE001 # any error of a program is an answer
        found += str(error).splitlines()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return found


def asked(questions: Sequence[Mapping[str, Any]]) -> list[Any]:
    """
    Call `variables` or `problems` for each question, in the project's `.venv`, and return the results. A question has the arguments of the
    call by name. If one of them is `environment`, the call is `problems`.
    """
    done = subprocess.run(  # noqa: S603 # the project's own interpreter, on this module
        [str(ROOT / ".venv/bin/python"), "-m", "tools.infra_check.programs"],
        cwd=ROOT,
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


if __name__ == "__main__":
    json.dump(
        [(problems if "environment" in one else variables)(**one) for one in json.load(sys.stdin)], sys.stdout
    )
