"""
What the linters do not see in the Dockerfile, because it is true of a whole chain of stages, or of this project only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

_ROOT = Path(__file__).parents[2]
# Each target, and the source of the paths that its program serves.
TARGETS = {
    "worker": "cosmos_outbox/service/health_server.py",
    "consumer": "cosmos_outbox/service/health_server.py",
    "api": "examples/contacts/api.py",
}
_TAG = re.compile(r"[^:\s]+(?:/[^:\s]+)*:(?!latest)[\w.-]*\d[\w.-]*(@sha256:[0-9a-f]{64})?")
_SECRET = re.compile(r"(?i)connection_string|password|secret|(account|access)_?key|token")

Instruction = tuple[str, str]
_BASES = _ROOT / "infra/docker/bases/Dockerfile"


def problems(text: str) -> Iterator[str]:
    """
    Yield one line a mistake in the text of a Dockerfile.
    """
    yield from apart(text, _BASES.read_text(encoding="utf-8"))
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
        final = dict(_inherited(target, stages))
        yield from _target(target, final)
        yield from _listening(target, final, *health_of(text, target))
        yield from _copied(target, final, stages)


def apart(text: str, bases: str) -> Iterator[str]:
    """
    Yield the base images of a Dockerfile that are not those for which newer ones are proposed.
    """
    used = set(re.findall(r"^ARG \w+_IMAGE=(.*)$", text, re.MULTILINE))
    watched = set(re.findall(r"^FROM (\S+)", bases, re.MULTILINE))
    for image in sorted(used ^ watched):
        yield f"Dockerfile: {image} is {'built on, and not watched' if image in used else 'watched, and not built on'}"


def health_of(text: str, target: str) -> tuple[str, int]:
    """
    Return the path and the port that a target's health check asks.
    """
    check = dict(_inherited(target, _stages(list(_instructions(text))))).get("HEALTHCHECK", "")
    url = urlsplit(next(iter(re.findall(r'"(http://127\.0\.0\.1[^"]*)"', check)), ""))
    return url.path, url.port or 0


def _listening(name: str, final: dict[str, str], path: str, port: int) -> Iterator[str]:
    command, environment = final.get("CMD", ""), final.get("ENV", "")
    said = re.search(r'"--host", "0\.0\.0\.0", "--port", "(\d+)"', command)
    listens = (
        int(own[1])
        if (own := re.search(r"OUTBOX_HEALTH_PORT=0\.0\.0\.0:(\d+)", environment))
        else int(said[1] if said else 0)
    )
    if not listens:
        yield f"Dockerfile: {name} listens on its loopback, where no probe reaches it"
    if {str(listens), final.get("EXPOSE")} != {str(port)}:
        yield f"Dockerfile: {name} listens on {listens}, exposes {final.get('EXPOSE')} and is asked at {port}"
    if f'"{path}"' not in (_ROOT / TARGETS[name]).read_text(encoding="utf-8"):
        yield f"Dockerfile: {name} serves no {path}"


def _copied(
    name: str, final: dict[str, str], stages: dict[str, tuple[str, list[Instruction]]]
) -> Iterator[str]:
    copies = [value for _, own in stages.values() for keyword, value in own if keyword == "COPY"]
    for source in (part for copy in copies if "--from" not in copy for part in copy.split()[:-1]):
        if not (_ROOT / source).exists():
            yield f"Dockerfile: copies {source}, which does not exist"
    built = re.match(r"--from=(\S+) /app /app$", final.get("COPY", ""))
    # A consumer is named by an argument; the program that runs it is installed.
    started = re.match(r'\["(\w+)[.\w]*:\w+"\]', final.get("CMD", "")) or re.search(
        r'"-m", "(\w+)', final.get("ENTRYPOINT", "")
    )
    module = started[1] if started else ""
    own = stages[built[1]][1] if built and built[1] in stages else []
    if ("COPY", f"{module} /app/{module}") not in own:
        yield f"Dockerfile: {name} starts {module}, which is not copied into it"


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
