"""
The names that programs import are sorted, complete and from where they say.
"""

from __future__ import annotations

import inspect

import cosmos_outbox
from cosmos_outbox import errors


def test_the_public_names_are_sorted_and_exist():
    assert sorted(set(cosmos_outbox.__all__)) == cosmos_outbox.__all__
    assert [] == [name for name in cosmos_outbox.__all__ if not hasattr(cosmos_outbox, name)]


def test_everything_imported_into_the_package_is_public():
    imported = {
        name
        for name, value in vars(cosmos_outbox).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }
    assert imported == set(cosmos_outbox.__all__)


def test_every_error_is_public_and_says_what_to_do():
    classes = [
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)
    ]
    assert {error.__name__ for error in classes} <= set(cosmos_outbox.__all__)
    for error in classes:
        assert (error.__doc__ or "").strip().endswith((".", "nobody knows.")), error.__name__
        assert error.__name__ in (errors.__doc__ or ""), "the tree in the module's docstring lacks it"
