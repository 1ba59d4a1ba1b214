"""Bad arguments get a clear message and exit code 2, before anything is started."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from demo.__main__ import app as demo_app
from examples.contacts.__main__ import app, listening

pytestmark = pytest.mark.looptime(False)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--contacts", "0"], "--contacts"),
        (["demo", "--changes", "0"], "--changes"),
        (["demo", "--changes", "many"], "--changes"),
        (["demo", "--partitions", "0"], "--partitions"),
        (["demo", "--partitions", "65"], "--partitions"),
        (["demo", "--workers", "0"], "--workers"),
        (["demo", "--workers", "1"], "--no-kill"),
        (["demo", "--concurrency", "0"], "--concurrency"),
        (["demo", "--nonsense"], "--nonsense"),
        (["run", "--port", "65536"], "--port"),
    ],
)
def test_bad_arguments_are_named_and_the_exit_code_is_2(arguments, named):
    result = CliRunner(env={"TERM": "dumb", "COLUMNS": "200"}).invoke(demo_app, arguments)
    assert 2 == result.exit_code
    assert named in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("program", "command"), [(demo_app, "run"), (app, "api")])
def test_a_port_in_use_is_said_at_once(program, command):
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


def test_the_api_without_settings_names_the_variable_and_exits_with_2(monkeypatch):
    monkeypatch.delenv("OUTBOX_COSMOS_CONNECTION_STRING", raising=False)
    monkeypatch.delenv("OUTBOX_COSMOS_ENDPOINT", raising=False)
    result = CliRunner().invoke(app, ["api", "--port", "0"])
    assert 2 == result.exit_code
    assert "OUTBOX_COSMOS_CONNECTION_STRING" in result.output


def test_a_connection_of_the_api_sends_each_answer_at_once():
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
