"""
Tests of the worker's settings: all mistakes are reported at once, by their variables, and no secret is shown.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_worker.consumer_settings import ConsumerSettings, load_consumer
from cosmos_outbox_worker.settings import PREFIX, Settings, load, unknown_variables
from cosmos_outbox_worker.worker_assembly import memory_limit
from tests.support.worker_settings import worker_settings

KEY = "c2VjcmV0LWtleQ=="
COMPLETE = {
    "OUTBOX_COSMOS_CONNECTION_STRING": f"AccountEndpoint=http://127.0.0.1:1/;AccountKey={KEY};",
    "OUTBOX_COSMOS_DATABASE": "contacts",
    "OUTBOX_COSMOS_CONTAINER": "data",
    "OUTBOX_SERVICEBUS_CONNECTION_STRING": f"Endpoint=sb://b;SharedAccessKeyName=n;SharedAccessKey={KEY}",
    "OUTBOX_TOPIC": "events",
}


@pytest.fixture
def environment(monkeypatch):
    for variable in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(variable)

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def mistakes() -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load()
    return str(caught.value).splitlines()


def test_all_missing_settings_are_reported_at_once(environment):
    assert [
        "OUTBOX_COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT: one of them is required",
        "OUTBOX_COSMOS_CONTAINER: is required",
        "OUTBOX_COSMOS_DATABASE: is required",
        "OUTBOX_SERVICEBUS_CONNECTION_STRING or OUTBOX_SERVICEBUS_NAMESPACE: one of them is required",
        "OUTBOX_TOPIC: is required",
    ] == mistakes()


TWICE = "give only one of them"
PORT = "OUTBOX_HEALTH_PORT: must be a port, or an address and a port such as 0.0.0.0:8080"
BALANCING = (
    "OUTBOX_STALLED_SECONDS: must be at least {}, two balancing passes with this OUTBOX_LEASE_EXPIRATION_SECONDS, or a healthy "
    "worker counts as unready between them"
)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("COSMOS_ENDPOINT", "https://b.example", f"COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT: {TWICE}"),
        ("SERVICEBUS_NAMESPACE", "b.example", f"OUTBOX_SERVICEBUS_NAMESPACE: {TWICE}"),
        ("COSMOS_CONNECTION_STRING", "AccountEndpoint=http://h/;AccountKey=not base64;",
         "OUTBOX_COSMOS_CONNECTION_STRING: its AccountKey is not base64; copy the key again"),
        ("COSMOS_CONNECTION_STRING", "AccountEndpoint=http://h/;AccountKey=;", "it lacks AccountKey=…"),
        ("STALLED_SECONDS", "25.9", BALANCING.format(26)),
        ("LEASE_EXPIRATION_SECONDS", "300", BALANCING.format(130)),
        ("START", "yesterday", "OUTBOX_START: must be 'beginning', 'now', or an ISO 8601 time such as 2026-11-21T08:00:00Z"),
        ("START", "12", "must be 'beginning', 'now', or an ISO 8601 time such as 2026-11-21T08:00:00Z"),
        ("START", "0001-01-01T00:00:00+14:00", "must not be before 1970; give 'beginning'"),
        ("START", "1969-12-31T23:59:59Z", "must not be before 1970; give 'beginning'"),
        ("START", "2999-01-01T00:00:00Z", "must not be in the future: events committed before it would never be sent"),
        ("START", "9999-12-31T23:59:59-14:00", "must not be in the future: events committed before it would never be sent"),
        *(("HEALTH_PORT", address, PORT) for address in ("many", "65536", ":", "127.0.0.1", "http://0.0.0.0:80", "-1")),
    ],
)  # fmt: skip
def test_an_invalid_value_of_a_setting_is_reported_once(environment, name: str, value: str, said: str):
    environment(**COMPLETE | {f"OUTBOX_{name}": value})
    (mistake,) = mistakes()
    assert mistake.endswith(said)


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({"OUTBOX_LEASE_CONTAINER": "data"}, ["OUTBOX_LEASE_CONTAINER: names the container of OUTBOX_COSMOS"]),
        ({"OUTBOX_COSMOS_CONTAINER": "leases"}, ["OUTBOX_LEASE_CONTAINER: names the container of OUTBOX_COSMOS"]),
        ({"OUTBOX_PARKED_CONTAINER": "data"}, ["OUTBOX_PARKED_CONTAINER: names the container of OUTBOX_COSMOS"]),
        ({"OUTBOX_PARKED_CONTAINER": "leases"}, ["OUTBOX_PARKED_CONTAINER: names the container of OUTBOX_LEASE"]),
        ({"OUTBOX_COSMOS_CONTAINER": "one", "OUTBOX_LEASE_CONTAINER": "one", "OUTBOX_PARKED_CONTAINER": "one"},
         ["OUTBOX_LEASE_CONTAINER", "OUTBOX_PARKED_CONTAINER", "OUTBOX_PARKED_CONTAINER"]),
    ],
)  # fmt: skip
def test_one_container_for_two_purposes_is_refused(environment, variables, refused):
    environment(**COMPLETE | variables)
    found = mistakes()
    assert len(refused) == len(found)
    assert all(line.startswith(begin) for line, begin in zip(found, refused, strict=True)), found


@pytest.mark.parametrize("value", ["inf", "nan", "1e300", "99999999999999"])
def test_an_infinite_or_too_long_time_is_refused_for_every_setting(environment, value):
    names = sorted(f"OUTBOX_{name.upper()}" for name in Settings.model_fields if name.endswith("_seconds"))
    environment(**COMPLETE, **dict.fromkeys(names, value))
    assert names == [line.partition(":")[0] for line in mistakes()]


@pytest.mark.parametrize("value", ["https://n.servicebus.windows.net/", '"n.servicebus.windows.net"'])
def test_a_namespace_has_to_be_a_host_without_scheme_and_quotes(environment, value):
    complete = {name: text for name, text in COMPLETE.items() if "SERVICEBUS" not in name}
    environment(**complete, OUTBOX_SERVICEBUS_NAMESPACE=value)
    (mistake,) = mistakes()
    assert mistake.startswith("OUTBOX_SERVICEBUS_NAMESPACE: must be a host")


def test_a_connection_string_may_have_a_signature_instead_of_a_key(environment):
    signature = "SharedAccessSignature=SharedAccessSignature sr=sb%3A%2F%2Fb&sig=s&se=2000000000&skn=n"
    environment(**COMPLETE | {"OUTBOX_SERVICEBUS_CONNECTION_STRING": f"Endpoint=sb://b;{signature}"})
    assert "b" == load().namespace
    environment(**COMPLETE | {"OUTBOX_SERVICEBUS_CONNECTION_STRING": signature})
    (mistake,) = mistakes()
    assert mistake.endswith("it lacks Endpoint=…")


def test_errors_about_settings_show_no_secret(environment):
    environment(
        OUTBOX_COSMOS_CONNECTION_STRING=f"AccountKey={KEY}",
        OUTBOX_SERVICEBUS_CONNECTION_STRING=f"SharedAccessKey={KEY}",
    )
    assert KEY not in "\n".join(mistakes())


def test_printed_settings_show_no_secret(environment):
    environment(**COMPLETE)
    settings = load()
    assert KEY not in f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    ("text", "hour"), [("2026-11-21T08:00:00Z", 8), ("2026-11-21T10:00:00+02:00", 8), ("2026-11-21", 0)]
)
def test_a_start_time_without_a_zone_is_read_as_utc(environment, text: str, hour: int):
    environment(**COMPLETE, OUTBOX_START=text)
    assert datetime(2026, 11, 21, hour, tzinfo=UTC) == load().start


@pytest.mark.parametrize("name", [" ", "a b", "ü", "a?", "/events", "e" * 261])
def test_an_impossible_name_of_a_topic_is_refused_in_each_setting(environment, name):
    environment(**COMPLETE | {"OUTBOX_TOPIC": name, "OUTBOX_ROUTES": f"action:Renamed={name}x x"})
    assert ["OUTBOX_ROUTES", "OUTBOX_TOPIC"] == [line.partition(":")[0] for line in mistakes()]


def test_an_empty_variable_counts_as_not_set(environment):
    environment(**COMPLETE, OUTBOX_LANES="")
    assert Settings.model_fields["lanes"].default == load().lanes


def test_an_unknown_variable_is_reported_with_the_most_similar_setting(environment):
    environment(OUTBOX_TOPICS="e")
    assert mistakes()[-1] == "OUTBOX_TOPICS is not a setting; did you mean OUTBOX_TOPIC?"
    environ = {"OUTBOX_LANNES": "4", "OUTBOX_ZZZ": "1", "OUTBOX_TOPIC": "t", "PATH": "/"}
    assert [
        "OUTBOX_LANNES is not a setting; did you mean OUTBOX_LANES?",
        "OUTBOX_ZZZ is not a setting",
    ] == unknown_variables(environ)


def test_a_worker_does_not_report_a_consumer_s_settings_as_typing_errors(environment):
    environment(OUTBOX_LANES="abc", OUTBOX_SUBSCRIPTION="all")
    assert not [line for line in mistakes() if "SUBSCRIPTION" in line]


@pytest.mark.parametrize(
    ("name", "text"), [("SDK_ONLY", "true"), ("SESSIONS", "false"), ("SERVICEBUS_TRANSPORT", "websockets")]
)
def test_the_lean_receiver_is_refused_with_settings_that_need_the_sdk(environment, name: str, text: str):
    environment(**COMPLETE, OUTBOX_RECEIVER="amqp", **{f"OUTBOX_{name}": text})
    with pytest.raises(ConfigurationError, match=f"OUTBOX_RECEIVER=amqp .* OUTBOX_{name}={text}"):
        load_consumer()


def test_the_number_of_settings_does_not_grow_beyond_34():
    assert 34 >= len({*Settings.model_fields, *ConsumerSettings.model_fields})


@pytest.mark.parametrize(
    ("said", "megabytes"), [("1048576000", 1000), ("99999999999", 1024), ("max\n", 512), (None, 512)]
)
def test_the_memory_limit_is_that_of_the_docker_container_up_to_a_gigabyte(
    tmp_path: Path, said: str | None, megabytes: int
):
    limit = tmp_path / "memory.max"
    if said is not None:
        limit.write_text(said)
    assert megabytes * 1024 * 1024 == memory_limit(limit)


@pytest.mark.parametrize("address", ["8080", "0", "0.0.0.0:8080", "[::1]:65535", "localhost:1"])
def test_the_health_port_may_include_an_address(environment, address: str):
    environment(**COMPLETE, OUTBOX_HEALTH_PORT=address)
    assert address == load().health_port


def test_commands_ignore_contradictions_between_a_worker_s_time_limits(environment):
    environment(**COMPLETE, OUTBOX_LEASE_EXPIRATION_SECONDS="300")
    assert 1 == len(mistakes())
    assert 300 == load(for_command=True).lease_expiration_seconds


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"topic": "a=x"}, "OUTBOX_TOPIC: is required (container 'b')"),
        ({"topic": "x,c=y"}, "OUTBOX_TOPIC: 'c' is not in OUTBOX_COSMOS_CONTAINER"),
        ({"cosmos_container": "a,a"}, "OUTBOX_COSMOS_CONTAINER: names a container twice"),
        (
            {"parked_container": "b"},
            "OUTBOX_PARKED_CONTAINER: names the container of OUTBOX_COSMOS_CONTAINER, 'b'",
        ),
        ({"cosmos_container": "a", "topic": "a=x"}, "OUTBOX_TOPIC: names the topics of several containers"),
    ],
)
def test_the_error_for_an_inconsistent_container_setting_names_the_container(
    asked: dict[str, str], error: str
):
    (found,) = worker_settings(**{"cosmos_container": "a,b"} | asked).contradictions()
    assert found.startswith(error)


def test_a_container_s_own_setting_replaces_the_one_for_all_containers():
    settings = worker_settings(
        cosmos_container="a, b",
        topic="b=y,x",
        lease_container="l",
        parked_container="a=p",
        processor_name="p",
    )
    assert [("a", "x", "l", "p", "p"), ("b", "y", "l", None, "p")] == [
        (one.cosmos_container, one.topic, one.lease_container, one.parked_container, one.processor_name)
        for one in settings.each()
    ]
