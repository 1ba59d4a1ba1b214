"""
Tests of `cosmos-outbox plan`, which computes the capacity and cost of a load. Its figures agree with the pages, a simulated fleet, the
emulator and the exported metrics. It warns of exceeded limits, and refuses impossible numbers.
"""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.cosmos.aio import DatabaseProxy

from benchmarks.fleet import PASS_SECONDS, RENEW_SECONDS, Fleet
from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox_worker.cli.capacity import plan_capacity
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.shared_health import ParkedSummary
from cosmos_outbox_worker.telemetry import open_telemetry
from cosmos_outbox_worker.worker_health import WorkerVitals
from examples.contacts.domain import Contact, Name
from examples.contacts.service import ContactsUnitOfWork
from tests.support.effort import LONG
from tests.support.lease_statuses import owning, status
from tests.support.local import Local
from tests.support.worker_settings import worker_settings

pytestmark = pytest.mark.looptime(False)

SCALE = (Path(__file__).parents[2] / "docs/explanation/scale.md").read_text()
NOWHERE = Local(cosmos="", servicebus="", control="", database="", environment={})
PRICES = {
    "request_units_100_hour": 0.01,
    "storage_gb_month": 0.25,
    "messaging_unit_hour": 1,
    "standard_hour": 0.02,
    "million_operations": 0.5,
    "worker_hour": 0.1,
}


def figures(**given: Any) -> dict[str, Any]:
    return {name: one["value"] for name, one in plan_capacity({"events": 1, **given})[0].items()}


def row(head: str) -> list[float]:
    """Return the numbers in the row of docs/explanation/scale.md whose first cell begins with `head`."""
    found = re.search(rf"^\| {re.escape(head)}[^|]*\|(.*)\|$", SCALE, re.MULTILINE)
    assert found, head
    return [float(cell.replace(",", "")) for cell in re.findall(r"\d[\d,]*", found[1])]


@pytest.mark.parametrize("column", range(5))
def test_plan_and_the_page_on_scale_agree_on_the_throughput_of_service_bus_standard(column: int):
    subscriptions = row("Subscriptions, of one filter each")[column]
    found = figures(subscriptions=subscriptions, filters=subscriptions)

    assert row("Credits of an event")[column] == found["credits"]
    assert row("Events a second, at most")[column] == found["standard_events"] // 1


@pytest.mark.parametrize("column", range(3))
def test_plan_and_the_page_on_scale_agree_on_the_cost_of_leases(column: int):
    leases, workers = ([100, 1_000, 10_000][column], [5, 20, 200][column])
    found = figures(events=1e-9, partitions_now=leases, workers_now=workers)
    units = row("RU/s of renewals")[column] + row("RU/s of listings")[column]

    assert row("Polls a second, of the monitored container")[column] == found["polls"]
    assert (
        pytest.approx(row("Renewals a second, of the lease container")[column], rel=0.03) == found["renewals"]
    )
    assert (
        pytest.approx(row("Leases listed a second, by all workers")[column], rel=0.05)
        == found["leases_listed"]
    )
    assert pytest.approx(units, rel=0.05) == found["lease_units"]
    assert row("Series of metrics")[column] == found["series"]


def test_a_simulated_idle_fleet_makes_as_many_requests_as_planned():
    """The simulated workers have 1,000 leases, or 10,000 in `make test-long`."""
    leases, workers = 10_000 if LONG else 1_000, 20
    fleet = Fleet(leases, seed=1)
    names = itertools.cycle([f"worker-{number}" for number in range(workers)])
    for name in itertools.islice(names, workers):
        fleet.alive[name] = set()
        fleet.at(RENEW_SECONDS + fleet.random.uniform(0, PASS_SECONDS), partial(fleet._pass, name))
    for name, lease in zip(names, [*fleet.leases.values()], strict=False):
        fleet.at(fleet.random.uniform(0, RENEW_SECONDS), partial(fleet._take, name, lease))
    assert fleet.run_until(lambda: fleet.now > RENEW_SECONDS + PASS_SECONDS, within=600)
    assert fleet.balanced()
    fleet.requests.clear()
    rest = fleet.now + 2 * RENEW_SECONDS
    seconds = fleet.run_until(lambda: fleet.now >= rest, within=600)
    assert seconds
    found = figures(events=1e-9, partitions_now=leases, workers_now=workers)

    assert pytest.approx(fleet.requests["writes"] / seconds, rel=0.1) == found["renewals"]
    assert pytest.approx(fleet.requests["leases listed"] / seconds, rel=0.1) == found["leases_listed"]


