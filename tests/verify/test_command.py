"""Tests of `cosmos-outbox verify` as users run it: its exit codes, its report, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import CosmosClient
from pydantic import SecretStr
from typer import testing

from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.gateway import Gateway
from cosmos_outbox_emulators.cosmos.protocol import Request
from cosmos_outbox_emulators.servicebus.config import BrokerConfig
from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import command, cosmos_claims, service_bus_claims
from cosmos_outbox_testing.verify.redaction import without_names, without_secrets
from cosmos_outbox_testing.verify.report import write_report
from cosmos_outbox_testing.verify.results import Held, Outcome
from cosmos_outbox_worker.cli.app import app
from cosmos_outbox_worker.settings import CommandSettings
from tests.support.effort import LONG
from tests.support.patience import HUNG_SECONDS

pytestmark = [
    pytest.mark.looptime(False),
    # aiohttp warns of request bodies of more than 1 MB. Azure's SDK sends the requests, so this library cannot avoid the warning.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]
SITE = ("verify", "--subscription", "all", "--plain-subscription", "relayed")
COSMOS = ("--only", "preflight", "--only", "cosmos")
CLAIMS = (*cosmos_claims.CLAIMS, *service_bus_claims.CLAIMS)
NOT_ASKED = {"cosmos/split", *(f"{one.area}/{one.name}" for one in CLAIMS if one.not_asked)}
OF_COSMOS = {one for one in NOT_ASKED if one.startswith("cosmos")}
Run = Callable[..., Any]


@pytest.fixture
def run(verified: OutboxEmulators, tmp_path: Path) -> Run:
    def run(*arguments: str, code: int) -> Any:
        result = testing.CliRunner().invoke(app, [*SITE, "--output", str(tmp_path), *arguments])
        assert code == result.exit_code, (result.output, result.stderr, result.exception)
        report = tmp_path / "verify.json"
        return result, json.loads(report.read_text()) if report.exists() else None

    return run


def found(report: Any, held: str) -> set[str]:
    return {f"{one['area']}/{one['name']}" for one in report["outcomes"] if one["held"] == held}


def stored(outbox: OutboxEmulators) -> list[str]:
    with CosmosClient.from_connection_string(outbox.cosmos.connection_string) as client:
        database = client.get_database_client(outbox.database)
        containers = [database.get_container_client(name) for name in ("data", "leases", "parked")]
        return [item["id"] for container in containers for item in container.read_all_items()]


def test_on_the_emulators_the_report_of_verify_says_that_all_claims_hold(run: Run, tmp_path: Path):
    result, report = run(*COSMOS, code=0)

    assert "cosmos/one-lsn" in result.stdout
    assert (set(), set(), OF_COSMOS) == tuple(
        found(report, held) for held in ("broken", "different", "not run")
    )
    page = (tmp_path / "verify.md").read_text()
    assert "| G3 | held |" in page
    assert "- means:" not in page  # the report explains only claims that do not hold


def test_the_report_of_verify_contains_no_secrets(run: Run, verified: OutboxEmulators, tmp_path: Path):
    """The report names the accounts only with the option `--name-accounts`."""
    _, report = run("--only", "cosmos/not-found", code=0)
    text = (tmp_path / "verify.json").read_text() + (tmp_path / "verify.md").read_text()
    parts = f"{verified.cosmos.connection_string};{verified.servicebus.connection_string}".split(";")
    secrets = {part.partition("=")[2] for part in parts} - {"", "true"}

    assert [] == [secret for secret in {*secrets, "127.0.0.1"} if secret in text]
    assert "account" not in report

    _, report = run("--only", "cosmos/not-found", "--name-accounts", code=0)
    assert report["account"]
    assert [] == [secret for secret in secrets if secret in (tmp_path / "verify.json").read_text()]


@pytest.mark.parametrize(
    "text",
    [
        "https://shop.documents.azure.com:443/ refused",
        "shop-westeurope.documents.azure.com refused",
        "of account 'shop'",
        "amqps://SHOP-bus.servicebus.windows.net",
        "Request blocked by Auth shop : Request is blocked because principal [0bad0bad-1111-4222-8333-444455556666] lacks it",
        "the namespace shop-bus is being throttled",
        "SystemTracker:shop-bus:Topic:verify",
        "shop.privatelink.documents.azure.com",
        "key bG9uZyBlbm91Z2g=",
    ],
)
def test_verify_removes_names_of_accounts_and_keys_from_its_texts(text: str):
    settings = CommandSettings.model_construct(
        cosmos_connection_string=SecretStr(
            "AccountEndpoint=https://shop.documents.azure.com:443/;AccountKey=bG9uZyBlbm91Z2g=;"
        ),
        servicebus_namespace="shop-bus.servicebus.windows.net",
    )
    cleared = without_names(without_secrets(text, settings), settings).lower()

    assert [] == [one for one in ("shop", "account-bus", "bg9u", "0bad") if one in cleared]
    kept = "verify-0a1b2c3d-7 of a workshop"
    assert kept == without_names(kept, settings, "verify-0a1b2c3d")


def test_verify_removes_account_names_only_from_texts_of_the_services(tmp_path: Path):
    """The report's own text stays as it is, because the name of an account may be an ordinary word."""
    settings = CommandSettings.model_construct(cosmos_endpoint="https://verify.documents.azure.com:443/")
    run = "verify-0a1b2c3d"
    said = Outcome(
        name="one", area="verify", held=Held.BROKEN, found=f"verify said no to {run}", meaning="verify"
    )
    write_report(tmp_path, {"run": run}, [said], lambda text: without_names(text, settings, run))
    page = (tmp_path / "verify.md").read_text()

    assert "# cosmos-outbox verify\n" in page
    assert "- found: ACCOUNT said no to verify-0a1b2c3d\n- means: verify\n" in page


