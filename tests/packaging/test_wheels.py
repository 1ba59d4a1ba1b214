"""
Tests of what users install: all distributions are built, installed into empty environments, and used there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.packaging.installing import ROOT, Environment, clean_environment, make_environment
from tests.support.effort import LONG
from tests.support.pages import Block, blocks_of, follow
from tests.support.patience import HUNG_SECONDS

pytestmark = [pytest.mark.looptime(False), pytest.mark.system]

PACKAGES = {
    "cosmos_outbox": ROOT,
    "cosmos_outbox_worker": ROOT / "worker",
    "cosmos_outbox_testing": ROOT / "testing",
    "cosmos_outbox_amqp": ROOT / "amqp",
    "cosmos_outbox_emulators": ROOT / "emulators",
}
README = blocks_of((ROOT / "README.md").read_text())
EMULATORS_README = blocks_of((ROOT / "emulators/README.md").read_text())
FASTAPI = blocks_of((ROOT / "docs/how-to/fastapi.md").read_text())
NEW_SERVICE = blocks_of((ROOT / "docs/how-to/test-a-new-service.md").read_text())
TUTORIAL = blocks_of((ROOT / "docs/tutorial/first-message.md").read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The wheel and the source archive (sdist) that were built of one distribution."""

    wheel: Path
    sdist: Path


def build(source: Path, folder: Path) -> Built:
    subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-m", "hatchling", "build", "--directory", folder],
        cwd=source,
        env=clean_environment(),
        check=True,
        capture_output=True,
        timeout=HUNG_SECONDS,
    )
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel=wheel, sdist=sdist)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    return {name: build(source, tmp_path_factory.mktemp(name)) for name, source in PACKAGES.items()}


@pytest.fixture
def guarded() -> Iterator[list[Environment]]:
    """
    Return a list to which a test adds environments. The test fails at its end if a process of one of these environments has
    opened a file of the repository.
    """
    used: list[Environment] = []
    yield used
    assert [] == [path for environment in used for path in environment.opened_in_repository()]


