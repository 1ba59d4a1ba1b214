"""
What the pages tell a reader to type on Azure and with Docker is named as the files that those commands read name it.
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

# Name and default of what `azd env set` sets: "${NAME=default}".
READ = [parameter["value"] for parameter in PARAMETERS.values()]
READ += [
    argument
    for service in yaml.safe_load((ROOT / "azure.yaml").read_text())["services"].values()
    for argument in service["docker"]["buildArgs"]
]
VARIABLES = dict(re.findall(r"\$\{(\w+)=?(.*?)\}", " ".join(READ)))
# Name and default of what has to be added to main.parameters.json.
ADDED = {
    name: default
    for name, default in re.findall(r"^param (\w+) \w+(?: = (.*))?$", BICEP, re.MULTILINE)
    if name not in PARAMETERS
}


def unknown_names(page: str) -> set[str]:
    """Return what a page names in commands and that no file declares."""
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
def test_every_name_in_a_command_is_declared(page: Path):
    assert set() == unknown_names(page.read_text())


@pytest.mark.parametrize(
    "command",
    [
        "azd env set COSMOS_MODE autoscale",
        "azd deploy subscriber",
        "az acr build -f worker/Dockerfile --target workers .",
        "docker compose --profile tracing up",
        "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:18890 docker compose up",
    ],
)
def test_a_name_that_nothing_declares_is_noticed(command: str):
    assert 1 == len(unknown_names(command))


def test_what_can_be_chosen_is_there_with_the_default_that_the_table_tells():
    rows = re.findall(r"^\| `(?:azd env set )?(\w+)[^|]*\|[^|]*\| (.*?) +\|$", DEPLOY, re.MULTILINE)
    told = {name: default.strip("`") for name, default in rows}
    words = {"no address": "", "none": "''"}

    assert told.keys() >= {"COSMOS_CAPACITY_MODE", "COSMOS_DATA_MAX_THROUGHPUT", "privateNetworking"}
    assert {name: words.get(default, default) for name, default in told.items()} == {
        name: (VARIABLES | ADDED).get(name) for name in told
    }


def test_every_parameter_that_the_page_names_is_one_of_the_template():
    named = set(re.findall(r"`([a-z]+[A-Z]\w*)`", DEPLOY))

    assert named >= {"privateNetworking", "operatorPrincipalIds"}
    assert set() == named - ADDED.keys()


def test_what_a_job_and_a_pod_run_is_a_command_with_its_options():
    """Their arguments are lists, which no other test takes for a command."""
    reference = (ROOT / "docs/reference/cli.md").read_text()
    lists = re.findall(r"\[(?:\"cosmos-outbox\", )?(\"?parked[^]]*)\]", DEPLOY)
    sections = {part.partition("`")[0]: part for part in reference.split("### `cosmos-outbox ")[1:]}
    runs = [[word.strip(' "') for word in given.split(",")] for given in lists]

    assert 2 == len(runs)
    for command, action, *options in runs:
        section = next(part for name, part in sections.items() if name.startswith(f"{command} {action}"))
        assert [] == [one for one in options if one.startswith("-") and f"`{one}`" not in section]


def test_the_job_runs_once_with_settings_that_a_worker_reads():
    (text,) = re.findall(r"^```yaml\n# job\.yaml\n(.*?)^```$", DEPLOY, re.DOTALL | re.MULTILINE)
    job = yaml.safe_load(text)["properties"]
    (container,) = job["template"]["containers"]
    names = {variable["name"] for variable in container["env"]} - {"AZURE_CLIENT_ID"}

    # Whatever it did until it failed would be done again.
    assert ("Manual", 0) == tuple(job["configuration"][key] for key in ("triggerType", "replicaRetryLimit"))
    assert set() == names - variables("worker").keys()
    assert names >= {
        "OUTBOX_COSMOS_DATABASE",
        "OUTBOX_COSMOS_CONTAINER",
        "OUTBOX_PARKED_CONTAINER",
        "OUTBOX_TOPIC",
    }


def test_the_pod_has_the_workers_identity_and_is_one_that_its_namespace_lets_in():
    """The namespace enforces the restricted standard."""
    pod = r"kubectl run .*? --labels (\S+) --overrides '(.*?)'$"
    ((labels, overrides),) = re.findall(pod, DEPLOY.replace("\\\n", " "), re.DOTALL | re.MULTILINE)
    spec = json.loads(overrides)["spec"]
    (container,) = spec["containers"]

    assert ("azure.workload.identity/use=true", "outbox-worker") == (labels, spec["serviceAccountName"])
    assert {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }.items() <= (spec.get("securityContext", {}) | container["securityContext"]).items()


def test_the_ports_of_the_compose_stack_are_published():
    named = set(re.findall(r"http://127\.0\.0\.1:(\d+)", DEPLOY))
    published = {port.split(":")[1] for service in COMPOSE.values() for port in service.get("ports", ())}

    assert named >= {"8000"}
    assert set() == named - published


def test_the_page_asks_for_the_azd_that_the_project_requires():
    required = yaml.safe_load((ROOT / "azure.yaml").read_text())["requiredVersions"]["azd"]

    assert [required.removeprefix(">= ")] == re.findall(r"`azd` (\S+) or newer", DEPLOY)


def test_no_command_of_the_page_is_due_after_a_deployment():
    """
    What is to be provisioned again, once the images are there, is provisioned by the hook of azure.yaml.
    """
    blocks = re.findall(r"^```sh no-run\n(.*?)^```", DEPLOY, re.MULTILINE | re.DOTALL)
    deployments = [block for block in blocks if re.search(r"^azd (up|deploy)", block, re.MULTILINE)]
    after = [re.split(r"^azd (?:up|deploy)", block, flags=re.MULTILINE)[1] for block in deployments]

    assert 3 == len(deployments)
    assert not [block for block in after if "azd provision" in block]


def test_each_image_of_the_manifests_is_pushed_where_they_pull_it():
    """
    The page takes the registry's name from what azd prints, and it is what the manifests want for REGISTRY.
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


def test_what_azd_prints_becomes_the_clusters_settings_by_the_pages_own_command():
    """
    All that is due comes from azd, in the names it has there, and no quote is left for kustomize to keep.
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