async def test_workers_export_as_many_series_of_metrics_as_plan_says():
    """Each line of a worker's metrics that is no comment is one series of Prometheus."""
    leases, workers = 100, 10
    vitals = WorkerVitals(worker_settings(), utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    vitals.processor = owning(*(status(str(number)) for number in range(leases // workers)))
    lag = {"owner": "w", "transactions": 1, "oldest_age": timedelta(1)}
    vitals.note_lag(Lag(leases=tuple(LeaseLag(lease=f"p..{n}", token=str(n), **lag) for n in range(leases))))
    vitals.note_parked(ParkedSummary(count=1, events=2))
    with open_telemetry(instance="w") as telemetry:
        telemetry.observed = vitals.snapshot()
        with telemetry.around_sends("servicebus", "localhost", ["events"])("events", []):
            pass
        # A worker has about 18 histograms of request charges: each combination of operation, container and error status has its own.
        for number in range(18):
            asked = SimpleNamespace(
                method="GET", url=f"https://a/dbs/d/colls/{number}/docs/x", headers=dict[str, str]()
            )
            telemetry.count_charge(asked, 200, {"x-ms-request-charge": "1"})
        lines = telemetry.exposition()[0].decode().splitlines()

    each = sum(not line.startswith("#") for line in lines)
    assert (
        pytest.approx(workers * each, rel=0.1)
        == figures(partitions_now=leases, workers_now=workers)["series"]
    )


def test_plan_warns_of_a_load_beyond_the_credits_of_service_bus_standard():
    ran = NOWHERE.run("plan", "--events", "100000", code=ExitCode.WARNED)
    found = figures(events=100_000)

    assert ran.stdout.startswith(
        "Standard's credits are reached at 333 events a second, and these are 100,000: take Premium."
    )
    assert "1_000 / (1 + filters + receives)" in ran.stdout
    assert pytest.approx(170, rel=0.05) == found["partitions"]
    assert pytest.approx(1.7e6, rel=0.05) == found["data_units"]
    assert 11 == found["workers"]
    assert 100 == figures(events=100, subscriptions=2, filters=2, partitions_now=2)["send_rate"]


def test_the_command_plan_prints_the_figures_that_were_computed_by_hand():
    load = {
        "events": 1_000,
        "event_bytes": 2_048,
        "keys": 1e6,
        "subscriptions": 2,
        "filters": 3,
        "outage_hours": 10,
    }
    by_hand = {
        "credits": 6_000,  # 6 for each of 1,000 events: a send, three filters and two receives
        # A messaging unit handles 4 MB/s. A thousand messages of 2,560 bytes, sent once and received twice, are 7.68 MB/s.
        "messaging_units": 2,
        "broker_events": 8_000_000 / (3 * 2_560),
        "entity_gb": 1.024,
        "event_gb": 176.9472,  # a day of 1,000 events a second with 2,048 bytes each
        # 178 GB need 4 partitions of at most 50 GB; for the request units, 2 partitions would do
        "partitions": 4,
        # A commit takes 16.35 RU, and reading its event 1.2 RU. Each of 4 ranges is polled 20 times a second, and each of 2
        # workers reads the lag of all ranges every 15 s.
        "data_units": 1_000 * (16.35 + 1.2) + 4 * 20 + 8 / 15,
        # A write of a lease takes 10 RU: each of 4 leases is renewed every 17 s, and its position saved five times a second.
        # Each of 2 workers lists the leases every 13 s.
        "lease_units": 10 * (4 / 17 + 20) + 0.025 * 8 / 13,
        "topic_gb": 184.32,  # 36 million events wait after ten hours, in each of two subscriptions
        "topic_full_hours": 80 / 18.432,
        "parked_events": 36,
        "parked_mb": 0.073728,
        "parked_full_hours": 10_000 / 3.6,
        "catching_up_hours": 240,  # 36 million events that waited, at 41.7 a second
        "send_rate": 8_000_000 / (3 * 2_560) / 2,
        "premium_cost": 730 * 2,
    }

    found, _ = plan_capacity(load, prices=PRICES)
    assert pytest.approx(by_hand) == {name: found[name]["value"] for name in by_hand}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"events": 100}, ""),
        (
            {"events": 300, "subscriptions": 2, "filters": 2},
            "reached at 200 events a second, and these are 300: take Premium or drop",
        ),
        ({"event_bytes": 300_000}, "256 KB: take Premium"),
        ({"events": 50_000, "keys": 1e6}, "16 messaging units at most, and this asks for 48"),
        ({"events": 300, "keys": 2, "outage_hours": 0.001}, "the busiest gets 150: choose a finer"),
        ({"events": 300, "busiest_key": 0.4, "outage_hours": 0.001}, "the busiest gets 120: choose a finer"),
        ({"partitions_now": 9, "keys": 8}, "8 keys leave some of 9 partitions idle"),
        ({"keys": 1, "event_bytes": 200_000, "events": 2, "outage_hours": 1}, "20 GB of a key"),
        ({"outage_hours": 121, "keys": 100}, "ttl of 242 h"),
        ({"events": 100, "outage_hours": 10}, "has had no consumer for 9.04 h"),
        ({"events": 2, "keys": 5}, "10,000 events, which come in 6.94 h"),
        ({"partitions_now": 100, "workers_now": 20}, "read the lag of leases 133 times a second"),
        ({"partitions_now": 20_001, "keys": 1e6, "stalled_seconds": 8_000}, "more than 20,000 leases"),
        (
            {"events": 200, "subscriptions": 2, "filters": 2, "outage_hours": 0.1},
            "and 200 can leave: what waits",
        ),
        (
            {"events": 200, "outage_hours": 1},
            "After an outage of 1 h what waited is sent in 1.5 h, as 333 events",
        ),
        ({"events": 20_000, "workers_now": 2, "keys": 1e6}, "2 workers run, and 3 are needed"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_command_plan_warns_of_each_limit_that_a_load_exceeds(given: dict[str, float], said: str):
    warnings = plan_capacity({"events": 1, **given})[1]

    assert bool(said) == bool(warnings), warnings
    assert said in "\n".join(warnings)


def test_plan_does_not_advise_premium_to_users_of_premium():
    facts = NOWHERE.json("plan", "--events", "400", "--premium", "--outage-hours", "1")

    assert [] == facts["warnings"]
    assert 1 == facts["figures"]["messaging_units"]["value"]
    assert {"given", "default", "Microsoft", "assumed", "measured", "arithmetic", "the worker"} == {
        one["basis"] for one in facts["figures"].values()
    }


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "1e99"])
@pytest.mark.parametrize("option", ["events", "event-bytes", "keys", "filters", "outage-hours"])
def test_plan_refuses_an_impossible_number_in_one_sentence(option: str, number: str):
    ran = NOWHERE.run("plan", "--events", "1", f"--{option}", number, code=ExitCode.UNUSABLE)

    assert re.fullmatch(rf"--{option} has to be a number above 0 and at most [\d,]+, not \S+\.\n", ran.stderr)


def test_plan_without_a_load_asks_for_the_number_of_events():
    assert "--events has to be a number" in NOWHERE.run("plan", code=ExitCode.UNUSABLE).stderr


def test_plan_computes_the_cost_from_given_prices(tmp_path: Path):
    file = tmp_path / "prices.toml"
    file.write_text('currency = "EUR"\n' + "".join(f"{name} = {value}\n" for name, value in PRICES.items()))
    found = NOWHERE.json("plan", "--events", "100", "--outage-hours", "1", "--prices", str(file))["figures"]

    # A month has 730 hours. The sum has five costs: the RU/s of data and leases (billed in steps of 100: 1,700 and 400), 8.85 GB of
    # stored events, the base price of Service Bus, 525.6 million operations, and two workers.
    expected = 730 * 0.01 * (17 + 4) + 0.25 * 8.848624 + 730 * 0.02 + 525.6 * 0.5 + 730 * 0.1 * 2
    assert pytest.approx(expected) == found["cost"]["value"]
    assert "EUR/month" == found["cost"]["unit"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is not valid TOML"),
        (
            "worker_hour = 1\n",
            "request_units_100_hour has to be a number from 0 and at most 1,000,000, not nothing.",
        ),
        ("workers_hour = 1\n", "Unknown names in prices: workers_hour. Known names: request_units_1"),
        ('request_units_100_hour = "1"\n', "request_units_100_hour has to be a number"),
    ],
)
def test_the_command_plan_refuses_a_file_of_prices_that_it_cannot_read(text: str, said: str, tmp_path: Path):
    file = tmp_path / "prices.toml"
    file.write_text(text)

    assert said in NOWHERE.run("plan", "--events", "1", "--prices", str(file), code=ExitCode.UNUSABLE).stderr