def test_verify_names_a_broken_promise_and_ends_with_exit_code_2(
    run: Run, verified: OutboxEmulators, tmp_path: Path
):
    verified.cosmos.add_fault({"operation": "read", "status": 404, "substatus": 1002})
    _, report = run("--only", "cosmos/not-found", code=2)

    assert {"cosmos/not-found"} == found(report, "broken")
    assert "## broken: cosmos/not-found" in (tmp_path / "verify.md").read_text()


@pytest.mark.parametrize("deviation", ["304-without-etag", "empty-etag"])
def test_verify_reports_a_change_feed_without_a_continuation_as_a_broken_promise(
    deviation: str, run: Run, verified: OutboxEmulators
):
    """`verify` does not mistake the wrong answer for a missing permission."""
    verified.cosmos.deviate(deviation)
    _, report = run("--only", "preflight", "--only", "cosmos/feed-position", code=2)

    assert ({"cosmos/feed-position"}, set()) == (found(report, "broken"), found(report, "not run"))


def test_verify_ends_with_exit_code_1_for_a_difference_that_breaks_no_promise(
    run: Run, verified: OutboxEmulators
):
    verified.cosmos.add_fault({"operation": "batch", "status": 429, "retry_after_ms": 1, "count": 2})
    # The fault throttles the contract suite `store`. `verify` repeats the throttled test, and reports the throttling afterwards.
    _, report = run("--only", "cosmos/throttled", "--only", "suites/store", code=1)

    assert ({"suites/store"}, {"cosmos/throttled"}) == (found(report, "held"), found(report, "different"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--only", "cosmo"), "there is no such part"),
        (("--only", "cosmos/no-such"), "nothing has this name; cosmos has batch-atomic"),
        (("--dry-run", "--only", "cosmos/one-lns"), "nothing has this name"),
        (("--only", "job/nonsense"), "nothing has this name; job can only run as a whole"),
        (("--only", "preflight/nonsense"), "nothing has this name; preflight can only run as a whole"),
        (("--container", "nope"), "nope"),
    ],
)
def test_verify_ends_with_exit_code_2_and_no_report_for_a_misspelt_name(
    run: Run, options: tuple[str, ...], said: str
):
    result, report = run(*options, code=2)
    assert (True, None) == (said in result.stderr, report)


HELD = ("--only", "cosmos/not-found")


