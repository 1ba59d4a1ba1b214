"""
Whether a job and a pod that the page on deployment tells a reader to make are ones that the platforms take, with settings that exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tools.infra_check.schema import mismatches
from tools.infra_check.variables import lacking, variables_of

_JOB = re.compile(r"^```yaml\n# job\.yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_POD = re.compile(r"kubectl run .*? --labels (\S+) --overrides '(.*?)'$", re.DOTALL | re.MULTILINE)


def problems(page: str) -> Iterator[str]:
    """
    Yield one line a mistake in the recipes of a page.
    """
    jobs, pods = _JOB.findall(page), _POD.findall(page.replace("\\\n", " "))
    if (len(jobs), len(pods)) != (1, 1):
        yield f"recipes: {len(jobs)} jobs and {len(pods)} pods, not one of each"
    for job in jobs:
        yield from (f"recipes: the job: {problem}" for problem in _judged_job(yaml.safe_load(job)))
    for labels, overrides in pods:
        yield from (f"recipes: the pod: {problem}" for problem in _judged_pod(labels, json.loads(overrides)))


def _judged_job(job: dict[str, Any]) -> Iterator[str]:
    yield from mismatches("Microsoft.App/jobs", job)
    (container,) = job["properties"]["template"]["containers"]
    names = {variable["name"] for variable in container["env"]} - {"AZURE_CLIENT_ID"}
    yield from (f"{name} is no setting of the worker" for name in sorted(names - variables_of("worker")))
    yield from lacking("worker", names)
    if job["properties"]["configuration"].get("replicaRetryLimit") != 0:
        yield "is run again where it fails, whatever it did until then"


def _judged_pod(labels: str, overrides: Mapping[str, Any]) -> Iterator[str]:
    spec = overrides["spec"]
    if (labels, spec.get("serviceAccountName")) != ("azure.workload.identity/use=true", "outbox-worker"):
        yield "does not get the worker's identity"
    yield from unrestricted(spec)


def unrestricted(spec: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield why a namespace that enforces the restricted standard refuses a pod.
    """
    of_pod = spec.get("securityContext", {})
    for container in spec["containers"]:
        own = container.get("securityContext", {})
        context = of_pod | own
        kept = {
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "seccompProfile": context.get("seccompProfile", {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities", {}).get("drop") == ["ALL"],
        }
        for name in (name for name, good in kept.items() if not good):
            yield f"its namespace refuses {container['name']} for its {name}"
