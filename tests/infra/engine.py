"""
Finds a container engine for the tests, and builds the images with it.

The engine is docker, or buildah with podman as root. The latter is for machines without a registry: the base images are then
made from Debian's packages and from the `uv` wheel, and a docker engine is started for the tests of the compose stack.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PATIENCE_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The commands that build and run images, with the arguments that this machine needs."""

    build: tuple[str, ...]
    run: tuple[str, ...]
    control: str

    def call(self, *arguments: str) -> str:
        return checked([self.control, *arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The engine and the tags of the images that it built."""

    engine: Engine
    worker: str
    consumer: str
    api: str


def checked(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command that has to succeed, and return what it prints. If it fails, fail the test with its output."""
    done = subprocess.run(  # noqa: S603 # commands of the tests
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def wait_until(fact: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """
    Wait until a condition is true. Fail with the message of `otherwise` if it does not become true in time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fact():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.2)


def find_engine() -> Engine:
    # A running docker is preferred, because a second docker engine beside it would write the same firewall rules.
    if shutil.which("docker") and _answers():
        return Engine(build=("docker", "build"), run=("docker", "run", "--network=host"), control="docker")
    if shutil.which("buildah") and shutil.which("podman") and shutil.which("runc") and os.geteuid() == 0:
        # In a sandbox, podman's default limits may be higher than the sandbox allows.
        limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
        return Engine(
            build=(
                "buildah",
                "bud",
                "--isolation=chroot",
                "--layers",
                "--force-rm",
                "--network=host",
                "--format=docker",
                "--timestamp=0",
            ),
            run=("podman", "--runtime=runc", "run", "--network=host", *limits),
            control="podman",
        )
    pytest.skip("NOT VERIFIED: no container engine here (buildah, podman and runc as root; or docker)")


def _answers(environment: Mapping[str, str] | None = None) -> bool:
    docker = ["docker", "info"]
    return 0 == subprocess.run(docker, env=environment, capture_output=True, check=False).returncode  # noqa: S603 # our own


def build_images(scratch: Path) -> Images:
    """Build the images with the engine of this machine, or skip the tests if there is none."""
    os.environ.setdefault("STORAGE_DRIVER", "overlay")
    engine = find_engine()
    bases = local_bases(engine, scratch) if engine.control == "podman" else ()
    built = {name: f"localhost/cosmos-outbox-{name}:test" for name in ("worker", "consumer", "api")}
    for name, tag in built.items():
        checked(build_command(engine, name, tag, bases))
    return Images(engine=engine, **built)


def build_command(engine: Engine, target: str, tag: str, arguments: tuple[str, ...]) -> list[str]:
    return [*engine.build, "-f", "worker/Dockerfile", "--target", target, "-t", tag, *arguments, "."]


def local_bases(engine: Engine, scratch: Path) -> tuple[str, ...]:
    """Make stand-ins for the two base images of `worker/Dockerfile`. Only the interpreter differs: it is Debian's Python 3.11."""
    python, uv = "localhost/outbox-python-base:test", "localhost/outbox-uv-base:test"
    if not engine.call("images", "-q", python):
        if not shutil.which("mmdebstrap"):
            pytest.skip("NOT VERIFIED: no mmdebstrap to make a base image with")
        system = scratch / "system.tar"
        checked(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                "--include=python3,python3-venv,ca-certificates",
                f"--customize-hook=copy-in {CERTIFICATES} {CERTIFICATES.parent}",
                '--customize-hook=ln -sf python3 "$1/usr/bin/python"',
                "bookworm",
                str(system),
            ]
        )
        engine.call("import", "-q", "--change", f"ENV SSL_CERT_FILE={CERTIFICATES}", str(system), python)
    binary = scratch / "uv"
    checked([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(scratch / "w"), "uv"])
    shutil.copy(scratch / "w" / "bin" / "uv", binary)
    (scratch / "Dockerfile").write_text("FROM scratch\nCOPY uv /uv\n")
    checked([*engine.build, "-t", uv, str(scratch)])
    return ("--pull=never", f"--build-arg=PYTHON_IMAGE={python}", f"--build-arg=UV_IMAGE={uv}")


@contextmanager
def docker_with(images: Images, scratch: Path) -> Iterator[dict[str, str]]:
    """
    Yield an environment in which the docker client finds an engine that has the images.

    Podman cannot be that engine: without systemd it runs no health checks, and compose waits for them.
    """
    if images.engine.control == "docker":
        yield dict(os.environ)
        return
    daemon = shutil.which("dockerd")
    if daemon is None:
        pytest.skip("NOT VERIFIED: no Docker engine for the compose stack (Debian: docker.io)")
    # Give containers the address of a proxy that does not work, as on a machine behind a proxy. Programs in
    # the stack must reach each other without it, because a proxy cannot resolve the names of a compose
    # network.
    proxies = {"default": {"httpProxy": "http://127.0.0.1:1", "httpsProxy": "http://127.0.0.1:1"}}
    (scratch / "config.json").write_text(json.dumps({"proxies": proxies}))
    environment = {
        **os.environ,
        "DOCKER_HOST": f"unix://{scratch}/socket",
        "DOCKER_CONFIG": str(scratch),
    }
    settings = {
        "data-root": str(scratch / "data"),
        "exec-root": str(scratch / "exec"),
        "pidfile": str(scratch / "pid"),
        "hosts": [environment["DOCKER_HOST"]],
        "bridge": "none",  # the machine's own docker engine, if there is one, uses the default bridge
    }
    (scratch / "daemon.json").write_text(json.dumps(settings))
    command = [daemon, "--config-file", str(scratch / "daemon.json")]
    with (
        (scratch / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,  # noqa: S603 # our own
    ):
        try:
            wait_until(lambda: _answers(environment), (scratch / "log").read_text)
            for image in (images.worker, images.consumer, images.api):
                archive = str(scratch / "image.tar")
                images.engine.call("save", "--quiet", "--format=docker-archive", "--output", archive, image)
                checked(["docker", "load", "--quiet", "--input", archive], environment)
                Path(archive).unlink()
            yield environment
        finally:
            process.terminate()
    # Delete the engine's data of about a gigabyte: pytest would keep the folder for the next three runs.
    shutil.rmtree(scratch / "data", ignore_errors=True)