@pytest.mark.parametrize(
    ("also", "code"),
    [
        (("--only", "suites/parked"), 3),
        (("--only", "cosmos/split"), 3),
        (("--only", "cosmos/missing-level"), 0),
    ],
)
def test_verify_ends_with_exit_code_3_if_a_requested_part_could_not_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, also: tuple[str, ...], code: int
):
    """A claim about Azure that `verify` cannot test does not change the exit code."""
    monkeypatch.delenv("OUTBOX_PARKED_CONTAINER")
    _, report = run(*HELD, *also, code=code)
    assert ({also[1]}, [""]) == (
        found(report, "not run"), [one["meaning"] for one in report["outcomes"] if one["held"] == "not run"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("only", "operation", "right", "said"),
    [
        ("servicebus/duplicate-sends", "", "Listen", "Azure Service Bus Data Sender"),
        ("servicebus/long-message-id", "", "Listen", "Azure Service Bus Data Sender"),
        ("servicebus/duplicate-sends", "", "Send", "Azure Service Bus Data Receiver"),
        ("suites/publisher", "", "Listen", "Azure Service Bus Data Sender"),
        ("cosmos/conflict", "create", "", "Cosmos DB Built-in Data Contributor"),
        ("cosmos/conflict", "batch", "", "Cosmos DB Built-in Data Contributor"),
        ("suites/store", "batch", "", "Cosmos DB Built-in Data Contributor"),
    ],
)
def test_verify_names_a_missing_permission_and_reports_no_broken_promise(
    run: Run,
    verified: OutboxEmulators,
    monkeypatch: pytest.MonkeyPatch,
    *,
    only: str,
    operation: str,
    right: str,
    said: str,
):
    if right:
        monkeypatch.setattr(BrokerConfig, "rights_of", lambda *_: frozenset({right}))
    else:
        verified.cosmos.add_fault({"operation": operation, "status": 403, "substatus": 5301, "count": 1})
    result, report = run("--only", only, code=3)

    assert (set(), True) == (found(report, "broken"), said in result.stdout)
    assert "" == result.stderr  # verify reports on stderr what it could not delete


def test_verify_ends_with_exit_code_3_and_advice_if_it_cannot_start(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    for folder in (__file__, "/proc/no-such"):
        assert "no report can be written there" in run("--output", folder, code=3)[0].stderr
    monkeypatch.setenv("OUTBOX_LEASE_CONTAINER", "missing")
    assert "missing" in run(code=3)[0].stderr
    monkeypatch.delenv("OUTBOX_COSMOS_DATABASE")
    assert "OUTBOX_COSMOS_DATABASE: is required" in run(code=3)[0].stderr


@pytest.mark.parametrize("part", ["preflight", "servicebus/duplicate-sends"])
@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            {"": "relayed", "plain-": "all"},
            "'relayed' of topic {} is not a subscription that requires sessions",
        ),
        ({"plain-": "all"}, "'all' of topic {} is not a subscription without sessions"),
        ({"": "missing"}, "'missing' of topic {} does not exist"),
    ],
)
def test_verify_reports_no_broken_promise_for_an_unsuitable_subscription(
    run: Run, verified: OutboxEmulators, part: str, chosen: dict[str, str], said: str
):
    """The output names the subscription and says what is wrong with it."""
    options = [text for kind, name in chosen.items() for text in (f"--{kind}subscription", name)]
    result, report = run("--only", part, *options, code=3)

    assert f"Subscription {said.format(repr(verified.topic))}. Create it" in result.stdout
    assert f"or name another one with {options[0]}." in result.stdout
    # On stderr, the command would name each document that it could not delete.
    assert (set(), "") == (found(report, "broken"), result.stderr)


