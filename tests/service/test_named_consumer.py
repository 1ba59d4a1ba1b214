"""
Tests of the argument `package.module:consumer` of `cosmos-outbox consume`: what it may name, and the errors for names that cannot be used.
"""

from __future__ import annotations

import sys

import pytest

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_worker.named_consumer import consumer_named
from tests.service import invoices

MODULE = "tests.service.invoices"


def test_consume_takes_the_name_of_a_consumer_or_of_a_function_that_returns_one():
    assert invoices.consumer is consumer_named(f"{MODULE}:consumer")
    assert invoices.made is consumer_named(f"{MODULE}:made")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (MODULE, "write package.module:consumer"),
        (f"{MODULE}:", "write package.module:consumer"),
        (":consumer", "write package.module:consumer"),
        ("nowhere:consumer", "There is no module 'nowhere'"),
        ("tests.service.nowhere:consumer", "There is no module 'tests.service.nowhere'"),
        (f"{MODULE}:consumr", f"Did you mean {MODULE}:consumer?"),
        (f"{MODULE}:number", "is 3. It has to be a Consumer"),
        (f"{MODULE}:Invoice", "has to be a Consumer"),
        (f"{MODULE}:awaited", "plain function"),
    ],
)
def test_the_error_for_an_unusable_name_of_a_consumer_says_why(name: str, said: str):
    with pytest.raises(ConfigurationError) as refused:
        consumer_named(name)
    assert said in str(refused.value)


def test_a_consumer_s_module_is_found_in_the_working_directory(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in_the_working_directory.py").write_text("def consumer(outbox): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert callable(consumer_named("in_the_working_directory:consumer"))


def test_an_import_error_inside_a_consumer_s_module_is_raised_as_it_is(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "lacks_another.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        consumer_named("lacks_another:consumer")
