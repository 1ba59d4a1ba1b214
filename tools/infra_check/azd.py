"""
Whether `azd up` finds what azure.yaml names: the template, the stages of the Dockerfile, the apps, and the parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tools.infra_check.bicep import Template
from tools.infra_check.deployment import deploy

_ROOT = Path(__file__).parents[2]
_TAG = "azd-service-name"
# What azd itself sets, beside what a person sets.
_OF_A_SERVICE = re.compile(r"SERVICE_(?P<service>[A-Z]+)_(?P<what>IMAGE_NAME|RESOURCE_EXISTS)")
_ENDS = {"IMAGE_NAME": "Image", "RESOURCE_EXISTS": "Exists"}
_VARIABLE = re.compile(r"\$\{(\w+)(?:=[^}]*)?\}")


def problems(templates: Sequence[Template], root: Path = _ROOT) -> list[str]:
    """
    Return one line a mistake in azure.yaml and in the file of parameters.
    """
    project = yaml.safe_load((root / "azure.yaml").read_text(encoding="utf-8"))
    parameters = json.loads((root / "infra/main.parameters.json").read_text(encoding="utf-8"))["parameters"]
    return [
        *judge(project, templates, (root / "infra/docker/Dockerfile").read_text(encoding="utf-8")),
        *misfilled(parameters),
    ]


def judge(project: Mapping[str, Any], templates: Sequence[Template], dockerfile: str) -> Iterator[str]:
    """
    Yield what azure.yaml gets wrong.
    """
    module = f"{project['infra']['path']}/{project['infra']['module']}.bicep"
    if (_ROOT / module).resolve() != templates[0].path.resolve():
        yield f"azure.yaml: provisions {module}, which is not {templates[0].path.name}"
    apps = deploy(templates).of_type("Microsoft.App/containerApps")
    tagged = {app.at("tags", _TAG): app.symbol for app in apps}
    if tagged != {name: name for name in project["services"]}:
        yield f"azure.yaml: deploys {sorted(project['services'])}; the apps are tagged {tagged}"
    for name, service in project["services"].items():
        docker = service.get("docker", {})
        if service.get("host") != "containerapp":
            yield f"azure.yaml: {name} is no container app"
        if not (_ROOT / service["project"] / docker.get("path", "Dockerfile")).is_file():
            yield f"azure.yaml: {name} is built by {docker.get('path')}, which does not exist"
        if docker.get("target") != name or not re.search(rf"^FROM \S+ AS {name}$", dockerfile, re.MULTILINE):
            yield f"azure.yaml: {name} is built from the stage {docker.get('target')}"
        if (_ROOT / service["project"] / docker.get("context", ".")).resolve() != _ROOT:
            yield f"azure.yaml: {name} is not built at the top of the repository, where its sources are"


def misfilled(given: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield the parameters that azd would fill with what it knows of another service.
    """
    for name, entry in given.items():
        variable = _VARIABLE.fullmatch(str(entry["value"]))
        of = _OF_A_SERVICE.fullmatch(variable[1]) if variable else None
        if of is not None and name != f"{of['service'].lower()}{_ENDS[of['what']]}":
            yield f"main.parameters.json: {name} is filled with {of[0]}"
