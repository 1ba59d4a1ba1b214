"""
Tests that the commands of the pages on Azure and Docker use only names that the deployment files declare.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.pages import PAGES, ROOT
from tools.infra_check.programs import variables

DEPLOY = (ROOT / "docs/how-to/deploy.md").read_text()
BICEP = (ROOT / "infra/main.bicep").read_text()
PARAMETERS = json.loads((ROOT / "infra/main.parameters.json").read_text())["parameters"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

# All texts in which the template reads variables that `azd env set` may set, such as "${NAME=default}".
READ = [parameter["value"] for parameter in PARAMETERS.values()]
READ += [
    argument
    for service in yaml.safe_load((ROOT / "azure.yaml").read_text())["services"].values()
    for argument in service["docker"]["buildArgs"]
]
VARIABLES = dict(re.findall(r"\$\{(\w+)=?(.*?)\}", " ".join(READ)))
# The parameters that a deployer has to add to main.parameters.json, with their defaults.
ADDED = {
    name: default
    for name, default in re.findall(r"^param (\w+) \w+(?: = (.*))?$", BICEP, re.MULTILINE)
    if name not in PARAMETERS
}


def unknown_names(page: str) -> set[str]:
    """Return the names that a page's commands use and that no file declares."""
    known = {
        r"azd env set (\w+)": set(VARIABLES),
        r"azd deploy +([a-z]\w*)": set(yaml.safe_load((ROOT / "azure.yaml").read_text())["services"]),
        r"--target (\w+)": set(
            re.findall(r"^FROM \S+ AS (\w+)", (ROOT / "worker/Dockerfile").read_text(), re.MULTILINE)
        ),
        r"--profile (\w+)": {name for service in COMPOSE.values() for name in service.get("profiles", ())},
        r"http://([a-z]+):\d": set(COMPOSE) | {"localhost"},
    }
    return {name for pattern, names in known.items() for name in set(re.findall(pattern, page)) - names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_in_a_command_of_a_page_is_declared(page: Path):
    assert set() == unknown_names(page.read_text())


def test_the_page_s_table_of_options_shows_the_default_of_each_option():
    rows = re.findall(r"^\| `(?:azd env set )?(\w+)[^|]*\|[^|]*\| (.*?) +\|$", DEPLOY, re.MULTILINE)
    told = {name: default.strip("`") for name, default in rows}
    words = {"no address": "", "no ceiling": "", "the account's": "", "none": "''"}
    words["Standard, Premium with `privateNetworking"] = "privateNetworking ? 'Premium' : 'Standard'"

    assert told.keys() >= {"COSMOS_CAPACITY_MODE", "COSMOS_DATA_MAX_THROUGHPUT", "privateNetworking"}
    assert {name: words.get(default, default) for name, default in told.items()} == {
        name: (VARIABLES | ADDED).get(name) for name in told
    }


def test_the_job_of_the_azure_page_runs_once_with_a_worker_s_settings():
    (text,) = re.findall(r"^```yaml\n# job\.yaml\n(.*?)^```$", DEPLOY, re.DOTALL | re.MULTILINE)
    job = yaml.safe_load(text)["properties"]
    (container,) = job["template"]["containers"]
    names = {variable["name"] for variable in container["env"]} - {"AZURE_CLIENT_ID"}

    # The job must not be retried, because a retry would repeat everything that the job did before it failed.
    assert ("Manual", 0) == tuple(job["configuration"][key] for key in ("triggerType", "replicaRetryLimit"))
    assert set() == names - variables("worker").keys()
    assert names >= {
        "OUTBOX_COSMOS_DATABASE",
        "OUTBOX_COSMOS_CONTAINER",
        "OUTBOX_PARKED_CONTAINER",
        "OUTBOX_TOPIC",
    }


def test_each_image_is_pushed_to_the_name_that_the_manifests_pull():
    """
    The page takes the name of the registry from what azd prints, and the manifests want the same name in place of REGISTRY.
    """
    (command,) = re.findall(r"^azd env get-value \w+ENDPOINT \| (.*?) +#.*REGISTRY", DEPLOY, re.MULTILINE)
    images = yaml.safe_load((ROOT / "infra/kubernetes/kustomization.yaml").read_text())["images"]
    pushed = re.findall(r"az acr build -r REGISTRY .* --target (\w+) -t (\S+) ", DEPLOY)
    name = subprocess.run(  # noqa: S603 # the page's own
        ["/bin/sh", "-c", command], input="crtoken.azurecr.io\n", capture_output=True, text=True, check=True
    ).stdout.strip()

    assert {target: "crtoken.azurecr.io/" + tag for target, tag in pushed} == {
        image["name"].rpartition("/")[2]: f"{image['newName']}:{image['newTag']}".replace("REGISTRY", name)
        for image in images
    }


def test_the_deploy_page_s_command_writes_azd_s_outputs_to_azure_env():
    """
    All settings of the cluster come from azd, under azd's names. The command removes quotes, because kustomize would
    keep them.
    """
    (command,) = re.findall(
        r"^azd env get-values \| (.*) > infra/kubernetes/azure\.env$", DEPLOY, re.MULTILINE
    )
    outputs = re.findall(r"^output (\w+)", BICEP, re.MULTILINE)
    printed = "".join(f'{name}="value of {name}"\n' for name in [*outputs, "AZURE_ENV_NAME"])
    due = set(re.findall(r"^(\w+)=", (ROOT / "infra/kubernetes/azure.env").read_text(), re.MULTILINE))
    done = subprocess.run(  # noqa: S603 # the page's own
        ["/bin/sh", "-c", command], input=printed, capture_output=True, text=True, check=True
    )

    assert due >= {"WORKER_CLIENT_ID", "OUTBOX_COSMOS_ENDPOINT", "APPLICATIONINSIGHTS_CONNECTION_STRING"}
    assert sorted(f"{name}=value of {name}" for name in due) == sorted(done.stdout.splitlines())