def test_verify_needs_only_data_plane_roles(
    run: Run, verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    """
    In this test, the emulator's gateway refuses every request that Azure's data-plane roles do not allow: requests about databases and
    throughput, changes of containers, and settings of Service Bus.
    """
    admit, refused = Gateway.admit, []

    def admit_data(gateway: Gateway, asked: Request) -> Any:
        path = asked.target.partition("?")[0].strip("/").split("/")
        reads = asked.method == "GET" and (path == [""] or len(path) == 4)
        if reads or path[4:5] in (["docs"], ["pkranges"]):
            return admit(gateway, asked)
        refused.append(asked.target)
        raise CosmosError(403, "Request blocked by Auth: data-plane roles do not allow it.", substatus=5300)

    monkeypatch.setattr(Gateway, "admit", admit_data)
    monkeypatch.setattr(BrokerConfig, "rights_of", lambda *_: frozenset({"Send", "Listen"}))
    verified.servicebus.add_topic(
        {
            "name": "verify",
            "dedup_window_s": 600,
            "subscriptions": [
                {"name": "all", "requires_session": True, "lock_s": 5},
                {"name": "relayed", "lock_s": 5},
            ],
        }
    )
    monkeypatch.setenv("OUTBOX_TOPIC", "verify")
    _, report = run(*COSMOS, "--only", "servicebus", code=0)

    assert ("unknown: it needs the Manage right", []) == (report["tier"], refused)
    assert NOT_ASKED == found(report, "not run")


def test_a_dry_run_of_verify_sends_no_request(run: Run, verified: OutboxEmulators):
    """The dry run prints which containers and topics a real run would use, and what the run would cost."""
    before = verified.cosmos.requests()
    result, report = run("--dry-run", code=0)

    assert (before, None) == (verified.cosmos.requests(), report)
    assert "containers data, leases, parked; topic" in result.stdout
    assert "request units" in result.stdout
    assert (
        "About 7 requests, 66 request units, 1 minutes"
        in run("--dry-run", "--only", "cosmos/one-lsn", code=0)[0].stdout
    )


@pytest.mark.skipif(not LONG, reason="two minutes of waiting for an account that throttles: make test-long")
def test_verify_reports_a_throttling_account_only_as_a_difference(run: Run, verified: OutboxEmulators):
    """
    If all three attempts of a check are throttled, `verify` goes on with the other checks, and reports a difference.
    """
    verified.cosmos.deviate("throttled")
    _, report = run(*COSMOS, code=1)

    assert (OF_COSMOS, set()) == (found(report, "not run"), found(report, "broken"))
    assert {"cosmos/throttled"} == found(report, "different") - {"preflight/no-answer"}


def test_verify_ends_with_exit_code_3_after_an_unforeseen_error(run: Run, monkeypatch: pytest.MonkeyPatch):
    async def fail(*_: object, **options: object) -> None:
        raise KeyError("regions")

    monkeypatch.setattr(command, "facts_of", fail)
    assert "It could not be run: KeyError: 'regions'" in run("--only", "cosmos/not-found", code=3)[0].stderr


DATA = (("preflight", "cosmos"), "cosmos/conflict")
DEFERRED = (("servicebus/deferred-of-a-session", "servicebus/deferred-and-expired"), "deferred-of-a-session")


@pytest.mark.parametrize(
    ("ending", "ctrl_c", "asked"),
    [
        (signal.SIGINT, signal.default_int_handler, DATA),
        (signal.SIGTERM, signal.default_int_handler, DATA),
        (signal.SIGTERM, signal.SIG_IGN, DATA),  # a shell makes its background jobs ignore SIGINT
        # The signal comes while the check `deferred-and-expired` waits for 7 s.
        (signal.SIGINT, signal.default_int_handler, DEFERRED),
    ],
)
def test_an_interrupted_run_of_verify_deletes_everything_that_it_wrote(
    ending: signal.Signals, ctrl_c: Any, asked: Any, verified: OutboxEmulators, tmp_path: Path
):
    only, until = asked
    (tmp_path / "verify.md").write_text("All that was asked held.")  # the report of an earlier run
    called = [sys.executable, "-m", "cosmos_outbox_worker", *SITE, "--output", str(tmp_path)]
    called += [text for one in only for text in ("--only", one)]
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, ctrl_c)
    with subprocess.Popen(called, **options) as process:  # noqa: S603
        assert any(until in line for line in process.stdout)
        process.send_signal(ending)
        assert "Cleaning up: deleting what was written\n" == process.stderr.readline()
        process.stdout.read()
        assert 130 == process.wait(HUNG_SECONDS)

    assert [] == stored(verified)
    left = verified.servicebus.stats()["topics"][verified.topic]["subscriptions"].values()
    assert 0 == sum(one["active"] for one in left)  # deferred messages count as active too
    assert [] == list(tmp_path.iterdir())
