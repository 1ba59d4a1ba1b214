"""
Tests of a deployment with `verify`: it has a database and a topic of their own for `cosmos-outbox verify`.

One of the deployment's outputs is the command to run.
"""

from __future__ import annotations

import inspect
import re
import shlex

from cosmos_outbox_testing.verify.command import verify
from tests.infra.deployed.snapshots import BUS, CONTAINERS, COSMOS, SUBSCRIPTIONS, deployed
from tools.infra_check.programs import problems

MADE, WITHOUT = deployed("verify"), deployed("defaults")
CALLER = "dddddddd-0000-0000-0000-000000000000"
TOPIC = f"{BUS}/sbns-token/topics/verify"


def test_the_topic_for_verify_has_a_subscription_with_and_one_without_sessions():
    """
    Both subscriptions have short locks: `verify` waits until a lock expires, and refuses to wait for more than a
    minute.
    """
    found = {
        name: (one["requiresSession"], one["lockDuration"])
        for name, one in MADE.properties(SUBSCRIPTIONS).items()
        if name != "directory"
    }

    assert MADE.properties(f"{BUS}/topics")["verify"]["requiresDuplicateDetection"] is True
    assert {"verify": (True, "PT10S"), "verify-plain": (False, "PT10S")} == found


def test_the_caller_of_verify_has_roles_only_on_its_database_and_topic():
    """
    The caller of `verify` is Data Contributor of the database, and Sender and Receiver of the topic.

    The caller may also read the description of the account, which each SDK needs.
    """
    account = f"{COSMOS}/cosmos-token"
    roles = {one["id"]: one["properties"].get("roleName") for one in MADE.resources if "properties" in one}
    granted = set()
    for one in MADE.resources:
        given = one.get("properties", {})
        if given.get("principalId") == CALLER:
            scope = given.get("scope") or one["id"].partition("/providers/Microsoft.Authorization/")[0]
            granted.add(
                (scope, roles.get(given["roleDefinitionId"], given["roleDefinitionId"].rpartition("/")[2]))
            )

    assert {
        (account, "outbox-metadata-reader"),
        (f"{account}/dbs/verify", "00000000-0000-0000-0000-000000000002"),
        (TOPIC, "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39"),
        (TOPIC, "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0"),
    } == granted


def test_the_verify_command_in_the_outputs_names_the_deployed_resources():
    # Only Azure knows the endpoint of the account, so the snapshot contains the expression that builds the command.
    ((text, known),) = re.findall(
        r"^\[format\('(.*?)', \S+\.documentEndpoint, (.*)\)\]$", MADE.outputs["VERIFY_COMMAND"]
    )
    names = re.findall(r"'(.*?)'", known)
    words = shlex.split(text.format("https://cosmos-token.documents.azure.com:443/", *names))
    given = dict(word.split("=", 1) for word in words if "=" in word)
    options = inspect.signature(verify).parameters

    assert ["cosmos-outbox", "verify"] == words[len(given) :]
    assert [] == problems("worker", given, None)
    assert "sbns-token.servicebus.windows.net" == given["OUTBOX_SERVICEBUS_NAMESPACE"]
    containers = {given[f"OUTBOX_{name}_CONTAINER"] for name in ("COSMOS", "LEASE", "PARKED")}
    ids = {one["id"] for one in MADE.of_type(CONTAINERS).values()}
    database = f"{COSMOS}/cosmos-token/sqlDatabases/{given['OUTBOX_COSMOS_DATABASE']}"
    assert {f"{database}/containers/{name}" for name in containers} <= ids
    topic = f"{BUS}/sbns-token/topics/{given['OUTBOX_TOPIC']}"
    subscriptions = {options["subscription"].default, options["plain_subscription"].default}
    assert {f"{topic}/subscriptions/{name}" for name in subscriptions} <= MADE.ids


def test_a_deployment_without_verify_has_no_resources_for_it():
    assert "" == WITHOUT.outputs["VERIFY_COMMAND"]
    assert [] == [one for one in WITHOUT.ids if "verify" in one]
