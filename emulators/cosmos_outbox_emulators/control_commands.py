"""The commands `split`, `merge` and `fault`, which change running emulators by requests to their control API."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from typing import Any

from cosmos_outbox_emulators.usage import UsageError

_ANSWER_TIMEOUT_S = 30


def command(control: str, path: str, fields: dict[str, Any] | None, *, method: str = "POST") -> str:
    """Send one request to the control API of running emulators. Return the body of the answer, or `ok` if it is empty."""
    if not control.startswith("http://"):
        raise UsageError(f"--control must be the http:// address that `serve` printed, not {control!r}")
    body = None if fields is None else json.dumps(fields).encode()
    # Proxies from environment variables are not used, because a proxy cannot reach this machine's loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(control.rstrip("/") + path, data=body, method=method)  # noqa: S310  # http:// was checked
    try:
        with opener.open(request, timeout=_ANSWER_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text or "ok"
    except urllib.error.HTTPError as error:
        raise UsageError(_detail(error.read())) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"no emulators answer at {control}: {error}") from error


def _detail(problem: bytes) -> str:
    try:
        return str(json.loads(problem)["detail"])
    except (ValueError, LookupError, TypeError):
        return problem.decode(errors="replace")[:200]


def run_command(options: argparse.Namespace) -> str:
    """Carry out the command `split`, `merge` or `fault` with these options, and return the text to print."""
    if options.command == "fault":
        path = f"/{options.emulator}/faults"
        if options.clear:
            return command(options.control, path, None, method="DELETE")
        return command(options.control, path, _rule(options.rule))
    named = {"database": options.database, "container": options.container}
    where = {**{key: name for key, name in named.items() if name}, "completing": options.completing}
    if options.command == "split":
        return command(options.control, "/cosmos/split", {**where, "range": options.range[0]})
    return command(options.control, "/cosmos/merge", {**where, "ranges": options.range})


def _rule(text: str | None) -> dict[str, Any]:
    try:
        rule = json.loads(text or "")
    except ValueError as error:
        raise UsageError(f"the fault must be a JSON object: {error}") from error
    if not isinstance(rule, dict):
        raise UsageError("the fault must be a JSON object")
    return rule
