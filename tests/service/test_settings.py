"""
The worker's settings: every mistake at once, by the name of its variable, and never a secret.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

import pytest

from cosmos_outbox.changefeed import OnPositionAhead
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.service.assembly import processor_options
from cosmos_outbox.service.otlp import Signal, destination, unsupported_in
from cosmos_outbox.service.settings import PREFIX, Settings, load, unknown_variables
from cosmos_outbox.write.commit import ABSENCE_PROVES_FOR

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
    for variable in (f"{PREFIX}{name.upper()}" for name in Settings.model_fields):
        monkeypatch.delenv(variable, raising=False)
    for variable in [name for name in os.environ if name.startswith("OTEL_")]:
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


@pytest.mark.parametrize(
    "pair",
    [
        ("COSMOS_ENDPOINT", "COSMOS_CONNECTION_STRING", "https://b.example"),
        ("SERVICEBUS_NAMESPACE", "SERVICEBUS_CONNECTION_STRING", "b.example"),
    ],
)
def test_two_ways_to_the_same_service_are_one_too_many(environment, pair: tuple[str, str, str]):
    other, first = (f"OUTBOX_{name}" for name in pair[:2])
    environment(**COMPLETE, **{other: pair[2]})

    assert [f"{first} or {other}: give only one of them"] == mistakes()


def test_sent_events_stay_for_as_long_as_their_absence_proves_something(environment):
    shortest = ABSENCE_PROVES_FOR.total_seconds()
    environment(**COMPLETE, OUTBOX_DELETE_KEEP_SECONDS=str(shortest))
    assert shortest == load().delete_keep_seconds

    environment(OUTBOX_DELETE_KEEP_SECONDS=str(shortest - 1))
    assert ["OUTBOX_DELETE_KEEP_SECONDS"] == [mistake.partition(":")[0] for mistake in mistakes()]


def test_a_key_that_is_not_base64_is_a_mistake_of_its_connection_string(environment):
    environment(
        **COMPLETE | {"OUTBOX_COSMOS_CONNECTION_STRING": "AccountEndpoint=http://h/;AccountKey=not base64;"}
    )

    assert ["OUTBOX_COSMOS_CONNECTION_STRING: its AccountKey is not base64; copy it again"] == mistakes()


def test_a_part_without_a_value_is_missing(environment):
    environment(**COMPLETE | {"OUTBOX_COSMOS_CONNECTION_STRING": "AccountEndpoint=http://h/;AccountKey=;"})
    (mistake,) = mistakes()
    assert mistake.endswith("it lacks AccountKey=…")


def test_settings_that_contradict_each_other_are_reported_beside_missing_ones(environment):
    environment(OUTBOX_LEASE_RENEW_SECONDS="50", OUTBOX_EVENT_TTL_SECONDS="60")

    found = "\n".join(mistakes())
    assert "OUTBOX_LEASE_RENEW_SECONDS: must be at most half" in found
    assert "OUTBOX_TOLERATED_OUTAGE_SECONDS" in found
    assert "OUTBOX_TOPIC: is required" in found


def test_a_ttl_shorter_than_the_tolerated_outage_is_refused_by_name(environment):
    environment(**COMPLETE, OUTBOX_EVENT_TTL_SECONDS="3600", OUTBOX_TOLERATED_OUTAGE_SECONDS="172800")
    (found,) = mistakes()
    assert found == (
        "OUTBOX_TOLERATED_OUTAGE_SECONDS: An outage of 2 days, 0:00:00 is to be survived, but events live shorter: "
        "OUTBOX_EVENT_TTL_SECONDS (1:00:00). Raise their time to live, or lower the tolerated outage."
    )


def test_a_ttl_as_long_as_the_tolerated_outage_is_accepted(environment):
    environment(**COMPLETE, OUTBOX_EVENT_TTL_SECONDS="172800", OUTBOX_TOLERATED_OUTAGE_SECONDS="172800")
    assert load().event_ttl_seconds == load().tolerated_outage_seconds


def test_wrong_values_are_reported_together_and_by_variable(environment):
    environment(
        **COMPLETE | {"OUTBOX_COSMOS_CONNECTION_STRING": "nonsense"},
        OUTBOX_COSMOS_ENDPOINT="account",
        OUTBOX_LANES="0",
        OUTBOX_PAGE_SIZE="many",
        OUTBOX_START="yesterday",
        APPLICATIONINSIGHTS_CONNECTION_STRING="hunter2",
    )
    found = mistakes()
    assert [
        "APPLICATIONINSIGHTS_CONNECTION_STRING",
        "OUTBOX_COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT",
        "OUTBOX_COSMOS_CONNECTION_STRING",
        "OUTBOX_COSMOS_ENDPOINT",
        "OUTBOX_LANES",
        "OUTBOX_PAGE_SIZE",
        "OUTBOX_START",
    ] == [line.partition(":")[0] for line in found]
    assert "lacks AccountEndpoint=… and AccountKey=…" in found[2]
    assert (
        "OUTBOX_START: must be 'beginning', 'now', or an ISO 8601 time such as 2026-11-21T08:00:00Z"
        == found[-1]
    )
    assert "hunter2" not in "".join(found)


def test_a_renew_interval_longer_than_half_the_expiration_is_refused(environment):
    environment(**COMPLETE, OUTBOX_LEASE_RENEW_SECONDS="31")
    assert [
        "OUTBOX_LEASE_RENEW_SECONDS: must be at most half of OUTBOX_LEASE_EXPIRATION_SECONDS (60)"
    ] == mistakes()


@pytest.mark.parametrize(
    ("variables", "acquire"),
    [
        ({"OUTBOX_STALLED_SECONDS": "25.9"}, 13),
        ({"OUTBOX_LEASE_ACQUIRE_SECONDS": "90"}, 90),
    ],
)
def test_a_worker_that_would_count_as_unready_between_two_balancing_passes_is_refused(
    environment, variables, acquire
):
    environment(**COMPLETE | variables)
    (mistake,) = mistakes()
    assert mistake == (
        f"OUTBOX_STALLED_SECONDS: must be at least twice OUTBOX_LEASE_ACQUIRE_SECONDS ({acquire}), "
        "or a healthy worker counts as unready between two balancing passes"
    )


def test_a_worker_may_count_as_unready_as_soon_as_it_missed_a_balancing_pass(environment):
    environment(**COMPLETE, OUTBOX_STALLED_SECONDS="26")
    assert 26 == load().stalled_seconds


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
def test_a_time_that_no_clock_can_add_is_refused_for_every_setting(environment, value):
    names = sorted(f"OUTBOX_{name.upper()}" for name in Settings.model_fields if name.endswith("_seconds"))
    environment(**COMPLETE, **dict.fromkeys(names, value))
    assert names == [line.partition(":")[0] for line in mistakes()]


@pytest.mark.parametrize("value", ["https://n.servicebus.windows.net/", '"n.servicebus.windows.net"'])
def test_a_namespace_is_a_host_without_scheme_and_quotes(environment, value):
    complete = {name: text for name, text in COMPLETE.items() if "SERVICEBUS" not in name}
    environment(**complete, OUTBOX_SERVICEBUS_NAMESPACE=value)
    (mistake,) = mistakes()
    assert mistake.startswith("OUTBOX_SERVICEBUS_NAMESPACE: must be a host")


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:many"}, "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL"),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "/v1"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "secret", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
         "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be"),
    ],
)  # fmt: skip
def test_an_endpoint_that_is_no_url_is_refused(environment, variables, refused):
    environment(**COMPLETE | variables)
    (mistake,) = mistakes()
    assert mistake.startswith(refused)
    assert not any(value in mistake.partition(":")[2] for value in variables.values())


BOTH = ["http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/metrics"]


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({}, ["", ""]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ["", ""]),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": " http/protobuf "}, BOTH),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " http://127.0.0.1:4318/ "}, BOTH),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "otlp"}, ["", BOTH[1]]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": " https://collector/x "}, ["https://collector/x", ""]),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/"}, ["https://collector/", BOTH[1]]),
    ],
)  # fmt: skip
def test_the_standard_variables_say_what_is_sent_and_where_to(environment, variables, sent):
    environment(**COMPLETE | variables)
    load()
    assert sent == [destination(signal, os.environ) for signal in Signal]
    assert [] == unsupported_in(os.environ)


@pytest.mark.parametrize(
    ("variables", "told", "sent"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf"], ["", ""]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"},
         ["OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf"], ["", ""]),
        ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"},
         ["OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: must be http/protobuf"], [BOTH[0], ""]),
        ({"OTEL_TRACES_EXPORTER": "console"}, ["OTEL_TRACES_EXPORTER: must be otlp or none"], ["", BOTH[1]]),
        ({"OTEL_METRICS_EXPORTER": " Prometheus "}, ["OTEL_METRICS_EXPORTER: must be otlp or none"], [BOTH[0], ""]),
        ({"OTEL_METRICS_EXPORTER": "otlp, console"}, ["OTEL_METRICS_EXPORTER: must be otlp or none"], BOTH),
    ],
)  # fmt: skip
def test_telemetry_that_the_worker_cannot_send_is_told_and_ends_no_worker(environment, variables, told, sent):
    environment(**COMPLETE | ENDPOINT | variables)
    load()
    assert told == [re.split("[,;]", sentence)[0] for sentence in unsupported_in(os.environ)]
    assert sent == [destination(signal, os.environ) for signal in Signal]


def test_a_signature_may_take_the_place_of_a_key(environment):
    signature = "SharedAccessSignature=SharedAccessSignature sr=sb%3A%2F%2Fb&sig=s&se=2000000000&skn=n"
    environment(**COMPLETE | {"OUTBOX_SERVICEBUS_CONNECTION_STRING": f"Endpoint=sb://b;{signature}"})
    assert "b" == load().namespace
    environment(**COMPLETE | {"OUTBOX_SERVICEBUS_CONNECTION_STRING": signature})
    (mistake,) = mistakes()
    assert mistake.endswith("it lacks Endpoint=…")


def test_no_error_shows_a_secret(environment):
    environment(
        OUTBOX_COSMOS_CONNECTION_STRING=f"AccountKey={KEY}",
        OUTBOX_SERVICEBUS_CONNECTION_STRING=f"SharedAccessKey={KEY}",
    )
    assert KEY not in "\n".join(mistakes())


def test_printed_settings_show_no_secret(environment):
    environment(**COMPLETE)
    settings = load()
    assert KEY not in f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"


def test_a_start_time_is_read_with_its_zone(environment):
    environment(**COMPLETE, OUTBOX_START="2026-11-21T08:00:00Z")
    assert datetime(2026, 11, 21, 8, tzinfo=UTC) == load().start


def test_a_start_time_without_a_zone_is_utc(environment):
    environment(**COMPLETE, OUTBOX_START="2026-11-21")
    assert datetime(2026, 11, 21, tzinfo=UTC) == load().start


def test_a_start_that_a_program_gives_as_a_datetime_is_read_as_the_text_of_it(environment):
    environment(**COMPLETE)
    assert datetime(2026, 11, 21, tzinfo=UTC) == Settings(start=datetime.fromisoformat("2026-11-21")).start


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("12", "must be 'beginning', 'now', or an ISO 8601 time"),
        ("0001-01-01T00:00:00+14:00", "must not be before 1970"),
        ("1969-12-31T23:59:59Z", "must not be before 1970"),
        ("2999-01-01T00:00:00Z", "must not be in the future"),
        ("9999-12-31T23:59:59-14:00", "must not be in the future"),
    ],
)
def test_a_start_that_no_operator_means_is_refused(environment, text, refused):
    environment(**COMPLETE, OUTBOX_START=text)
    (mistake,) = mistakes()
    assert mistake.startswith(f"OUTBOX_START: {refused}")


@pytest.mark.parametrize("name", [" ", "a b", "ü", "a?", "/events", "e" * 261])
def test_a_topic_that_cannot_be_is_refused_wherever_it_is_named(environment, name):
    environment(**COMPLETE | {"OUTBOX_TOPIC": name, "OUTBOX_ROUTES": f"action:Renamed={name}x x"})
    assert ["OUTBOX_ROUTES", "OUTBOX_TOPIC"] == [line.partition(":")[0] for line in mistakes()]


@pytest.mark.parametrize("name", ["e", "Team-1/orders_v2.events~x", "e" * 260])
def test_a_topic_that_can_be_is_taken(environment, name):
    environment(**COMPLETE | {"OUTBOX_TOPIC": name, "OUTBOX_ROUTES": f"action:Renamed={name},other"})
    assert name == load().topic


def test_an_empty_variable_counts_as_not_set(environment):
    environment(**COMPLETE, OUTBOX_LANES="")
    assert Settings.model_fields["lanes"].default == load().lanes


def test_an_unknown_variable_is_named_with_the_setting_it_probably_means():
    assert [
        "OUTBOX_LANNES is not a setting; did you mean OUTBOX_LANES?",
        "OUTBOX_ZZZ is not a setting",
    ] == unknown_variables({"OUTBOX_LANNES": "4", "OUTBOX_ZZZ": "1", "OUTBOX_TOPIC": "t", "PATH": "/"})


def test_a_setting_that_is_missing_is_said_with_the_variable_that_was_probably_meant_for_it(environment):
    environment(
        **{
            name: value
            for name, value in COMPLETE.items()
            if name not in {"OUTBOX_TOPIC", "OUTBOX_COSMOS_DATABASE"}
        },
        OUTBOX_TOPICS="events",
        OUTBOX_LANNES="4",
    )
    assert [
        "OUTBOX_COSMOS_DATABASE: is required",
        "OUTBOX_TOPIC: is required; OUTBOX_TOPICS is set, and is not a setting",
    ] == mistakes()


def test_one_of_two_settings_that_is_missing_is_said_with_the_variable_that_was_probably_meant_for_it(
    environment,
):
    environment(
        **{name: value for name, value in COMPLETE.items() if "SERVICEBUS" not in name},
        OUTBOX_SERVICEBUS_NAMESPACES="n",
    )
    (mistake,) = mistakes()
    assert mistake.endswith(
        "one of them is required; OUTBOX_SERVICEBUS_NAMESPACES is set, and is not a setting"
    )


def test_more_parked_keys_than_one_document_names_are_refused(environment):
    environment(**COMPLETE, OUTBOX_PARKED_MAX_KEYS="2001")
    (mistake,) = mistakes()
    assert mistake.startswith("OUTBOX_PARKED_MAX_KEYS")


def test_a_lease_ahead_of_its_range_halts_unless_it_is_to_begin_again_at_the_beginning(environment):
    """
    Not as long ago as OUTBOX_EVENT_TTL_SECONDS: that is the shortest life of an event, and others live longer.
    """
    environment(**COMPLETE, OUTBOX_EVENT_TTL_SECONDS="864000")
    assert OnPositionAhead.HALT is processor_options(load()).on_position_ahead
    environment(OUTBOX_ON_POSITION_AHEAD="restart")
    options = processor_options(load())
    assert OnPositionAhead.RESTART is options.on_position_ahead


def test_changes_may_take_two_fifths_of_the_memory_and_entities_none_of_it(environment):
    environment(**COMPLETE, OUTBOX_MEMORY_MB="1000")
    options = processor_options(load())

    assert 400 * 1024 * 1024 == options.memory_bytes
    assert options.wanted is not None
    assert [False, True] == [options.wanted({"type": kind, "data": {}}) for kind in ("note", "domainEvent")]


def test_a_command_runs_although_the_times_of_a_worker_contradict_each_other(environment):
    environment(**COMPLETE, OUTBOX_LEASE_EXPIRATION_SECONDS="30", OUTBOX_EVENT_TTL_SECONDS="86400")
    assert 2 == len(mistakes())
    assert 30 == load(for_command=True).lease_expiration_seconds


def test_a_command_is_refused_one_container_for_two_purposes_too(environment):
    environment(**COMPLETE | {"OUTBOX_LEASE_CONTAINER": COMPLETE["OUTBOX_COSMOS_CONTAINER"]})
    with pytest.raises(ConfigurationError, match="OUTBOX_LEASE_CONTAINER"):
        load(for_command=True)
