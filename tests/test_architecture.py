"""
The layout: how packages of the library import each other, computed from the code beside what `pyproject.toml` declares.
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
# Each contract about what some packages alone may import, and these packages.
WALLS = {
    "Only adapters and composition roots know Azure": {
        "adapters.cosmos", "adapters.servicebus",
    },
    "FastAPI is an extra: only its package knows it": {"fastapi"},
}  # fmt: skip
# They hold names only. The contracts cannot list them, for a package in one stands for all that is inside.
FACES = {LIBRARY, f"{LIBRARY}.adapters"}

GRAPH = grimp.build_graph(LIBRARY, include_external_packages=True, cache_dir=None)
MODULES = {module for module in GRAPH.modules if module.split(".")[0] == LIBRARY}


def package_of(module: str) -> str:
    """Return the package of the library that a module is in: a child of the root, or of `adapters`."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[0] == "adapters" else parts[:1])


def packages_imported() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    inside = MODULES - FACES
    imports: dict[str, set[str]] = {package_of(module): set() for module in inside}
    for module in inside:
        for imported in GRAPH.find_modules_directly_imported_by(module) & inside:
            imports[package_of(module)].add(package_of(imported))
    return {package: imported - {package} for package, imported in imports.items()}


IMPORTS = packages_imported()


def layer_of(package: str) -> int:
    """Return the number of the layer that `pyproject.toml` puts a package in, from the lowest."""
    name = package.split(".", maxsplit=1)[0]
    return next(number for number, layer in enumerate(reversed(LAYERS)) if name in layer)


def test_packages_import_each_other_without_a_circle_and_six_deep_at_most():
    """A package is a folder: a module of the root, as `errors`, passes a chain on and makes it no longer."""
    chains: dict[str, tuple[str, ...]] = {}
    for package in TopologicalSorter(IMPORTS).static_order():  # a CycleError names a circle
        below = max((chains[other] for other in IMPORTS[package]), key=len, default=())
        is_folder = (ROOT / LIBRARY / package.replace(".", "/")).is_dir()
        chains[package] = (package, *below) if is_folder else below

    assert len(max(chains.values(), key=len)) <= 6, max(chains.values(), key=len)


def test_no_module_of_the_library_imports_a_face_of_the_library():
    """A face imports what is above its importer, too."""
    assert set() == {
        module
        for module in MODULES
        for face in FACES
        if face in GRAPH.find_modules_directly_imported_by(module)
    }


def test_a_package_imports_its_own_or_lower_layers_only():
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
def test_every_module_is_under_the_contract_or_may_import_what_it_forbids(name: str):
    covered = (*CONTRACTS[name]["source_modules"], *(f"{LIBRARY}.{package}" for package in WALLS[name]))

    escaped = {
        module
        for module in MODULES - FACES
        if not any(module == package or module.startswith(f"{package}.") for package in covered)
    }
    assert set() == escaped


@pytest.mark.parametrize("name", WALLS)
def test_no_other_module_imports_what_a_contract_forbids(name: str):
    forbidden = set(CONTRACTS[name]["forbidden_modules"])
    importing = {
        module
        for module in MODULES
        if GRAPH.find_modules_directly_imported_by(module) & forbidden
        and (module in FACES or package_of(module) not in WALLS[name])
    }
    assert set() == importing
