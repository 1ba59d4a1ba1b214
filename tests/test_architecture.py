"""
The architecture of the library: its packages import each other only as the contracts in `pyproject.toml` allow.
"""

from __future__ import annotations

import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = "cosmos_outbox"
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
LAYERS = [
    {name.strip() for name in layer.replace(":", "|").split("|")}
    for layer in CONTRACTS["Inside the library: one package a story, no arrow up"]["layers"]
]
# For each import contract that lets only a few packages import a dependency: the names of these packages.
WALLS = {
    "Only adapters and composition roots know Azure": {
        "adapters.cosmos", "adapters.servicebus",
    },
    "FastAPI is an extra: only its package knows it": {"fastapi"},
}  # fmt: skip
# These two `__init__` modules only re-export names. An import contract cannot list them, because a package there includes all modules
# inside it.
FACES = {LIBRARY, f"{LIBRARY}.adapters"}

GRAPH = grimp.build_graph(LIBRARY, include_external_packages=True, cache_dir=None)
MODULES = {module for module in GRAPH.modules if module.split(".")[0] == LIBRARY}


def package_of(module: str) -> str:
    """
    Return the package that a module of the library belongs to: a child of `cosmos_outbox`, or of `adapters`.
    """
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[0] == "adapters" else parts[:1])


def packages_imported() -> dict[str, set[str]]:
    """Return, for each package, the other packages that it imports."""
    inside = MODULES - FACES
    imports: dict[str, set[str]] = {package_of(module): set() for module in inside}
    for module in inside:
        for imported in GRAPH.find_modules_directly_imported_by(module) & inside:
            imports[package_of(module)].add(package_of(imported))
    return {package: imported - {package} for package, imported in imports.items()}


IMPORTS = packages_imported()


def layer_of(package: str) -> int:
    """Return the number of the layer in which `pyproject.toml` lists a package, counted from the lowest."""
    name = package.split(".", maxsplit=1)[0]
    return next(number for number, layer in enumerate(reversed(LAYERS)) if name in layer)


def test_chains_of_imports_between_packages_are_acyclic_and_at_most_six_long():
    """
    Only folders count towards the length of a chain. A single module at the root, such as `errors`, does not.
    """
    chains: dict[str, tuple[str, ...]] = {}
    for package in TopologicalSorter(IMPORTS).static_order():  # a CycleError names a circle of imports
        below = max((chains[other] for other in IMPORTS[package]), key=len, default=())
        is_folder = (ROOT / LIBRARY / package.replace(".", "/")).is_dir()
        chains[package] = (package, *below) if is_folder else below

    assert len(max(chains.values(), key=len)) <= 6, max(chains.values(), key=len)


def test_no_module_of_the_library_imports_the_public_namespaces():
    """
    `cosmos_outbox` and `cosmos_outbox.adapters` import packages of higher layers. A module that imports them imports those layers too.
    """
    assert set() == {
        module
        for module in MODULES
        for face in FACES
        if face in GRAPH.find_modules_directly_imported_by(module)
    }


def test_a_package_imports_only_from_its_own_or_a_lower_layer():
    upward = {
        f"{package} -> {imported}"
        for package, imports in IMPORTS.items()
        for imported in imports
        if layer_of(imported) > layer_of(package)
    }
    assert set() == upward


def test_the_adapters_do_not_import_each_other():
    adapters = {package for package in IMPORTS if package.startswith("adapters.")}

    assert {} == {package: IMPORTS[package] & adapters for package in adapters if IMPORTS[package] & adapters}


@pytest.mark.parametrize("name", WALLS)
def test_an_import_contract_covers_every_module_that_it_does_not_exempt(name: str):
    covered = (*CONTRACTS[name]["source_modules"], *(f"{LIBRARY}.{package}" for package in WALLS[name]))

    escaped = {
        module
        for module in MODULES - FACES
        if not any(module == package or module.startswith(f"{package}.") for package in covered)
    }
    assert set() == escaped


@pytest.mark.parametrize("name", WALLS)
def test_only_exempt_packages_import_what_an_import_contract_forbids(name: str):
    forbidden = set(CONTRACTS[name]["forbidden_modules"])
    importing = {
        module
        for module in MODULES
        if GRAPH.find_modules_directly_imported_by(module) & forbidden
        and (module in FACES or package_of(module) not in WALLS[name])
    }
    assert set() == importing
