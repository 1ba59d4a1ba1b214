"""The words of the command: help, tables, and the reference page, which `UPDATE_REFERENCE=1` writes anew."""

from __future__ import annotations

import os
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cosmos_outbox_worker.cli.app import app
from cosmos_outbox_worker.cli.output import answer, table_of
from cosmos_outbox_worker.doctor import check

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from commands(inner, f"{name} {part}")
    else:
        yield name, command


def described(name: str, command: Any) -> str:
    arguments = [str(one.name).upper() for one in command.params if one.param_type_name == "argument"]
    help_text = [textwrap.fill(paragraph, 120) for paragraph in str(command.help).splitlines()]
    lines = [f"### `{' '.join([name, *arguments])}`", "", *help_text, ""]
    rows = []
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        if parameter.param_type_name == "argument":
            names = [str(parameter.name).upper()]
        shown = ", ".join(f"`{option}`" for option in names)
        text = str(getattr(parameter, "help", "") or "")
        if parameter.required:
            text += " Required."
        elif parameter.show_default and parameter.default not in (None, False, ""):
            text += f" Default: {parameter.default}."
        rows.append(f"| {shown} | {text.strip()} |")
    return "\n".join([*lines, *(["| Option | Meaning |", "|---|---|", *rows, ""] if rows else [])])


def replaced(begin: str, end: str, text: str) -> None:
    """Compare a part of the page with what it should be, or write it anew."""
    before, found, rest = PAGE.read_text().partition(begin)
    generated, closed, after = rest.partition(end)
    assert found
    assert closed
    if os.environ.get("UPDATE_REFERENCE"):
        PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
    else:
        assert text == generated.strip(), "run this test with UPDATE_REFERENCE=1"


def test_the_page_names_every_check_with_its_question():
    words = tomllib.loads(Path(check.__file__).with_name("checks.toml").read_text())
    rows = [
        f"| {name} | {one['severity']} | {one['question']} |"
        for name, parts in words.items()
        for one in parts.values()
    ]
    replaced(
        "<!-- checks: begin -->",
        "<!-- checks: end -->",
        "\n".join(["| Check | Severity | Question |", "|---|---|---|", *rows]),
    )


def test_the_page_names_every_command_and_option():
    root = typer.main.get_command(app)
    text = "\n".join(described(name, command) for name, command in commands(root, "cosmos-outbox")).rstrip()
    replaced(BEGIN, END, text)


def test_every_command_can_speak_json():
    without = [
        name
        for name, command in commands(typer.main.get_command(app), "cosmos-outbox")
        if "--json" not in [option for parameter in command.params for option in parameter.opts]
    ]
    assert ["cosmos-outbox worker", "cosmos-outbox consume"] == without, "they log"


def test_every_command_that_changes_something_asks_or_takes_yes():
    asking = {
        name
        for name, command in commands(typer.main.get_command(app), "cosmos-outbox")
        if "--yes" in [option for parameter in command.params for option in parameter.opts]
    }
    assert {
        "cosmos-outbox leases reset",
        "cosmos-outbox parked park",
        "cosmos-outbox parked release",
        "cosmos-outbox parked drop",
        "cosmos-outbox parked purge",
        "cosmos-outbox replay",
    } == asking


def test_a_table_in_a_pipe_is_as_wide_as_what_it_holds(capsys: pytest.CaptureFixture[str]):
    answer({}, table_of([{"key": "x" * 300}]), as_json=False)
    assert "x" * 300 in capsys.readouterr().out
