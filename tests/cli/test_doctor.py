"""
Tests of `cosmos-outbox doctor` on emulators: it reports nothing about a working outbox, and names each mistake that a test plants.
"""

from __future__ import annotations

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from tests.support.local import Local

pytestmark = [pytest.mark.looptime(False), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def found(outbox: Local, *arguments: str, code: int, **variables: str) -> set[tuple[str, str]]:
    findings = outbox.json("doctor", *arguments, code=code, **variables)["findings"]
    return {(finding["severity"], finding["check"]) for finding in findings}


def create(outbox: Local, name: str, path: str, ttl: int | None = -1) -> None:
    async def create_it(database):
        await database.create_container(name, PartitionKey(path), default_ttl=ttl)

    outbox.on_database(create_it)


def test_doctor_has_no_finding_for_a_working_outbox(owned: Local):
    """The test also checks that `doctor` deletes the documents with which it tried the permissions."""
    assert set() == found(owned, code=0)

    async def ids(leases):
        return [item["id"] async for item in leases.read_all_items()]

    assert not [name for name in owned.on_leases(ids) if "doctor" in name]
    assert "drops messages" not in owned.run("doctor").stdout


def test_doctor_reports_leases_without_a_worker_as_an_error_once_events_wait(outbox: Local):
    """While no event waits, doctor only warns of leases without a worker."""
    assert ("warning", "leases") in found(outbox, code=1)
    outbox.run("bootstrap")
    assert ("warning", "owners") in found(outbox, code=1)
    outbox.commit("ada")
    assert ("error", "owners") in found(outbox, code=4)


@pytest.mark.parametrize("partition", ["0", None])
def test_doctor_checks_the_leases_even_if_the_change_feed_is_throttled(owned: Local, partition: str | None):

    async def delete_last(leases):
        items = sorted([item["id"] async for item in leases.read_all_items() if "LeaseToken" in item])
        await leases.delete_item(items[-1], items[-1])

    owned.on_leases(delete_last)
    container = owned.environment["OUTBOX_COSMOS_CONTAINER"]
    fault = {"container": container, "operation": RequestKind.CHANGEFEED, "status": 429}
    owned.steer("/cosmos/faults", **fault, partition=partition, retry_after_ms=100)

    assert ("error", "leases") in found(owned, code=4)


@pytest.mark.parametrize("arguments", [(), ("--api",)])
def test_doctor_names_role_and_firewall_if_the_account_refuses_it(outbox: Local, arguments: tuple[str, ...]):
    outbox.steer("/cosmos/faults", operation=RequestKind.ACCOUNT, status=403)
    (finding,) = outbox.json("doctor", *arguments, code=4)["findings"]
    assert ("error", "account") == (finding["severity"], finding["check"])
    assert "Built-in Data Contributor" in finding["fix"]
    assert "firewall" in finding["fix"]


def test_doctor_reports_unknown_if_the_account_does_not_answer(outbox: Local):
    nowhere = "AccountEndpoint=http://127.0.0.1:9/;AccountKey=a2V5;"
    (finding,) = outbox.json("doctor", code=3, OUTBOX_COSMOS_CONNECTION_STRING=nowhere)["findings"]
    assert ("unknown", "no-answer") == (finding["severity"], finding["check"])
    assert "check the endpoint" in finding["fix"]


def refused(outbox: Local, container: str, *arguments: str) -> dict[str, tuple[str, str]]:
    """
    Let the emulator refuse one kind of request after the other on this container. Return the message and the fix that doctor gives
    for each kind.
    """
    outbox.run("bootstrap")
    outbox.own_leases("worker-1")
    named = {}
    for operation in RequestKind:
        outbox.steer("/cosmos/faults", operation=operation, container=container, status=403)
        findings = outbox.json(
            "doctor", *arguments, code=None, OUTBOX_TOPIC="", OUTBOX_PARKED_CONTAINER="parked"
        )["findings"]
        outbox.steer_delete("/cosmos/faults")
        for finding in findings:
            # Ignore the finding that no topic is set: this test sets none, because the check of a topic would take longer.
            if finding["check"] != "topic":
                assert operation not in named, "told twice"
                named[operation.value] = (finding["message"], finding["fix"])
    return named


@pytest.mark.parametrize(
    ("container", "needed"),
    [
        ("data", {"metadata", "pkranges", "changefeed"}),
        ("leases", {"metadata", "create", "read", "replace", "delete", "query"}),
        ("parked", {"metadata", "create", "read", "replace", "delete", "query", "batch"}),
    ],
)
def test_doctor_names_each_missing_permission_that_a_worker_needs(
    outbox: Local, container: str, needed: set[str]
):
    """Doctor names no permission that the worker does not need."""
    named = refused(outbox, container)
    assert needed == named.keys()
    for operation in named.keys() & {"create", "read", "replace", "delete"}:
        assert f"items/{operation}" in named[operation][1]


def test_doctor_api_names_each_missing_permission_of_an_application(outbox: Local):
    named = refused(outbox, "data", "--api")
    assert {"metadata", "create", "read", "replace", "delete", "query", "batch"} == named.keys()
    assert "items/replace" in named["replace"][1]
    for container in ("leases", "parked"):
        assert {} == refused(outbox, container, "--api"), "it has nothing to do there"
    create(outbox, "endless", "/partitionKey", None)
    assert {("error", "data-ttl")} == found(outbox, "--api", code=4, OUTBOX_COSMOS_CONTAINER="endless")


def test_a_missing_permission_to_delete_events_has_only_the_severity_note(outbox: Local):
    outbox.steer("/cosmos/faults", operation=RequestKind.DELETE, container="data", status=403)
    (finding,) = outbox.json("doctor", "--api")["findings"]
    assert ("note", "permissions") == (finding["severity"], finding["check"])
    assert finding["fix"].startswith("Nothing; or")


@pytest.mark.parametrize("status", [429, 449])
def test_doctor_repeats_a_request_that_a_busy_service_refused(owned: Local, status: int):
    everything = [(one, name) for one in RequestKind for name in ("data", "leases", "parked")]
    for arguments in ((), ("--api",)):
        for operation, container in everything:
            owned.steer("/cosmos/faults", operation=operation, container=container, status=status, count=1)
        owned.run("doctor", *arguments, OUTBOX_PARKED_CONTAINER="parked", OUTBOX_DELETE_AFTER_PUBLISH="*")
        owned.steer_delete("/cosmos/faults")


def test_doctor_recognises_its_trial_document_after_a_lost_answer(outbox: Local):
    outbox.steer("/cosmos/faults", operation="create", container="data", status=408, when="after", count=1)
    outbox.run("doctor", "--api")


@pytest.mark.parametrize(
    ("container", "unknown"),
    [
        ("data", {"read the change feed", "read the leases"}),
        ("leases", {"list leases", "create leases", "delete leases"}),
        ("parked", {"create parked keys", "delete parked keys"}),
    ],
)
def test_doctor_does_not_take_a_busy_service_for_a_missing_permission(
    owned: Local, container: str, unknown: set[str]
):
    look = {RequestKind.METADATA}
    for operations, expected in ((look, {f"read container {container!r}"}), ({*RequestKind} - look, unknown)):
        for operation in operations:
            # The emulator asks doctor to wait for 90 s. Doctor gives up at once, because this is longer than it may wait.
            owned.steer(
                "/cosmos/faults", operation=operation, container=container, status=429, retry_after_ms=90_000
            )
        findings = owned.json("doctor", code=None, OUTBOX_TOPIC="", OUTBOX_PARKED_CONTAINER="parked")[
            "findings"
        ]
        owned.steer_delete("/cosmos/faults")
        others = [one for one in findings if one["check"] != "topic"]
        assert {("unknown", "no-answer")} == {(one["severity"], one["check"]) for one in others}
        assert expected == {
            one["message"].removeprefix("Whether it is possible to ").split(" is not known")[0]
            for one in others
        }
        assert not [one for one in others if "Grant" in one["fix"]]


def test_doctor_deletes_the_documents_with_which_it_tries_permissions(outbox: Local):
    async def ids(database):
        return [
            item["id"]
            for name in ("data", "leases", "parked")
            async for item in database.get_container_client(name).read_all_items()
        ]

    before = outbox.on_database(ids)
    outbox.run("doctor", code=4, OUTBOX_TOPIC="", OUTBOX_PARKED_CONTAINER="parked")
    outbox.run("doctor", "--api")
    assert before == outbox.on_database(ids)


def test_doctor_does_not_take_an_unreachable_service_bus_for_a_missing_permission(owned: Local):
    away = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
    findings = owned.json("doctor", code=3, OUTBOX_SERVICEBUS_CONNECTION_STRING=away)["findings"]
    (found,) = [one for one in findings if one["severity"] != "note"]
    assert ("unknown", "no-answer") == (found["severity"], found["check"])
    assert "send to topic 'events'" in found["message"]


def test_doctor_reports_a_lease_without_progress_with_its_owner_s_reason(owned: Local):
    said = "ParkingFull: The parked store is full. Release keys."
    reason = f"No progress for 60 s, 5 attempts failed: {said}"

    async def stand_still(leases):
        item, *_ = [one async for one in leases.read_all_items() if "LeaseToken" in one]
        await leases.replace_item(item["id"], item | {"properties": {"standstill": reason}})

    owned.on_leases(stand_still)
    (found,) = [one for one in owned.json("doctor", code=4)["findings"] if one["severity"] == "error"]
    assert "standstill" == found["check"]
    assert said in found["message"]
    assert found["message"].startswith("The limit of parked keys or held events is reached (since ")
    assert [reason] == [
        one["standstill"] for one in owned.json("status", code=4)["leases"] if one["standstill"]
    ]
    seen = owned.json("status", code=4)
    assert [said in error for error in seen["errors"]] == [True]
    assert ["stands still"] == [one["state"] for one in seen["leases"] if one["standstill"]]


def test_doctor_checks_a_topic_that_only_a_route_names(owned: Local):
    result = owned.json("doctor", code=4, OUTBOX_ROUTES="entity:contact=nowhere,events")
    sending, missing = [one for one in result["findings"] if one["severity"] == "error"]
    assert "send to topic 'nowhere'" in sending["message"]
    assert "Topic 'nowhere' does not exist" in missing["message"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"OUTBOX_TOPIC": ""}, "OUTBOX_TOPIC"),
        ({"OUTBOX_SERVICEBUS_CONNECTION_STRING": ""}, "OUTBOX_SERVICEBUS_NAMESPACE"),
    ],
)
def test_doctor_reports_a_missing_setting_of_service_bus_as_an_error(owned: Local, wrong, said):
    (finding,) = owned.json("doctor", code=4, **wrong)["findings"]
    assert ("error", "topic") == (finding["severity"], finding["check"])
    assert said in finding["message"]
    assert "the workers need it" in finding["fix"]