def test_plan_measures_the_running_outbox_but_keeps_given_numbers(outbox: Local):
    outbox.run("bootstrap")
    nothing = outbox.run("plan", "--measure", "100", code=ExitCode.UNUSABLE).stderr
    outbox.commit(*(f"c-{number}" for number in range(10)))
    measured = outbox.json("plan", "--measure", "100")["figures"]
    given = outbox.json("plan", "--measure", "100", "--keys", "50")["figures"]

    assert "No event was written in the last 100 s: measure a longer time, or give --events.\n" == nothing
    assert {"value": 0.2, "unit": "", "formula": "", "basis": "measured"} == measured["events"]
    names = ("keys", "busiest_key", "partitions_now", "workers_now")
    assert [10, 0.1, 2, 1] == [measured[name]["value"] for name in names]
    assert 300 < measured["event_bytes"]["value"] < 700
    assert (50, "given") == (given["keys"]["value"], given["keys"]["basis"])


def test_a_commit_on_the_emulator_costs_the_planned_request_units(outbox: Local):
    async def charged(database: DatabaseProxy) -> float:
        contacts = Outbox(CosmosStore(database.get_container_client("data")))
        async with contacts.unit_of_work(ContactsUnitOfWork) as uow:
            uow.contacts.create(Contact(id="c", name=Name(first_name="A", last_name="B")))
            return (await uow.commit()).request_charge

    found = figures(event_bytes=500, entity_bytes=300)
    assert pytest.approx(outbox.on_database(charged), rel=0.3) == found["commit_units"]
