"""
Capacity: what a load asks of stores, broker and workers. What is printed beside a figure computed it: `capacity.toml` has the formulas.
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
    Return the figures for a load, by their names, each with its formula. Return also what is not possible, with a remedy.

    Args:
        given: the load, by the names of `[given]`, which has what is left out.
        measured: of the load, where it is not given. Defaults to nothing.
        premium: the namespace is of this tier. Defaults to where Standard does not take the load.
        prices: by the names of `[prices]`, and their `currency`. Defaults to none: nothing is said of money.

    Raises:
        UsageError: a number is missing, unknown, or makes no sense.
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
    """Return a number as people read it: rounded to three significant digits, or to an integer if that is longer."""
    if value is None or isinstance(value, bool):
        return text_of(value)
    return f"{value:.3g}" if value < _THREE_DIGITS and value % 1 else f"{value:,.0f}"


def _check_numbers(table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    rules, prices = _RULES[table], table == "prices"
    if unknown := given.keys() - rules:
        raise UsageError(f"There are no {table} {', '.join(unknown)}, only {', '.join(rules)}.")
    values = {name: given.get(name, default) for name, (default, _) in rules.items()}
    for name, (default, most) in rules.items():
        some = prices or default == 0 or values[name]
        if type(value := values[name]) not in (int, float) or not some or not 0 <= value <= most:
            option, least = (name, "from 0") if prices else (f"--{name.replace('_', '-')}", "above 0")
            raise UsageError(f"{option} has to be a number {least} and at most {most:,}, not {value}.")
    return values


def _compute(formula: str, known: dict[str, Any]) -> Any:
    return eval(formula, _FUNCTIONS, known)  # noqa: S307 - the text of our own file, and numbers


def _figure(unit: str, formula: str, basis: str, value: float | None) -> dict[str, Any]:
    return {"value": value, "unit": unit, "formula": formula, "basis": basis}


def _size(units: float) -> float:
    """Return the smallest size of a Premium namespace that suffices, in messaging units, or several of the largest."""
    return next((size for size in _SIZES if size >= units), _SIZES[-1] * math.ceil(units / _SIZES[-1]))


_FUNCTIONS = {"__builtins__": {}, "ceil": math.ceil, "max": max, "min": min, "size": _size}
