"""
Tests of `cosmos-outbox events describe`, which writes the AsyncAPI description of a service from its code, without an account or
settings. Also tests of `assert_described` of the test kit, which compares a description with the code.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cosmos_outbox_testing import assert_described
from cosmos_outbox_worker.cli.app import app

pytestmark = pytest.mark.looptime(False)

SHOP = """
from cosmos_outbox import DomainEvent, Entity
from cosmos_outbox.consumer import Consumer


class OfOrder(DomainEvent):
    order_id: str


class OrderPlaced(OfOrder):
    total: int


class Ordered(Entity):
    def place(self) -> None:
        self.record(OrderPlaced(order_id=self.id, total=1))


class Paid(DomainEvent):
    amount: int


consumer = Consumer("shop")


@consumer.on(Paid)
async def paid(event, message, uow): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Write no bytecode: Python compares the times of source and bytecode in whole seconds, and would miss a quick change.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def describe(module: str, *arguments: str, code: int = 0, given: str | None = None, **variables: str) -> str:
    sys.modules.pop(module, None)  # so that the changed file is imported again
    importlib.invalidate_caches()
    environment: dict[str, str | None] = {name: None for name in os.environ if name.startswith("OUTBOX_")}
    command = ["events", "describe", module, *arguments]
    result = CliRunner().invoke(app, command, input=given, env=environment | variables)
    assert code == result.exit_code, (result.output, result.stderr, result.exception)
    return result.stdout or result.stderr


def test_events_describe_reports_a_breaking_change_until_it_is_mended(folder: Path):
    """
    The test writes a first description of a service, makes a breaking change, and mends it with a new schema version.
    """
    shop, file = folder / "shop.py", folder / "asyncapi.json"
    shop.write_text(f"print('imported')\n{SHOP}")  # what the module prints must not be in the description
    file.write_text(describe("shop", OUTBOX_TOPIC="rest", OUTBOX_ROUTES="entity:ordered=orders"))
    described = json.loads(file.read_text())
    assert {"send.orders": "orders", "receive.shop": None} == {
        name: one["address"] for name, one in described["channels"].items()
    }
    assert ["send.orders.OrderPlaced.v1", "receive.shop.Paid.v1"] == [*described["components"]["messages"]]
    again = "shop", "--topic", "rest", "--routes", "entity:ordered=orders"
    assert "asyncapi.json is up to date.\n" == describe(*again, "--check", "asyncapi.json")

    shop.write_text(SHOP.replace("total: int", "amount: int").replace("total=1", "amount=1"))
    broken = describe(*again, "--check", "-", given=file.read_text(), code=1)
    assert "OrderPlaced, total: new events may lack it" in broken
    assert (
        "run cosmos-outbox events describe shop --topic rest --routes entity:ordered=orders > FILE" in broken
    )
    accepted = json.loads(describe(*again, "--check", "asyncapi.json", "--accept", "OrderPlaced", "--json"))
    assert {"breaking": [], "out_of_date": True} == accepted
    with pytest.raises(AssertionError, match="raise schema_version to 2 and add an upcaster from version 1"):
        assert_described("asyncapi.json", *again)

    shop.write_text(
        SHOP.replace("    total: int", "    amount: int\n    schema_version = 2\n    upcasters = {1: dict}")
    )
    assert "is out of date" in describe(*again, "--check", "asyncapi.json")
    assert "is out of date" in describe(*again, "--check", "asyncapi.json", "--exact", code=1)
    file.write_text(describe(*again))
    assert_described(file, *again)


def test_the_command_events_describe_ignores_routes_of_entities_without_source_code(folder: Path):
    """
    `events describe` finds out from the source code which events an entity records. Without the source code, its events count as sent
    to the default topic.
    """
    (folder / "made.py").write_text(f"exec({SHOP!r})")
    described = json.loads(describe("made", "--topic", "rest", "--routes", "entity:ordered=orders"))
    assert ["send.rest", "receive.shop"] == [*described["channels"]]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("nowhere", "There is no module 'nowhere'."),
        ("empty", "empty: the module has no DomainEvent and no Consumer."),
        ("wrong", "wrong: the import raised ZeroDivisionError('division by zero') in"),
        ("lacking", "lacking: the import raised ModuleNotFoundError"),
        ("ends", "ends: the import raised SystemExit(0) in"),
        ("vague", "A class has no JSON Schema: `Vague` is not fully defined"),
    ],
)
def test_events_describe_gives_one_sentence_as_error_for_an_unusable_module(
    folder: Path, module: str, said: str
):
    code = {"empty": "", "wrong": "1 / 0", "lacking": "import nowhere_at_all", "ends": "raise SystemExit(0)"}
    code["vague"] = "from cosmos_outbox import DomainEvent\nclass Vague(DomainEvent):\n    x: 'Later'"
    if module in code:
        (folder / f"{module}.py").write_text(code[module])
    answer = describe(module, code=2)
    assert answer.startswith(said)
    assert 1 == answer.count("\n")


@pytest.mark.parametrize("text", ["asyncapi: 3.0.0", "[]", "{}", '{"operations": {"x": {}}}'])
def test_events_describe_gives_one_sentence_as_error_for_a_file_of_another_kind(folder: Path, text: str):
    (folder / "shop.py").write_text(SHOP)
    answer = describe("shop", "--check", "-", given=text, code=2)
    assert answer.startswith("<stdin> was not written by `events describe`")
    assert 1 == answer.count("\n")