def test_doctor_checks_the_permission_to_delete_sent_events(owned: Local):
    deleting = {"OUTBOX_DELETE_AFTER_PUBLISH": "*"}
    assert set() == found(owned, code=0, **deleting)
    owned.steer("/cosmos/faults", operation="delete", container="data", status=403)
    assert set() == found(owned, code=0), "no option asked for it"
    (finding,) = owned.json("doctor", code=4, **deleting)["findings"]
    assert "delete events" in finding["message"]
    assert "OUTBOX_DELETE_AFTER_PUBLISH" in finding["fix"]


def test_doctor_refuses_the_settings_that_a_worker_refuses(outbox: Local):
    shared = {"OUTBOX_LEASE_CONTAINER": "data", "OUTBOX_PARKED_CONTAINER": "data"}
    assert {
        f"{name}: names the container of OUTBOX_COSMOS_CONTAINER, 'data'; it needs one of its own"
        for name in shared
    } <= set(outbox.run("doctor", code=2, **shared).stderr.splitlines())


def test_doctor_warns_of_a_wrong_clock(alone: Local):
    alone.run("bootstrap")
    alone.steer("/cosmos/clock", advance_s=120)
    assert ("warning", "clock") in found(alone, code=1)


def plant(outbox: Local, old: str, new: str, *, move: bool = False) -> None:
    """Copy each lease to an id with `new` in place of `old`. With `move`, delete the original lease."""

    async def write(leases):
        # Read all leases before the first copy is written, so that no copy is copied again.
        for item in [item async for item in leases.read_all_items()]:
            await leases.create_item({**item, "id": item["id"].replace(old, new, 1)})
            if move:
                await leases.delete_item(item["id"], item["id"])

    outbox.on_leases(write)


def test_doctor_reports_another_processor_as_an_error_if_sent_events_are_deleted(owned: Local):
    """If the worker keeps sent events, doctor has only a note about a second processor of the container."""
    plant(owned, "outbox", "audit")
    assert ("note", "other-processors") in found(owned, code=0)
    assert "audit" in owned.run("doctor").stdout
    assert ("error", "other-processors") in found(owned, code=4, OUTBOX_DELETE_AFTER_PUBLISH="*")


def test_doctor_reports_leases_under_another_host_name_of_the_account(owned: Local):
    """
    The ids of leases contain the host name of the account. So leases that were created under another host name do not match, and
    commands refuse them.
    """
    plant(owned, "127.0.0.1", "127-westeurope.documents.azure.com", move=True)
    assert ("error", "lease-names") in found(owned, code=4)
    assert "127-westeurope" in owned.run("status", code=2).stderr
