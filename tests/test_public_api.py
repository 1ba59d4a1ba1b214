"""
Tests of the public API: the names that programs import are sorted, complete, and exported by the package that documents them.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import cosmos_outbox
from cosmos_outbox import errors, fastapi
from cosmos_outbox.adapters import cosmos, memory, servicebus


def test_the_public_names_of_the_library_are_sorted_and_exist():
    assert sorted(set(cosmos_outbox.__all__)) == cosmos_outbox.__all__
    assert [] == [name for name in cosmos_outbox.__all__ if not hasattr(cosmos_outbox, name)]


def test_every_name_in_the_library_s_top_package_is_listed_as_public():
    imported = {
        name
        for name, value in vars(cosmos_outbox).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }
    assert imported == set(cosmos_outbox.__all__)


def test_every_error_class_has_a_docstring_and_is_in_the_tree_of_errors():
    """The docstring of `cosmos_outbox.errors` draws the tree of all error classes."""
    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.OutboxError)
    ]
    for error in classes:
        assert (error.__doc__ or "").strip().endswith("."), error.__name__
        assert error.__name__ in (errors.__doc__ or ""), "the tree in the module's docstring lacks it"


@pytest.mark.parametrize(
    "face",
    [cosmos, servicebus, memory, fastapi],
    ids=lambda face: face.__name__.rpartition(".")[2],
)
def test_adapter_and_extra_packages_export_their_public_names_sorted(face: ModuleType):
    public = {
        name for name, value in vars(face).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    # ruff sorts `__all__` in this order, with constants first.
    assert sorted(face.__all__, key=lambda name: (not name.isupper(), name)) == face.__all__
    assert public == set(face.__all__)
    assert [] == [name for name in face.__all__ if not (getattr(face, name).__doc__ or "").strip()]


def test_the_library_and_its_memory_adapters_import_no_vendor_sdk():
    """The library and its memory adapters import neither an Azure SDK nor FastAPI."""
    program = (
        "import sys, cosmos_outbox, cosmos_outbox.adapters.memory;"
        "print({'azure', 'aiohttp', 'fastapi', 'starlette'} & {name.partition('.')[0] for name in sys.modules})"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert "set()" == answer.stdout.strip()


def test_azure_identity_is_not_imported_before_a_program_signs_in():
    program = "import sys, cosmos_outbox_worker.cli.app, cosmos_outbox_worker.main; print('azure.identity' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert "False" == answer.stdout.strip()
