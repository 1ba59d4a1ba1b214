"""`cosmos-outbox events describe` as a program, without an account, a setting or a connection; and the kit's test of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosmos_outbox_testing import assert_described

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


def describe(folder: Path, *arguments: str, code: int = 0, given: str | None = None, **variables: str) -> str:
    ended = subprocess.run(  # noqa: S603 - this program
        [sys.executable, "-m", "cosmos_outbox_worker", "events", "describe", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **variables},
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert code == ended.returncode, ended.stderr
    return ended.stdout or ended.stderr


def test_a_service_is_described_checked_broken_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shop, file = tmp_path / "shop.py", tmp_path / "asyncapi.json"
    shop.write_text(f"print('imported')\n{SHOP}")  # no part of the description
    file.write_text(describe(tmp_path, "shop", OUTBOX_TOPIC="rest", OUTBOX_ROUTES="entity:ordered=orders"))
    described = json.loads(file.read_text())
    assert {"send.orders": "orders", "receive.shop": None} == {
        name: one["address"] for name, one in described["channels"].items()
    }
    assert ["send.orders.OrderPlaced.v1", "receive.shop.Paid.v1"] == [*described["components"]["messages"]]
    again = "shop", "--topic", "rest", "--routes", "entity:ordered=orders"
    assert "asyncapi.json is up to date.\n" == describe(tmp_path, *again, "--check", "asyncapi.json")

    shop.write_text(SHOP.replace("total: int", "amount: int").replace("total=1", "amount=1"))
    broken = describe(tmp_path, *again, "--check", "-", given=file.read_text(), code=1)
    assert "OrderPlaced, total: new events may lack it" in broken
    assert (
        "run cosmos-outbox events describe shop --topic rest --routes entity:ordered=orders > FILE" in broken
    )
    accepted = json.loads(
        describe(tmp_path, *again, "--check", "asyncapi.json", "--accept", "OrderPlaced", "--json")
    )
    assert {"breaking": [], "out_of_date": True} == accepted
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="raise schema_version to 2 and add an upcaster from version 1"):
        assert_described("asyncapi.json", *again)

    shop.write_text(
        SHOP.replace("    total: int", "    amount: int\n    schema_version = 2\n    upcasters = {1: dict}")
    )
    assert "is out of date" in describe(tmp_path, *again, "--check", "asyncapi.json")
    assert "is out of date" in describe(tmp_path, *again, "--check", "asyncapi.json", "--exact", code=1)
    file.write_text(describe(tmp_path, *again))
    assert_described(file, *again)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("nowhere", "There is no module 'nowhere'."),
        ("empty", "empty: there is no DomainEvent and no Consumer to describe."),
        ("wrong", "wrong: ZeroDivisionError('division by zero') in"),
        ("lacking", "lacking: ModuleNotFoundError"),
        ("ends", "ends: SystemExit(0) in"),
        ("vague", "A class has no JSON Schema: `Vague` is not fully defined"),
    ],
)
def test_a_module_that_cannot_be_described_is_one_sentence(tmp_path: Path, module: str, said: str):
    code = {"empty": "", "wrong": "1 / 0", "lacking": "import nowhere_at_all", "ends": "raise SystemExit(0)"}
    code["vague"] = "from cosmos_outbox import DomainEvent\nclass Vague(DomainEvent):\n    x: 'Later'"
    if module in code:
        (tmp_path / f"{module}.py").write_text(code[module])
    answer = describe(tmp_path, module, code=2)
    assert answer.startswith(said)
    assert 1 == answer.count("\n")


@pytest.mark.parametrize("text", ["asyncapi: 3.0.0", "[]", "{}", '{"operations": {"x": {}}}'])
def test_a_file_that_is_no_description_is_one_sentence(tmp_path: Path, text: str):
    (tmp_path / "shop.py").write_text(SHOP)
    answer = describe(tmp_path, "shop", "--check", "-", given=text, code=2)
    assert answer.startswith("<stdin> is no description that this command wrote")
    assert 1 == answer.count("\n")
