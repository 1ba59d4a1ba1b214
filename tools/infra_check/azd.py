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
# The argument of the Dockerfile that chooses what is built, and the output that tells the hook whether a placeholder was seen.
_CHOOSING = "SERVICE"
_LEFT = "PLACEHOLDER_LEFT"
_ENDS = {"IMAGE_NAME": "Image", "RESOURCE_EXISTS": "Exists"}
_VARIABLE = re.compile(r"\$\{(\w+)(?:=([^}]*))?\}")


def problems(templates: Sequence[Template], root: Path = _ROOT) -> list[str]:
    """
    Return one line a mistake in azure.yaml and in the file of parameters.
    """
    project = yaml.safe_load((root / "azure.yaml").read_text(encoding="utf-8"))
    parameters = json.loads((root / "infra/main.parameters.json").read_text(encoding="utf-8"))["parameters"]
    return [
        *judge(project, templates, (root / "infra/docker/Dockerfile").read_text(encoding="utf-8")),
        *misfilled(parameters),
        *defaulted(parameters, templates[0]),
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
        yield from _built(name, docker, dockerfile)
        if (_ROOT / service["project"] / docker.get("context", ".")).resolve() != _ROOT:
            yield f"azure.yaml: {name} is not built at the top of the repository, where its sources are"
    yield from _provisioned_again(project.get("hooks", {}).get("postdeploy", {}), templates)


def _built(name: str, docker: Mapping[str, Any], dockerfile: str) -> Iterator[str]:
    """
    Yield where a service's image is another's: the registry builds the last stage, for azd tells it arguments and no target.
    """
    arguments = dict(argument.partition("=")[::2] for argument in docker.get("buildArgs", []))
    stages = re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE)
    for stage in {arguments.get(_CHOOSING), docker.get("target", name)} - {name}:
        yield f"azure.yaml: {name} is built from the stage {stage}"
    if name not in stages or re.findall(r"^FROM (.*)$", dockerfile, re.MULTILINE)[-1] != f"${{{_CHOOSING}}}":
        yield f"azure.yaml: {name} is built from the last stage of the Dockerfile, which {_CHOOSING} does not choose"
    for image, default in re.findall(r"^ARG (\w+_IMAGE)=(.*)$", dockerfile, re.MULTILINE):
        if arguments.get(image) != (expected := f"${{{image}={default}}}"):
            yield f"azure.yaml: {name} is built on {arguments.get(image)}, not {expected}: an operator cannot choose another registry"


def _provisioned_again(hook: Mapping[str, Any], templates: Sequence[Template]) -> Iterator[str]:
    """
    Yield why an app keeps what only its placeholder needs: the template is not deployed again once its image is.
    """
    if _LEFT not in deploy(templates).outputs:
        yield f"{templates[0].path.name}: tells no {_LEFT}, so the hook after a deployment cannot know of placeholders"
    for system, variable in (("posix", f"${_LEFT}"), ("windows", f"$env:{_LEFT}")):
        run = hook.get(system, {}).get("run", "")
        if not re.search(rf"{re.escape(variable)}\b.* azd provision --no-state --no-prompt\b", run):
            yield f"azure.yaml: on {system} nothing is provisioned again after a deployment: the API keeps the placeholder's port"


def misfilled(given: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield the parameters that azd would fill with what it knows of another service.
    """
    for name, entry in given.items():
        variable = _VARIABLE.fullmatch(str(entry["value"]))
        of = _OF_A_SERVICE.fullmatch(variable[1]) if variable else None
        if of is not None and name != f"{of['service'].lower()}{_ENDS[of['what']]}":
            yield f"main.parameters.json: {name} is filled with {of[0]}"


def defaulted(given: Mapping[str, Any], main: Template) -> Iterator[str]:
    """
    Yield the parameters that have one default with azd and another one without.
    """
    for name, entry in given.items():
        variable, declared = _VARIABLE.fullmatch(str(entry["value"])), main.parameters.get(name)
        if variable is None or declared is None or declared.default is None:
            continue
        expected = declared.default.value
        if str(variable[2]) != (str(expected).lower() if isinstance(expected, bool) else str(expected)):
            yield f"main.parameters.json: {name} is {variable[2]} with azd and {expected} without"
