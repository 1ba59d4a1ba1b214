"""
Capacity: compute for `cosmos-outbox plan` which resources a load needs. `capacity.toml` has the formulas, which are also printed.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosmos_outbox.errors import UsageError
from cosmos_outbox_worker.cli.output import text_of

_RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
NEEDS: tuple[str, ...] = tuple(_RULES["needs"])
_SIZES = (1, 2, 4, 8, 16)  # the sizes of a Premium namespace, in messaging units
_THREE_DIGITS = 100
_NOTHING: Mapping[str, float] = {}

Figures = dict[str, dict[str, Any]]


def plan_capacity(
    given: Mapping[str, float],
    *,
    measured: Mapping[str, float] = _NOTHING,
    premium: bool = False,
    prices: Mapping[str, Any] | None = None,
) -> tuple[Figures, list[str]]:
    """
    Compute the resources that a load needs. Return the figures by name, each with its formula, and a warning for each limit that the
    load exceeds.

    Args:
        given: the numbers of the load, by the names of the table `[given]` in `capacity.toml`, which has the defaults.
        measured: measured numbers. Each is used only if `given` does not have it. Defaults to none.
        premium: whether the namespace has the tier Premium. Defaults to False: Premium only if Standard cannot take the load.
        prices: prices by the names of the table `[prices]`, and their `currency`. Defaults to none: no costs are computed.

    Raises:
        UsageError: a number is missing, unknown or out of range.
    """
    known = _check_numbers("given", {**measured, **given})
    figures: Figures = {}
    for name, value in known.items():
        basis = "given" if name in given else "measured" if name in measured else "default"
        figures[name] = _figure("", "", basis, value)
    known["asked"], formulas = premium, dict(_RULES["figures"])
    if prices is not None:
        month = f"{prices.get('currency', 'money')}/month"
        known |= _check_numbers("prices", {name: prices[name] for name in prices if name != "currency"})
        formulas |= {name: [unit or month, *rest] for name, (unit, *rest) in _RULES["money"].items()}
    for name, (unit, formula, basis) in formulas.items():
        known[name] = _compute(formula, known)
        figures[name] = _figure(unit, formula, basis, known[name])
    said = {name: number(value) for name, value in known.items()}
    found = [text for holds, text in _RULES["warnings"].items() if _compute(holds, known)]
    return figures, [text.format_map(said) for text in found]


def number(value: float | None) -> str:
    """Format a number for people: rounded to three significant digits, or to an integer if that has more digits."""
    if value is None or isinstance(value, bool):
        return text_of(value)
    return f"{value:.3g}" if value < _THREE_DIGITS and value % 1 else f"{value:,.0f}"


def _check_numbers(table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    rules, prices = _RULES[table], table == "prices"
    if unknown := given.keys() - rules:
        raise UsageError(f"Unknown names in {table}: {', '.join(unknown)}. Known names: {', '.join(rules)}.")
    values = {name: given.get(name, default) for name, (default, _) in rules.items()}
    for name, (default, most) in rules.items():
        some = prices or default == 0 or values[name]
        if type(value := values[name]) not in (int, float) or not some or not 0 <= value <= most:
            option, bound = (name, "from 0") if prices else (f"--{name.replace('_', '-')}", "above 0")
            raise UsageError(f"{option} has to be a number {bound} and at most {most:,}, not {value}.")
    return values


def _compute(formula: str, known: dict[str, Any]) -> Any:
    return eval(formula, _FUNCTIONS, known)  # noqa: S307 - the text of our own file, and numbers


def _figure(unit: str, formula: str, basis: str, value: float | None) -> dict[str, Any]:
    return {"value": value, "unit": unit, "formula": formula, "basis": basis}


def _size(units: float) -> float:
    """
    Return the smallest size of a Premium namespace that has at least this many messaging units. Above the largest size, 16, return the
    next multiple of 16.
    """
    return next((size for size in _SIZES if size >= units), _SIZES[-1] * math.ceil(units / _SIZES[-1]))


_FUNCTIONS = {"__builtins__": {}, "ceil": math.ceil, "max": max, "min": min, "size": _size}
