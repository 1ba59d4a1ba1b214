"""
Tests that `azd up` finds everything that azure.yaml names: the template, the images' Dockerfiles, the apps and the parameters.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.infra.deployed.snapshots import deployed

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[2]
PROJECT = yaml.safe_load((ROOT / "azure.yaml").read_text())
BICEP = (ROOT / "infra/main.bicep").read_text()
GIVEN = {
    name: re.fullmatch(r"\$\{(\w+)=?(.*)\}", entry["value"])
    for name, entry in json.loads((ROOT / "infra/main.parameters.json").read_text())["parameters"].items()
}
DECLARED = dict(re.findall(r"^param (\w+) \w+(?: = (.+))?$", BICEP, re.MULTILINE))


def test_each_service_of_azure_yaml_is_a_container_app_of_the_template():
    assert PROJECT["services"].keys() == deployed("defaults").apps().keys()
    assert {"containerapp"} == {service["host"] for service in PROJECT["services"].values()}


@pytest.mark.parametrize("name", PROJECT["services"])
def test_each_service_is_built_from_the_docker_stage_of_its_name(name: str):
    """
    The registry builds the last stage of the Dockerfile, because azd passes arguments but no target.

    So the last stage takes the name of the service as an argument. An operator may also choose the base images.
    """
    service, docker = PROJECT["services"][name], PROJECT["services"][name]["docker"]
    dockerfile = (ROOT / service["project"] / docker["path"]).read_text()
    bases = dict(re.findall(r"^ARG (\w+_IMAGE)=(.*)$", dockerfile, re.MULTILINE))

    assert (ROOT / service["project"] / docker["context"]).samefile(ROOT)
    assert [f"SERVICE={name}", *(f"{base}=${{{base}={image}}}" for base, image in bases.items())] == docker[
        "buildArgs"
    ]
    assert f" AS {name}\n" in dockerfile
    assert "${SERVICE}" == re.findall(r"^FROM (.*)$", dockerfile, re.MULTILINE)[-1]


def test_each_required_parameter_exists_and_is_filled_by_azd():
    of_a_service = {
        name: variable[1]
        for name, variable in GIVEN.items()
        if variable and variable[1].startswith("SERVICE_")
    }

    assert set() == GIVEN.keys() - DECLARED.keys()
    assert {
        f"{name}Exists": f"SERVICE_{name.upper()}_RESOURCE_EXISTS" for name in PROJECT["services"]
    } == of_a_service
    assert {name for name, default in DECLARED.items() if not default} <= GIVEN.keys()


def test_each_parameter_has_the_same_default_with_and_without_azd():
    defaults = {name: variable[2] for name, variable in GIVEN.items() if variable and DECLARED[name]}

    assert {name: DECLARED[name].strip("'") for name in defaults} == defaults


@pytest.mark.parametrize(("told", "provisions"), [("true", 1), ("false", 0), ("", 1)])
def test_azd_deploy_provisions_again_while_an_app_still_runs_a_placeholder(
    tmp_path: Path, told: str, provisions: int
):
    hook = PROJECT["hooks"]["postdeploy"]["posix"]
    (tmp_path / "azd").write_text('#!/bin/sh\necho "$@" >> calls\n')
    (tmp_path / "azd").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PLACEHOLDER_LEFT": told}
    command = [hook["shell"], "-ec", hook["run"]]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)  # noqa: S603 # the hook itself
    calls = tmp_path / "calls"

    assert ["provision --no-state --no-prompt"] * provisions == (
        calls.read_text().splitlines() if calls.exists() else []
    )
