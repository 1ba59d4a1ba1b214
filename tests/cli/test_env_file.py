"""
Tests of the option `--env-file FILE`. Commands take the variables from this file that are not set in their environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_worker.cli.app import app
from cosmos_outbox_worker.env_file import without_env_files


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    monkeypatch.setattr(os, "environ", kept)


def written(path: Path, *lines: str) -> str:
    path.write_text("\n".join([*lines, ""]))
    return str(path)


def test_the_environment_wins_over_env_files_and_the_last_file_over_the_first(tmp_path: Path):
    shared = written(
        tmp_path / "shared.env",
        "\ufeff# of all programs",
        "export OUTBOX_TOPIC=events",
        "OUTBOX_COSMOS_DATABASE=shop",
        "OUTBOX_COSMOS_CONNECTION_STRING=AccountEndpoint=https://a/;AccountKey=a$b/c==;  # the key of the emulator",
        "OUTBOX_LOG_LEVEL=DEBUG",
    )
    own = written(tmp_path / "own.env", "OUTBOX_SUBSCRIPTION='bills # and #more '", "OUTBOX_TOPIC=orders")
    os.environ["OUTBOX_LOG_LEVEL"] = "ERROR"
    arguments = ["--env-file", shared, "consume", f"--env-file={own}", "bills:consumer", "--", "--env-file"]

    assert ["consume", "bills:consumer", "--", "--env-file"] == without_env_files(arguments)
    assert {
        "OUTBOX_TOPIC": "orders",
        "OUTBOX_COSMOS_DATABASE": "shop",
        "OUTBOX_COSMOS_CONNECTION_STRING": "AccountEndpoint=https://a/;AccountKey=a$b/c==;",
        "OUTBOX_LOG_LEVEL": "ERROR",
        "OUTBOX_SUBSCRIPTION": "bills # and #more ",
    } == {name: value for name, value in os.environ.items() if name.startswith("OUTBOX_")}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"A=1\n\n# c\nOUTBOX_KEY hunter2\n", "line 4 is no NAME=VALUE"),
        (b"A=1\n\nhunter2\n", "line 3 is no NAME=VALUE"),
        (b"A=1\nB='hunter2\nC=3\n", "line 2 is no NAME=VALUE, or has an open quote"),
        (b"A=hunter2\0\n", "line 1 is no NAME=VALUE"),
        (b"A=hunter\xff2\n", "it is no text in UTF-8"),
    ],
)
def test_the_error_for_an_unreadable_env_file_names_its_line_but_no_value(
    tmp_path: Path, content: bytes | None, said: str
):
    path = tmp_path / "a.env"
    if content is not None:
        path.write_bytes(content)
    before = dict(os.environ)
    with pytest.raises(ConfigurationError, match=said) as refused:
        without_env_files(["worker", "--env-file", str(path)])

    assert str(path) in str(refused.value)
    assert "hunter" not in str(refused.value)
    assert before == os.environ


@pytest.mark.parametrize("arguments", [["worker"], ["consume", "a:b"], ["status"], ["parked", "list"]])
def test_a_missing_env_file_ends_each_command_with_exit_code_2(arguments: list[str]):
    for file in ("nowhere.env", ""):
        result = CliRunner().invoke(app, [*arguments, "--env-file", *([file] if file else [])])
        assert (2, f"--env-file {file!r}: No such file or directory.\n") == (result.exit_code, result.stderr)
    result = CliRunner().invoke(app, ["--env-file=nowhere.env", *arguments, "--json"])
    assert (2, "ConfigurationError") == (result.exit_code, json.loads(result.stdout)["error"]["code"])


def test_programs_and_commands_read_settings_from_the_env_file(tmp_path: Path):
    path = written(tmp_path / "a.env", "OUTBOX_LEASE_EXPIRATION_SECONDS=1")
    for arguments in (["worker"], ["consume", "a:b"], ["status"]):
        result = CliRunner().invoke(app, [*arguments, "--env-file", path])
        assert 2 == result.exit_code
        assert "OUTBOX_LEASE_EXPIRATION_SECONDS" in result.stderr
