"""
Tests of the files with which the emulators start: a seed with items for Cosmos DB, and a configuration of entities in the format of
Microsoft's Service Bus emulator.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cosmos_outbox_emulators.__main__ import main
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.seed import plant
from cosmos_outbox_emulators.servicebus.message import parse_message
from cosmos_outbox_emulators.servicebus.microsoft_config import broker_of
from cosmos_outbox_emulators.servicebus.rules import DEFAULT_RULE

COMPOSE = Path(__file__).parents[2] / "infra/compose/servicebus.json"

SEED = {
    "databases": [
        {
            "id": "shop",
            "containers": [
                {
                    "id": "orders",
                    "partitionKey": "/owner/id",
                    "defaultTtl": -1,
                    "ranges": 3,
                    "items": [{"id": "1", "owner": {"id": "ada"}, "total": 5}, {"id": "2"}],
                },
                {"id": "carts", "partitionKey": ["/tenant", "/user"], "items": [{"id": "1", "tenant": "t"}]},
            ],
        },
        {"id": "empty"},
    ]
}


def test_a_seed_creates_databases_containers_and_items():
    account = Account()
    plant(account, SEED)
    orders, carts = account.container("shop", "orders"), account.container("shop", "carts")
    assert (3, -1) == (len(orders.partitions), orders.default_ttl)
    assert (2, 1) == (orders.item_count(0), carts.item_count(0))
    ada = orders.key_from_header('["ada"]')
    stored = orders.partition_of(ada.epk).get((ada.encoded, "1"))
    assert stored is not None
    assert 5 == stored.body["total"]
    assert {"shop", "empty"} == account.databases.keys()


def test_a_seed_does_not_change_existing_items():
    account = Account()
    plant(account, SEED)
    before = [
        partition.get(item.key)
        for partition in account.container("shop", "orders").partitions
        for item in partition.changes_after(0)
    ]
    changed = json.loads(json.dumps(SEED).replace('"total": 5', '"total": 6'))
    plant(account, changed)
    partitions = account.container("shop", "orders").partitions
    assert before == [item for partition in partitions for item in partition.changes_after(0)]


@pytest.mark.parametrize(
    ("seed", "path"),
    [
        ([], "seed: "),
        ({"database": []}, "seed.database: "),
        ({"databases": {}}, "databases: "),
        ({"databases": [{"id": 5}]}, "databases[0]: "),
        (
            {"databases": [{"id": "d", "containers": [{"id": "c", "defaultTTL": 1}]}]},
            "containers[0].defaultTTL: ",
        ),
        ({"databases": [{"id": "d", "containers": [{"id": "c", "ranges": 0}]}]}, "containers[0].ranges: "),
        ({"databases": [{"id": "d", "containers": [{"id": "c", "partitionKey": 1}]}]}, "containers[0]: "),
        (
            {"databases": [{"id": "d", "containers": [{"id": "c", "items": [{}]}]}]},
            "containers[0].items[0]: ",
        ),
        ({"databases": [{"id": "d", "containers": [{"id": "c", "items": [1]}]}]}, "containers[0].items[0]: "),
    ],
)
def test_a_mistake_in_a_seed_is_reported_with_its_path(seed, path: str):
    with pytest.raises(ValueError, match=re.escape(path)):
        plant(Account(), seed)


def microsoft(**namespace):
    return {
        "UserConfig": {"Namespaces": [{"Name": "sbemulatorns", **namespace}], "Logging": {"Type": "File"}}
    }


def test_the_compose_stack_s_configuration_works_on_this_emulator():
    """
    The Docker Compose stack of this repository runs Microsoft's emulator with this configuration file. On our
    emulator, it gives the same topic and subscription.
    """
    broker = broker_of(json.loads(COMPOSE.read_text()))
    events = broker.topic("events")
    assert (3600, 300) == (events.config.ttl_s, events.config.dedup_window_s)
    assert ["directory"] == [*events.subscriptions]
    queue = events.subscriptions["directory"].queue.config
    assert (True, 60, 10, 3600, True) == (
        queue.requires_session,
        queue.lock_s,
        queue.max_delivery_count,
        queue.ttl_s,
        queue.dead_letter_on_expiration,
    )


def test_a_queue_gets_the_properties_that_microsoft_s_format_gives_it():
    """For example, the queue detects duplicates only if `RequiresDuplicateDetection` is true."""
    window = {"DuplicateDetectionHistoryTimeWindow": "PT20S"}
    queues = [
        {"Name": "a", "Properties": {**window, "RequiresDuplicateDetection": True, "MaxDeliveryCount": 3}},
        {"Name": "b", "Properties": {**window, "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S"}},
        {"Name": "c", "Properties": {"RequiresDuplicateDetection": True, "LockDuration": "P1DT1M1.5S"}},
    ]
    broker = broker_of(microsoft(Queues=queues))
    assert [20, None, 600] == [broker.topic(name).config.dedup_window_s for name in "abc"]
    assert [3, 10, 10] == [broker.queue(name).config.max_delivery_count for name in "abc"]
    assert [60, 60, 86461.5] == [broker.queue(name).config.lock_s for name in "abc"]
    assert broker.queue("b").config.ttl_s is None


def subscription_with(*rules):
    subscription = {
        "Name": "s",
        "Rules": [{"Name": f"r{n}", "Properties": rule} for n, rule in enumerate(rules)],
    }
    return microsoft(Topics=[{"Name": "t", "Subscriptions": [subscription]}])


def test_the_rules_of_a_configured_subscription_replace_the_default_rule():
    label = b"\x00\x53\x73\xc0\x07\x04\x40\x40\x40\xa1\x01x"  # a message with the subject "x"
    correlation = {"FilterType": "Correlation", "CorrelationFilter": {"Label": "x", "Properties": {}}}
    sql = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=0"}}
    subscription = broker_of(subscription_with(correlation, sql)).topic("t").subscriptions["s"]
    assert ["r0", "r1"] == [*subscription.rules]
    assert [True, False] == [subscription.takes(parse_message(text)) for text in (label, b"")]
    assert [DEFAULT_RULE] == [*broker_of(subscription_with()).topic("t").subscriptions["s"].rules]


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"UserConfig": {"Namespaces": []}}, "UserConfig.Namespaces: "),
        ({"UserConfig": []}, "UserConfig: "),
        (microsoft(Queue=[]), "UserConfig.Namespaces[0].Queue: "),
        (microsoft(Queues=[{"Name": 5}]), "queues[0].name: "),
        (
            microsoft(Queues=[{"Name": "q", "Properties": {"LockDuration": "1M"}}]),
            "Queues[0].Properties.LockDuration: ",
        ),
        (
            microsoft(Queues=[{"Name": "q", "Properties": {"LockDuration": "P"}}]),
            "Queues[0].Properties.LockDuration: ",
        ),
        (
            microsoft(Queues=[{"Name": "q", "Properties": {"ForwardTo": "p"}}]),
            "Queues[0].Properties.ForwardTo: ",
        ),
        (microsoft(Queues=[{"Name": "q", "Properties": {"Lock": "PT1M"}}]), "Queues[0].Properties.Lock: "),
        (
            microsoft(Topics=[{"Name": "t", "Properties": {"RequiresSession": True}}]),
            "Topics[0].Properties.RequiresSession: ",
        ),
        (subscription_with({"FilterType": "Other"}), "Rules[0].Properties.FilterType: "),
        (subscription_with({"SqlFilter": {"SqlExpression": 5}}), "Rules[0]: "),
        (subscription_with({"CorrelationFilter": {"Subject": "x"}}), "CorrelationFilter.Subject: "),
    ],
)
def test_a_mistake_in_microsoft_s_configuration_format_is_reported_with_its_path(config, path: str):
    with pytest.raises(ValueError, match=re.escape(path)):
        broker_of(config)


@pytest.mark.parametrize("option", ["--seed", "--config"])
def test_the_command_of_the_emulators_reports_a_wrong_file_in_one_line(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "file.json"
    file.write_text('\ufeff{"UserConfig": {}}')
    assert 2 == main([option, str(file)])
    [line] = capsys.readouterr().err.splitlines()
    assert f"{option} {file}: " in line
    assert "UserConfig" in line
