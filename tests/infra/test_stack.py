"""
Tests of `docker compose up` on a real Docker engine: `make test-image`. They are skipped, with a message, where there is none.

The stack is that of docker-compose.yml, except that our emulators replace Microsoft's images.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

import pytest

from tests.infra.engine import ROOT, Images, checked, docker_with, wait_until

if not os.environ.get("OUTBOX_TEST_IMAGES"):
    pytest.skip("runs the compose stack: make test-image", allow_module_level=True)

pytestmark = [pytest.mark.looptime(False), pytest.mark.timeout(900)]

COMPOSE = str(ROOT / ".venv-infra/bin/docker-compose")
FILES = ("--file", "docker-compose.yml", "--file", "tests/infra/stack/override.yml")
SERVICES = ("init", "api", "worker", "consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The project of `docker-compose.yml`, which a test starts, stops and looks into."""

    environment: dict[str, str]
    name: str

    def compose(self, *arguments: str) -> str:
        return checked([COMPOSE, "--project-name", self.name, *FILES, *arguments], self.environment)

    def containers(self, service: str) -> list[dict[str, Any]]:
        """Return the engine's description of each container of a service."""
        names = self.compose("ps", "--all", "--quiet", service).split()
        found: list[dict[str, Any]] = json.loads(checked(["docker", "inspect", *names], self.environment))
        return found

    def log(self, service: str) -> str:
        return self.compose("logs", "--no-color", "--no-log-prefix", service)

    def python(self, service: str, program: str, *, index: int = 1) -> str:
        return self.compose("exec", "-T", f"--index={index}", service, "python", "-c", program)

    def send(self, method: str, path: str, body: object = None) -> Message:
        """Send a request to the API from outside of the stack; return the headers of the answer."""
        request = urllib.request.Request(
            f"http://{self.compose('port', 'api', '8000')}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            headers: Message = answer.headers
            return headers

    def answers(self) -> bool:
        try:
            self.send("GET", "/healthz")
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def engine(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with docker_with(images, tmp_path_factory.mktemp("docker")) as environment:
        yield environment


@pytest.fixture(scope="module")
def project(engine: dict[str, str]) -> Iterator[Stack]:
    stack = Stack(environment=engine, name=f"outbox-test-{os.getpid()}")
    try:
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "20")


@pytest.fixture
def stack(project: Stack) -> Stack:
    """
    Start the whole stack. If an earlier test stopped a part of it, the service `init` runs again on the existing containers.
    """
    project.compose("up", "--detach", "--no-build")
    wait_until(project.answers, lambda: project.log("api"))
    return project


def add_contact(stack: Stack) -> str:
    name = {"firstName": "Jane", "lastName": "Doe"}
    body = {"name": name, "email": "jane@example.com", "company": {"companyName": "Contoso"}}
    return stack.send("POST", "/api/contacts", body)["Location"]


def kept_of(stack: Stack) -> dict[str, str]:
    """Return, for each contact, the description that the consumer stored in the directory."""
    program = """
import json, os
from azure.cosmos import CosmosClient
client = CosmosClient.from_connection_string(os.environ["OUTBOX_COSMOS_CONNECTION_STRING"])
container = client.get_database_client("contacts").get_container_client("directory")
# Leave out the documents of the consumer's inbox, which are in the same container.
documents = [each for each in container.read_all_items() if "about" in each.get("data", {})]
print(json.dumps({each["id"]: each["data"]["about"] for each in documents}))
"""
    found: dict[str, str] = json.loads(stack.python("consumer", program))
    return found


def wait_until_kept(stack: Stack, expected: dict[str, str]) -> None:
    """Wait until the directory has the expected description of each contact. `expected` has the descriptions by the URLs of the contacts."""
    wanted = {contact.rpartition("/")[2]: about for contact, about in expected.items()}
    wait_until(
        lambda: wanted.items() <= kept_of(stack).items(),
        lambda: f"{wanted}:\n{stack.log('consumer')}\n{stack.log('worker')}",
    )


def test_no_program_of_the_stack_starts_before_init_has_ended(stack: Stack):
    (init,) = stack.containers("init")
    assert 0 == init["State"]["ExitCode"]
    started = [
        container["State"]["StartedAt"]
        for service in ("api", "worker", "consumer")
        for container in stack.containers(service)
    ]
    assert 4 == len(started)
    assert init["State"]["FinishedAt"] < min(started)


def test_changes_through_the_api_reach_the_consumer_in_order(stack: Stack):
    contacts = [add_contact(stack) for _ in range(3)]
    for contact in contacts:
        for number in range(3):
            stack.send("PUT", f"{contact}/description", {"description": f"change {number}"})
    wait_until_kept(stack, dict.fromkeys(contacts, "change 2"))


@pytest.mark.parametrize("service", ["api", "worker", "consumer"])
def test_each_program_of_the_stack_passes_its_image_s_health_check(stack: Stack, service: str):
    def health() -> list[dict[str, Any]]:
        return [container["State"]["Health"] for container in stack.containers(service)]

    wait_until(lambda: {"healthy"} == {each["Status"] for each in health()}, lambda: json.dumps(health()))


def test_the_two_workers_of_the_stack_share_the_ranges(stack: Stack):
    owners = {container["Id"][:12] for container in stack.containers("worker")}
    assert 2 == len(owners)

    def owning() -> set[str]:
        records = [json.loads(line) for line in stack.log("worker").splitlines() if line.startswith("{")]
        return {
            record["owner"].partition("-")[0] for record in records if record.get("event") == "LeaseMoved"
        }

    wait_until(lambda: owners <= owning(), lambda: stack.log("worker"))


def test_a_worker_takes_over_the_leases_of_a_stopped_worker(stack: Stack):
    first, second = stack.containers("worker")
    checked(["docker", "stop", "--time", "60", first["Id"]], stack.environment)
    contacts = [add_contact(stack) for _ in range(6)]
    for contact in contacts:
        stack.send("PUT", f"{contact}/description", {"description": "without it"})
    wait_until_kept(stack, dict.fromkeys(contacts, "without it"))
    (state,) = [found["State"] for found in stack.containers("worker") if found["Id"] == second["Id"]]
    assert (True, 0) == (state["Running"], state["ExitCode"])


def test_compose_stop_ends_every_program_with_exit_code_0(stack: Stack):
    wait_until(lambda: 2 == stack.log("worker").count("worker.started"), lambda: stack.log("worker"))
    stack.compose("stop")
    assert "refused" not in stack.log("servicebus"), "the emulator takes ten connections"
    codes = {
        (service, container["State"]["ExitCode"])
        for service in SERVICES
        for container in stack.containers(service)
    }
    assert {(service, 0) for service in SERVICES} == codes
