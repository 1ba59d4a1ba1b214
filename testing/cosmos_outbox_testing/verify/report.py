"""
Write the report of `cosmos-outbox verify`: the files verify.json and verify.md, which can be attached to an issue.

They contain no secrets, and the names of the account and the namespace only with `--name-accounts`.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from azure.core.exceptions import AzureError

from cosmos_outbox.adapters.cosmos import account_of
from cosmos_outbox.adapters.servicebus.administration import reading_settings
from cosmos_outbox.errors import UsageError
from cosmos_outbox_testing.verify.results import Held, Outcome, exit_code
from cosmos_outbox_testing.verify.site import Site

_PACKAGES = ("cosmos-outbox", "azure-cosmos", "azure-servicebus", "azure-identity", "aiohttp")
_UNKNOWN = "unknown: it needs the Manage right"
ENDS = (
    "All that was asked held.",
    "An answer differs from what was expected, but no guarantee depends on it.",
    "A guarantee is broken: read below what this means before you use the outbox on this account.",
    "The run could not be completed: claims were not tested.",
)
_PROVES = (
    "This report shows how the account answered the requests of this run. It does not show how the account answers in an outage, a "
    "failover or a split, under your load, or at another time."
)


async def facts_of(site: Site, *, name_accounts: bool) -> dict[str, Any]:
    """
    Return facts about the run for the report, such as the versions of packages, the regions and the consistency of the account, and the
    tier of the namespace.
    """
    facts: dict[str, Any] = {
        "run": site.run,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "system": platform.platform(terse=True),
        "signs_in": site.connection.settings.signs_in,
        "tier": _UNKNOWN,
    }
    with suppress(AzureError):
        account = await site.client.client_connection.GetDatabaseAccount()
        policy = account.ConsistencyPolicy or {}
        facts["consistency"] = policy.get("defaultConsistencyLevel")
        facts["regions"] = [region["name"] for region in account.WritableLocations]
    if site.bus is not None:
        with suppress(Exception):  # few users have the right to read the tier, and nothing else needs it
            facts["tier"] = await _tier(site)
    if name_accounts:
        facts["account"], facts["namespace"] = (
            account_of(site.client).host,
            site.connection.settings.namespace,
        )
    return facts


async def _tier(site: Site) -> str:
    async with reading_settings(**site.connection.namespace) as client:
        return str((await client.get_namespace_properties()).messaging_sku)


FILES = ("verify.json", "verify.md")


def prepare_folder(path: Path) -> Path:
    """
    Create the folder of the report if it is missing, and delete the report of an earlier run. Return the folder.

    Call this before the run. Otherwise a run of several minutes could end with a report that cannot be written.

    Raises:
        UsageError: no file can be written in the folder.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            for name in FILES:
                (path / name).unlink(missing_ok=True)
            return path
    except OSError as error:
        raise UsageError(
            f"--output {path}: no report can be written there: {error.strerror}; name another folder."
        ) from error


def write_report(
    folder: Path, facts: dict[str, Any], outcomes: Sequence[Outcome], cleared: Callable[[str], str]
) -> list[Path]:
    """
    Write both files of the report, and return their paths.

    Only the answers of the services are passed through `cleared`, which removes secrets and names. The other sentences are those of this
    library. They contain no secrets, but a word in them, such as "outbox", may also be the name of an account.
    """
    code, outcomes = exit_code(outcomes), [replace(one, found=cleared(one.found)) for one in outcomes]
    rows = [asdict(outcome) for outcome in outcomes]
    data = json.dumps({"exit_code": code, **facts, "outcomes": rows}, indent=1, ensure_ascii=False)
    files = [folder / name for name in FILES]
    for file, text in zip(files, (data, markdown(facts, outcomes)), strict=True):
        file.write_text(text + "\n", encoding="utf-8")
    return files


def markdown(facts: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """Return the report as a Markdown page."""
    counts = {held: sum(one.held is held for one in outcomes) for held in Held}
    lines = ["# cosmos-outbox verify", "", f"**{ENDS[exit_code(outcomes)]}** {_PROVES}", ""]
    lines += [", ".join(f"{count} {held}" for held, count in counts.items()), ""]
    lines += [f"- {name}: {_cell(value)}" for name, value in facts.items()]
    promises: dict[str, bool] = {}
    for one in outcomes:
        if one.promise and one.held is not Held.NOT_RUN:
            promises[one.promise] = promises.get(one.promise, True) and one.held is not Held.BROKEN
    if promises:
        lines += ["", "## Guarantees", "", "| Guarantee | Claims about the account |", "|---|---|"]
    lines += [f"| {name} | {'held' if held else '**broken**'} |" for name, held in sorted(promises.items())]
    for held in (Held.BROKEN, Held.DIFFERENT, Held.NOT_RUN):
        for one in [one for one in outcomes if one.held is held]:
            lines += ["", f"## {held}: {one.area}/{one.name}", "", one.statement, ""]
            lines += [f"- expected: {_cell(one.expected)}"] * bool(one.expected)
            lines += [f"- found: {_cell(one.found)}", *[f"- means: {one.meaning}"] * bool(one.meaning)]
    lines += ["", "## All", "", "| | What | Expected | Found | s | RU |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.held} | `{one.area}/{one.name}` {_cell(one.statement)} | {_cell(one.expected)} | {_cell(_text_of_result(one))} "
        f"| {one.seconds:.1f} | {one.request_units:.0f} |"
        for one in outcomes
    ]
    return "\n".join(lines)


def _text_of_result(one: Outcome) -> str:
    figures = ", ".join(f"{name} {value:g}" for name, value in one.figures.items())
    return "; ".join(filter(None, (one.found, figures)))


def _cell(value: object) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, list):
        value = ", ".join(value)
    return " ".join(str(value).replace("|", "\\|").split())
