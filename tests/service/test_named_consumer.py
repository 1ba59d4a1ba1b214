"""`package.module:consumer`: what it may name, and what is said of a name that cannot be used."""

from __future__ import annotations

import sys

import pytest

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_worker.named_consumer import consumer_named
from tests.service import invoices

MODULE = "tests.service.invoices"


def test_a_name_stands_for_a_consumer_or_for_a_function_that_makes_one():
    assert invoices.consumer is consumer_named(f"{MODULE}:consumer")
    assert invoices.made is consumer_named(f"{MODULE}:made")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (MODULE, "say package.module:consumer"),
        (f"{MODULE}:", "say package.module:consumer"),
        (":consumer", "say package.module:consumer"),
        ("nowhere:consumer", "There is no module 'nowhere'"),
        ("tests.service.nowhere:consumer", "There is no module 'tests.service.nowhere'"),
        (f"{MODULE}:consumr", f"Did you mean {MODULE}:consumer?"),
        (f"{MODULE}:number", "is 3, and has to be a Consumer"),
        (f"{MODULE}:Invoice", "has to be a Consumer"),
        (f"{MODULE}:awaited", "plain function"),
    ],
)
def test_a_name_that_cannot_be_used_says_why(name: str, said: str):
    with pytest.raises(ConfigurationError) as refused:
        consumer_named(name)
    assert said in str(refused.value)


def test_a_module_of_the_working_directory_is_found(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in_the_working_directory.py").write_text("def consumer(outbox): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert callable(consumer_named("in_the_working_directory:consumer"))


def test_a_module_that_lacks_another_one_says_which_and_where(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lacks_another.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        consumer_named("lacks_another:consumer")
