"""
Tests of the built images on a real container engine: `make test-image`.

They are skipped, with a message, where there is no engine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tests.infra.engine import ROOT, Images, checked, local_bases, wait_until

if not os.environ.get("OUTBOX_TEST_IMAGES"):
    pytest.skip("builds images for minutes: make test-image", allow_module_level=True)

pytestmark = [pytest.mark.looptime(False), pytest.mark.timeout(900)]

# The restrictions under which the images have to work. Kubernetes and Container Apps are told to apply them,
# too.
LOCKED_DOWN = ("--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges")


@contextmanager
def _running(images: Images, image: str, *arguments: str, env: dict[str, str]) -> Iterator[str]:
    name = f"outbox-test-{os.getpid()}-{time.monotonic_ns()}"
    variables = [f"--env={key}={value}" for key, value in env.items()]
    checked([*images.engine.run, "-d", "--name", name, *LOCKED_DOWN, *variables, image, *arguments])
    try:
        yield name
    finally:
        subprocess.run([images.engine.control, "rm", "-f", name], capture_output=True, check=False)  # noqa: S603 # our own


def _logs(images: Images, container: str) -> str:
    command = [images.engine.control, "logs", container]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 # our own
    return done.stdout + done.stderr


def _wait_for_log(images: Images, container: str, text: str) -> None:
    wait_until(
        lambda: text in _logs(images, container), lambda: f"{text!r} is not in:\n{_logs(images, container)}"
    )


def _stopped(images: Images, container: str) -> int:
    images.engine.call("stop", "-t", "50", container)
    return int(images.engine.call("inspect", "--format", "{{.State.ExitCode}}", container))


def _refused(images: Images, container: str, url: str) -> str:
    """
    Return why the image's own probe refuses the answer of a URL, or an empty text if it accepts the answer.
    """
    command = [images.engine.control, "exec", container, "python", "/app/probe.py", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 # our own
    return (done.stdout + done.stderr).strip() or "no answer" if done.returncode else ""


def _probe_of(described: Mapping[str, Any]) -> list[str]:
    # In its description of an image, docker has the health check inside of `Config`, and podman beside it.
    health = described["Config"].get("Healthcheck") or described["Healthcheck"]
    test: list[str] = health["Test"]
    return test


@pytest.fixture
def emulators() -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "cosmos_outbox_emulators", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 # our own
        assert process.stdout is not None
        announced = json.loads(process.stdout.readline())
        yield {
            "OUTBOX_COSMOS_CONNECTION_STRING": announced["cosmos"],
            "OUTBOX_SERVICEBUS_CONNECTION_STRING": announced["servicebus"],
            "OUTBOX_COSMOS_DATABASE": "contacts",
            "OUTBOX_COSMOS_CONTAINER": "data",
            "OUTBOX_LEASE_CONTAINER": "leases",
            "OUTBOX_TOPIC": "events",
        }
        process.terminate()


@pytest.fixture
def provisioned(images: Images, emulators: dict[str, str]) -> dict[str, str]:
    variables = [f"--env={key}={value}" for key, value in emulators.items()]
    checked([*images.engine.run, "--rm", *LOCKED_DOWN, *variables, images.api, "provision"])
    return emulators


@pytest.mark.parametrize("name", ["worker", "consumer", "api"])
def test_an_image_runs_without_privileges_and_has_a_licence_label(images: Images, name: str):
    described = json.loads(images.engine.call("inspect", getattr(images, name)))[0]
    config = described["Config"]
    assert "10001:10001" == config["User"]
    assert "SIGTERM" == config.get("StopSignal") or "15" == config.get("StopSignal")
    assert "MIT" == config["Labels"]["org.opencontainers.image.licenses"]
    assert ["CMD", "python", "/app/probe.py"] == _probe_of(described)[:3], "a shell would be needed"


@pytest.mark.parametrize("name", ["worker", "consumer", "api"])
def test_an_image_contains_no_tests_emulators_or_build_tools(images: Images, name: str):
    program = "import importlib.util as u; print([n for n in ('cosmos_outbox_emulators', 'tests', 'hatchling', 'pip', 'uv') if u.find_spec(n)])"
    command = [*images.engine.run, "--rm", *LOCKED_DOWN, "--entrypoint=python", getattr(images, name)]
    assert "[]" == checked([*command, "-c", program])


@pytest.mark.parametrize("name", ["worker", "consumer", "api"])
def test_an_image_contains_exactly_the_pinned_packages(images: Images, name: str):
    program = (
        "import json, platform; from importlib.metadata import distributions; "
        "print(json.dumps([platform.python_version(), [[d.metadata['Name'], d.version] for d in distributions()]]))"
    )
    command = [*images.engine.run, "--rm", *LOCKED_DOWN, "--entrypoint=python", getattr(images, name)]
    python, held = json.loads(checked([*command, "-c", program]))
    pins = re.findall(
        r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+))? \\$",
        (ROOT / f"requirements/image-{name}.txt").read_text(),
        re.MULTILINE,
    )
    there = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    pinned = {
        (canonicalize_name(package), version)
        for package, version, marker in pins
        if not marker or Marker(marker).evaluate(there)
    }

    found = {(canonicalize_name(package), version) for package, version in held}
    ours = {"cosmos-outbox"} if name == "api" else {"cosmos-outbox", "cosmos-outbox-worker"}
    assert ours == {package for package, _ in found - pinned}
    assert set() == pinned - found


@pytest.mark.parametrize("name", ["worker", "consumer"])
def test_a_program_without_settings_names_all_missing_settings(images: Images, name: str):
    """The program names all missing settings and ends with exit code 2."""
    command = [*images.engine.run, "--rm", *LOCKED_DOWN, getattr(images, name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 # our own
    assert 2 == done.returncode
    for variable in ("OUTBOX_COSMOS_DATABASE", "OUTBOX_COSMOS_ENDPOINT", "OUTBOX_TOPIC"):
        assert variable in done.stderr


def test_a_worker_works_on_a_read_only_file_system(images: Images, provisioned: dict[str, str]):
    """A worker relays on a read-only file system, and drains on SIGTERM with exit code 0."""
    with _running(images, images.worker, env={**provisioned, "OUTBOX_HEALTH_PORT": "18098"}) as container:
        _wait_for_log(images, container, "LeaseMoved")
        assert "" == _refused(images, container, "http://127.0.0.1:18098/livez")
        # Wait until the worker is ready: it may own a lease already, but has no link to the topic yet.
        ready = "http://127.0.0.1:18098/readyz"
        wait_until(lambda: not _refused(images, container, ready), lambda: _refused(images, container, ready))
        assert 0 == _stopped(images, container)
        assert "worker.stopped" in _logs(images, container)


def test_a_consumer_works_on_a_read_only_file_system(images: Images, provisioned: dict[str, str]):
    environment = {**provisioned, "OUTBOX_SUBSCRIPTION": "all", "OUTBOX_PARKED_CONTAINER": "parked"}
    del environment["OUTBOX_LEASE_CONTAINER"]
    with _running(images, images.consumer, env={**environment, "OUTBOX_HEALTH_PORT": "18097"}) as container:
        _wait_for_log(images, container, "consumer.started")
        images.engine.call("exec", container, "python", "/app/probe.py", "http://127.0.0.1:18097/livez")
        assert 0 == _stopped(images, container)
        assert "consumer.stopped" in _logs(images, container)


def test_the_image_s_own_probe_finds_the_api_healthy(images: Images, provisioned: dict[str, str]):
    with _running(images, images.api, "api", "--port", "18099", env=provisioned) as container:
        _wait_for_log(images, container, "http://127.0.0.1:18099")
        probe = ("exec", container, "python", "/app/probe.py")
        images.engine.call(*probe, "http://127.0.0.1:18099/healthz")
        with pytest.raises(AssertionError, match="404"):
            images.engine.call(*probe, "http://127.0.0.1:18099/nowhere")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert 200 == opener.open("http://127.0.0.1:18099/openapi.json", timeout=10).status
        assert 0 == _stopped(images, container)


def test_the_image_of_the_emulators_passes_its_own_health_check(
    images: Images, tmp_path_factory: pytest.TempPathFactory
):
    podman = images.engine.control == "podman"
    bases = local_bases(images.engine, tmp_path_factory.mktemp("bases")) if podman else ()
    tag = "localhost/cosmos-outbox-emulators:test"
    checked([*images.engine.build, "-f", "emulators/Dockerfile", "-t", tag, *bases, "emulators"])
    probe = _probe_of(json.loads(images.engine.call("inspect", tag))[0])
    with _running(images, tag, "--tls", env={}) as container:
        _wait_for_log(images, container, "Ctrl-C stops them")
        images.engine.call("exec", container, *probe[1:])
        assert 0 == _stopped(images, container)
