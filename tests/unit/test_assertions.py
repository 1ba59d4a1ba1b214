"""
The assertions of the testing kit: which events and messages count as equal, and what a failed assertion says.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import BaseModel

from cosmos_outbox import DomainEvent, Entity
from cosmos_outbox_testing import OutboxHarness, assert_messages, assert_recorded


class Line(BaseModel):
    sku: str
    price: Decimal


class BasketFilled(DomainEvent):
    lines: list[Line]
    gift: bool = False


class BasketPaid(DomainEvent):
    action = "BasketWasPaid"


class Basket(Entity):
    def fill(self, *prices: str) -> Basket:
        self.record(BasketFilled(lines=[Line(sku="pen", price=Decimal(price)) for price in prices]))
        return self

    def pay(self) -> Basket:
        self.record(BasketPaid())
        return self


def filled(*prices: str, gift: bool = False) -> BasketFilled:
    return BasketFilled(lines=[Line(sku="pen", price=Decimal(price)) for price in prices], gift=gift)


def failure_of(basket: Basket, *expected: DomainEvent) -> list[str]:
    with pytest.raises(AssertionError) as failed:
        assert_recorded(basket, *expected)
    return str(failed.value).splitlines()


def test_assert_recorded_accepts_events_with_equal_content():
    assert_recorded(Basket(id="b"))
    assert_recorded(Basket(id="b").fill("1.10", "2").pay(), filled("1.10", "2"), BasketPaid())


def test_a_failed_assertion_names_each_differing_field_with_both_values():
    assert [
        "The events of Basket 'b' are not as expected:",
        "  1. BasketFilled: lines[1].price is Decimal('2'), expected Decimal('3')",
        "  1. BasketFilled: gift is False, expected True",
        "actual:",
        "  1. BasketFilled(lines=[{'sku': 'pen', 'price': Decimal('1')}, {'sku': 'pen', 'price': Decimal('2')}], gift=False)",
    ] == failure_of(Basket(id="b").fill("1", "2"), filled("1", "3", gift=True))


def test_a_failed_assertion_names_missing_and_unexpected_events():
    basket = Basket(id="b").pay().fill("1")
    assert "  1. BasketPaid: not expected" == failure_of(basket, filled("1"))[1]
    assert (
        "  BasketPaid(): missing after 2." == failure_of(basket, BasketPaid(), filled("1"), BasketPaid())[1]
    )
    assert "  none" == failure_of(Basket(id="b"), BasketPaid())[-1]


async def test_assert_messages_compares_all_messages_or_those_of_one_key():
    harness = OutboxHarness()
    for key in ("b", "c"):
        async with harness.outbox.unit_of_work() as uow:
            uow.repository(Basket).create(Basket(id=key)).fill("1.10").pay()
            await uow.commit()
    messages = await harness.relay_all()

    assert_messages(messages, filled("1.10"), BasketPaid(), key="b")
    with pytest.raises(
        AssertionError, match=r"The messages of 'b'(.|\n)*lines\[0\].price is '1.10', expected '1'"
    ):
        assert_messages(messages, filled("1"), BasketPaid(), key="b")
    with pytest.raises(AssertionError, match=r"BasketWasPaid: not expected"):
        assert_messages(messages, filled("1.10"), BasketPaid())
