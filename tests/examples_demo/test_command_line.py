"""
Tests of the demo's command line: a wrong argument gives a clear message and exit code 2 before anything starts.
"""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from demo.__main__ import app as demo_app
from examples.contacts.__main__ import app

pytestmark = pytest.mark.looptime(False)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--contacts", "0"], "--contacts"),
        (["demo", "--partitions", "65"], "--partitions"),
        (["demo", "--workers", "1"], "--no-kill"),
        (["demo", "--nonsense"], "--nonsense"),
        (["run", "--port", "65536"], "--port"),
    ],
)
def test_a_wrong_argument_is_named_and_gives_exit_code_2(arguments, named):
    result = CliRunner(env={"TERM": "dumb", "COLUMNS": "200"}).invoke(demo_app, arguments)
    assert 2 == result.exit_code
    assert named in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("program", "command"), [(demo_app, "run"), (app, "api")])
def test_a_port_in_use_is_reported_before_anything_starts(program, command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        environment = {
            "TERM": "dumb",
            "OUTBOX_COSMOS_CONNECTION_STRING": "AccountEndpoint=http://127.0.0.1:1/;AccountKey=aw==;",
        }
        result = CliRunner(env=environment).invoke(program, [command, "--port", port])
    assert 2 == result.exit_code
    assert port in result.output
    assert "in use" in result.output