@pytest.fixture(scope="module")
def library(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the library without any extra."""
    return make_environment(tmp_path_factory.mktemp("library"), {built["cosmos_outbox"].wheel: ()})


@pytest.fixture(scope="module")
def emulators(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return a Python environment in which only the wheel of the emulators is installed."""
    return make_environment(
        tmp_path_factory.mktemp("emulators"), {built["cosmos_outbox_emulators"].wheel: ()}
    )


@pytest.fixture(scope="module")
def everything(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the library, the worker, the commands, the emulators, and pytest."""
    wheels = {
        built["cosmos_outbox"].wheel: ("worker",),
        built["cosmos_outbox_worker"].wheel: (),
        built["cosmos_outbox_emulators"].wheel: (),
    }
    return make_environment(tmp_path_factory.mktemp("everything"), wheels, "pytest")


@pytest.fixture(scope="module")
def kit(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the packages that the tests of a service need."""
    wheels = {
        built["cosmos_outbox"].wheel: ("testing",),
        built["cosmos_outbox_testing"].wheel: (),
        built["cosmos_outbox_emulators"].wheel: (),
    }
    return make_environment(tmp_path_factory.mktemp("kit"), wheels, "pytest-asyncio")


def names_in(wheel: Path) -> set[str]:
    return set(ZipFile(wheel).namelist())


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_contains_exactly_the_files_of_its_package(built: dict[str, Built], name: str):
    names = names_in(built[name].wheel)
    package = {
        str(path.relative_to(PACKAGES[name]))
        for path in (PACKAGES[name] / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert package == {path for path in names if not path.startswith(f"{name}-0.1.0.dist-info/")}
    assert {f"{name}/py.typed", f"{name}-0.1.0.dist-info/licenses/LICENSE"} <= names


@pytest.mark.parametrize("name", PACKAGES)
def test_an_sdist_contains_exactly_the_sources_of_its_wheel(
    built: dict[str, Built], name: str, tmp_path: Path
):
    with tarfile.open(built[name].sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    at_top = {path.name for path in source.iterdir()}

    assert {name, "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} == at_top - {
        "CHANGELOG.md",
        ".gitignore",
    }
    again = build(source, tmp_path / "again")
    assert names_in(built[name].wheel) == names_in(again.wheel)


def python_blocks(page: tuple[Block, ...]) -> list[str]:
    return [block.text for block in page if block.info == "python"]


@pytest.mark.parametrize("code", python_blocks(README))
def test_the_code_of_the_readme_needs_only_the_library(library: Environment, guarded, code: str):
    guarded.append(library)
    ran = library.run("-W", "error", "-c", code)

    assert (0, "") == (ran.returncode, ran.stderr)


def test_all_modules_of_the_library_can_be_imported_without_extras(library: Environment, guarded):
    """The test also checks that the library without extras installs no command."""
    guarded.append(library)
    everywhere = "import pkgutil, importlib, cosmos_outbox as o; [importlib.import_module(m.name) for m in "
    names = "pkgutil.walk_packages(o.__path__, 'cosmos_outbox.') if '.fastapi' not in m.name]"
    ran = library.run("-W", "error", "-c", everywhere + names)

    assert (0, "") == (ran.returncode, ran.stderr)
    assert not (library.python.parent / "cosmos-outbox").exists()


BESIDE_THE_LIBRARY = {
    "cosmos_outbox_worker": (),
    "cosmos_outbox_testing": ("cosmos_outbox_emulators",),
    "cosmos_outbox_testing.verify": ("cosmos_outbox_emulators", "cosmos_outbox_worker"),
    "cosmos_outbox_amqp": (),
}


@pytest.mark.parametrize("name", BESIDE_THE_LIBRARY)
def test_a_distribution_needs_only_its_declared_distributions(
    built: dict[str, Built], guarded, tmp_path: Path, name: str
):
    there = {"cosmos_outbox", name.partition(".")[0], *BESIDE_THE_LIBRARY[name]}
    others = tuple(one for one in BESIDE_THE_LIBRARY if one.startswith(f"{name}."))
    environment = make_environment(tmp_path, {built[one].wheel: () for one in there})
    guarded.append(environment)
    ran = environment.run(
        "-c",
        f"import importlib, pkgutil, {name} as own\n"
        f"for module in pkgutil.walk_packages(own.__path__, '{name}.'):\n"
        f"    module.name.endswith('__main__') or module.name.startswith({others}) or importlib.import_module(module.name)\n"
        f"print({{one for one in {[*PACKAGES]} if importlib.util.find_spec(one)}} == {there})",
    )

    assert (0, "True\n") == (ran.returncode, ran.stdout), ran.stderr


def test_the_import_error_without_the_fastapi_extra_names_the_extra(library: Environment, guarded):
    guarded.append(library)
    ran = library.run("-c", "import cosmos_outbox.fastapi")

    assert 1 == ran.returncode
    assert "pip install 'cosmos-outbox[fastapi]'" in ran.stderr.splitlines()[-1]


LEAN_RECEIVER = (
    "from cosmos_outbox_worker import connection; print(connection.lean_receiver().AmqpSubscription)"
)


def test_choosing_the_lean_receiver_without_its_extra_names_the_extra(everything: Environment, guarded):
    guarded.append(everything)
    ran = everything.run("-c", LEAN_RECEIVER)

    assert 1 == ran.returncode
    assert "pip install 'cosmos-outbox[amqp]'" in ran.stderr.splitlines()[-1]


def test_the_error_of_verify_without_its_extra_names_the_extra(everything: Environment, guarded):
    guarded.append(everything)
    ran = everything.run("-m", "cosmos_outbox_worker", "verify")

    assert 3 == ran.returncode
    assert "pip install 'cosmos-outbox[verify]'" in ran.stderr


def test_the_extra_amqp_is_enough_for_the_lean_receiver(built: dict[str, Built], guarded, tmp_path: Path):
    wheels = {
        built["cosmos_outbox"].wheel: ("amqp",),
        built["cosmos_outbox_worker"].wheel: (),
        built["cosmos_outbox_amqp"].wheel: (),
    }
    environment = make_environment(tmp_path, wheels)
    guarded.append(environment)
    ran = environment.run("-W", "error", "-c", LEAN_RECEIVER)

    assert (0, "") == (ran.returncode, ran.stderr)


def test_the_extra_fastapi_is_enough_for_an_application(built: dict[str, Built], guarded, tmp_path: Path):
    environment = make_environment(tmp_path, {built["cosmos_outbox"].wheel: ("fastapi",)})
    guarded.append(environment)
    applications = [*python_blocks(FASTAPI), *(block.text for block in FASTAPI if block.file)]
    for code in applications:
        ran = environment.run("-W", "error", "-c", f"{code}\nassert app.openapi()['paths']")
        assert (0, "") == (ran.returncode, ran.stderr)

    assert 3 == len(applications)


def test_the_installed_command_cosmos_outbox_prints_its_help(everything: Environment, guarded):
    guarded.append(everything)
    commands = [["--help"], ["doctor", "--help"], ["worker", "--help"]]
    for command in commands:
        ran = everything.run(everything.python.with_name("cosmos-outbox"), *command)
        assert (0, "") == (ran.returncode, ran.stderr)
        assert "usage: cosmos-outbox" in ran.stdout.lower()


def test_the_emulators_need_only_their_own_wheel(emulators: Environment, guarded):
    guarded.append(emulators)
    for program in (
        ["-m", "cosmos_outbox_emulators"],
        [emulators.python.with_name("cosmos-outbox-emulators")],
    ):
        ran = emulators.run(*program, "--help")
        assert (0, "") == (ran.returncode, ran.stderr)
        assert "usage: cosmos-outbox-emulators" in ran.stdout


def test_the_readme_of_the_emulators_can_be_followed_with_the_wheels(everything: Environment, guarded):
    guarded.append(everything)
    for code in python_blocks(EMULATORS_README):
        ran = everything.run("-W", "error", "-c", code)
        assert (0, "") == (ran.returncode, ran.stderr)

    assert [] == follow(EMULATORS_README, everything.folder, clean_environment(), everything.python)


def test_the_tutorial_can_be_followed_with_the_wheels(everything: Environment, guarded):
    """The test leaves out the step of the tutorial that installs the packages."""
    guarded.append(everything)
    _install, *blocks = TUTORIAL

    assert [] == follow(blocks, everything.folder, clean_environment(), everything.python)


def test_the_page_on_testing_a_new_service_gives_tests_in_under_50_lines(kit: Environment, guarded):
    """The three tests of the page pass: a test in memory, a test on the emulators, and a test of crashes."""
    guarded.append(kit)
    install, *blocks = NEW_SERVICE
    folder = kit.folder / "new"
    folder.mkdir()

    assert "pip install 'cosmos-outbox[testing]' pytest-asyncio\n" == install.text
    assert [] == follow(blocks, folder, clean_environment(), kit.python)
    *written, _said = NEW_SERVICE
    assert sum(bool(line.strip()) for block in written for line in block.text.splitlines()) < 50


def test_the_tests_of_the_example_project_pass_with_the_test_kit(kit: Environment, guarded):
    """`make test-long` also runs the example's tests on the emulators."""
    guarded.append(kit)
    folder = shutil.copytree(ROOT / "examples/orders", kit.folder / "orders")
    alone = [] if LONG else [f"--ignore={folder}/tests/test_on_the_wire.py"]
    ran = kit.run("-m", "pytest", "-c", folder / "pyproject.toml", folder, *alone)

    assert 0 == ran.returncode, ran.stdout


def test_an_import_from_the_repository_instead_of_the_wheel_is_noticed(library: Environment):
    library.run("-c", "import cosmos_outbox_worker", env={"PYTHONPATH": str(ROOT / "worker")})

    assert any(path.startswith(f"{ROOT}/worker/") for path in library.opened_in_repository())
    library.opened.unlink()
