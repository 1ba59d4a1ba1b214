"""
Tests of the help texts and tables of the CLI, and of its reference page: docs/reference/cli.md agrees with the code. With
`UPDATE_REFERENCE=1` the tests rewrite the page.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from cosmos_outbox_worker.cli.app import app
from cosmos_outbox_worker.cli.output import answer, table_of
from cosmos_outbox_worker.doctor import check
from cosmos_outbox_worker.exit_codes import WORST_FIRST, ExitCode
from tests.support.patience import HUNG_SECONDS

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from commands(command.load(part) if hasattr(command, "load") else inner, f"{name} {part}")
    else:
        yield name, command


def rows_of(command: Any) -> dict[str, str]:
    """Return a row of the reference page for each argument and option of a command, under its name."""
    rows = {}
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
        rows[names[0]] = f"| {shown} | {text.strip()} |"
    return rows


def described(name: str, command: Any, shared: set[str]) -> str:
    arguments = [str(one.name).upper() for one in command.params if one.param_type_name == "argument"]
    help_text = [textwrap.fill(paragraph, 120) for paragraph in str(command.help).splitlines()]
    lines = [f"### `{' '.join([name, *arguments])}`", "", *help_text, ""]
    rows = rows_of(command)
    own = [row for row in rows.values() if row not in shared]
    also = ", ".join(f"`{option}`" for option, row in rows.items() if row in shared and option != "--json")
    table = ["| Option | Meaning |", "|---|---|", *own, ""] if own else []
    return "\n".join([*lines, *table, *([f"More options: {also}.", ""] if also else [])])


def replaced(begin: str, end: str, text: str) -> None:
    """
    Compare the part of the page between two comments with the expected text. With `UPDATE_REFERENCE=1`, write the text there.
    """
    before, found, rest = PAGE.read_text().partition(begin)
    generated, closed, after = rest.partition(end)
    assert found
    assert closed
    if os.environ.get("UPDATE_REFERENCE"):
        PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
    else:
        assert text == generated.strip(), "run this test with UPDATE_REFERENCE=1"


def test_the_reference_page_lists_every_check_of_doctor():
    words = tomllib.loads(Path(check.__file__).with_name("checks.toml").read_text())
    questions: dict[tuple[str, str], list[str]] = {}
    for name, parts in words.items():
        for one in parts.values():
            questions.setdefault((name, one["severity"]), []).append(one["question"])
    rows = [f"| {name} | {severity} | {' '.join(asked)} |" for (name, severity), asked in questions.items()]
    replaced(
        "<!-- checks: begin -->",
        "<!-- checks: end -->",
        "\n".join(["| Check | Severity | Question |", "|---|---|---|", *rows]),
    )


def test_the_reference_page_lists_every_command_and_option():
    root = typer.main.get_command(app)
    named = dict(commands(root, "cosmos-outbox"))
    times = Counter(row for command in named.values() for row in rows_of(command).values())
    shared = {row for row in times if times[row] > 1 and row.startswith("| `--")}
    title = "All commands but `worker` and `consume` take `--json`. Each command's section names its other options."
    table = [title, "", "| Option | Meaning |", "|---|---|", *sorted(shared), ""]
    text = "\n".join([*table, *(described(name, command, shared) for name, command in named.items())])
    replaced(BEGIN, END, text.rstrip())


def test_every_command_but_worker_and_consume_has_the_option_json():
    without = [
        name
        for name, command in commands(typer.main.get_command(app), "cosmos-outbox")
        if "--json" not in [option for parameter in command.params for option in parameter.opts]
    ]
    assert ["cosmos-outbox worker", "cosmos-outbox consume"] == without, "they log"


def test_commands_that_change_something_take_yes_as_confirmation():
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


def test_the_reference_page_lists_every_exit_code():
    rows = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    replaced(
        "<!-- exit codes: begin -->",
        "<!-- exit codes: end -->",
        "\n".join(["| Exit code | Meaning |", "|---|---|", *rows]),
    )
    assert {*WORST_FIRST} == {*ExitCode}


def test_a_command_prints_a_table_to_a_pipe_as_lines_with_tabs(capsys: pytest.CaptureFixture[str]):
    rows = [{"key": "x" * 300, "parked_at": None}, {"key": "a\tb\n[c]", "parked_at": "now"}]
    answer({}, table_of(rows, title="Would be done"), as_json=False)
    said = capsys.readouterr().out
    assert ["Would be done", "key\tparked at", f"{'x' * 300}\t-", "a\\tb\\n[c]\tnow"] == said.splitlines()


def said_by(command: str, **variables: str) -> str:
    ended = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", f"import sys; sys.argv = {shlex.split(command)}; {PROGRAM}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=HUNG_SECONDS,
    )
    return ended.stdout


PROGRAM = """
from cosmos_outbox_worker.cli import main
try:
    main()
finally:
    print({'azure', 'aiohttp', 'opentelemetry', 'pydantic', 'cosmos_outbox'} & {one.partition('.')[0] for one in sys.modules})
"""


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_neither_the_sdks_nor_the_library(option: str):
    said = said_by(f"cosmos-outbox {option}")
    assert {"--help": "bootstrap", "--version": f"cosmos-outbox {version('cosmos-outbox-worker')}"}[
        option
    ] in said
    assert "set()" == said.splitlines()[-1]


def test_the_list_of_commands_quotes_the_help_of_each_command():
    root: Any = typer.main.get_command(app)
    for name, listed in root.commands.items():
        assert " ".join(str(root.load(name).help).split()).startswith(str(listed.help)), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell: str):
    given = {"COMP_WORDS": "cosmos-outbox parked re", "COMP_CWORD": "2"}
    given |= {"_TYPER_COMPLETE_ARGS": "cosmos-outbox parked re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "release" in said_by("cosmos-outbox", _COSMOS_OUTBOX_COMPLETE=f"complete_{shell}", **given)
    assert "_COSMOS_OUTBOX_COMPLETE" in said_by("cosmos-outbox", _COSMOS_OUTBOX_COMPLETE=f"source_{shell}")
