"""
What the linters do not see in the Dockerfile, because it is true of a whole chain of stages, or of this project only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

TARGETS = ("worker", "api")
_TAG = re.compile(r"[^:\s]+(?:/[^:\s]+)*:(?!latest)[\w.-]*\d[\w.-]*(@sha256:[0-9a-f]{64})?")
_SECRET = re.compile(r"(?i)connection_string|password|secret|(account|access)_?key|token")

Instruction = tuple[str, str]


def problems(text: str) -> Iterator[str]:
    """
    Yield one line a mistake in the text of a Dockerfile.
    """
    instructions = list(_instructions(text))
    for keyword, value in instructions:
        if keyword == "ARG" and "_IMAGE=" in value and not _TAG.fullmatch(value.partition("=")[2]):
            yield f"Dockerfile: {value} is not pinned to a version"
        if keyword == "RUN" and re.search(r"pip install .*-r ", value) and not _all_hashed(value):
            yield f"Dockerfile: installs packages without looking at their hashes: {value}"
        if keyword in {"ARG", "ENV", "LABEL"} and (found := _SECRET.search(value)):
            yield f"Dockerfile: {keyword} with {found[0]} stays in the image for everybody to read"
    stages = _stages(instructions)
    for target in TARGETS:
        yield from _target(target, dict(_inherited(target, stages)))


def _all_hashed(command: str) -> bool:
    installs = [part for part in command.split("&&") if "pip install" in part and " -r " in part]
    return all("--require-hashes" in part and "--no-build" in part for part in installs)


def _target(name: str, final: dict[str, str]) -> Iterator[str]:
    user = final.get("USER", "root")
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", user):
        yield f"Dockerfile: {name} runs as {user}; Kubernetes believes only a number that is not 0"
    if final.get("STOPSIGNAL") != "SIGTERM":
        yield f"Dockerfile: {name} is not stopped by SIGTERM, whatever its base says"
    if not re.search(r'CMD \["python", "/app/probe.py"', final.get("HEALTHCHECK", "")):
        yield f"Dockerfile: {name} has no health check that does without a shell"
    if not final.get("ENTRYPOINT", "").startswith('["python", '):
        yield f"Dockerfile: {name}: a shell would get its signals"
    if not final.get("WORKDIR", "").startswith("/app"):
        yield f"Dockerfile: {name} does not find its program"


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        keyword, _, value = line.partition(" ")
        if keyword:
            yield keyword.upper(), value.strip()


def _stages(instructions: list[Instruction]) -> dict[str, tuple[str, list[Instruction]]]:
    stages: dict[str, tuple[str, list[Instruction]]] = {}
    name = ""
    for keyword, value in instructions:
        if keyword == "FROM":
            base, _, name = value.partition(" AS ")
            stages[name] = (base, [])
        elif name:
            stages[name][1].append((keyword, value))
    return stages


def _inherited(name: str, stages: dict[str, tuple[str, list[Instruction]]]) -> list[Instruction]:
    if name not in stages:
        return []
    base, own = stages[name]
    return _inherited(base, stages) + own
