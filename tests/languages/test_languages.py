"""
Run programs with the Azure SDKs for JavaScript, Go, Java and .NET against the emulators, over TLS: `make test-languages`.

With Cosmos DB, each program commits a batch and has another one refused, reads the change feed, replaces the throughput of a container,
resumes an ordered query on its second page, and reads by a hierarchical partition key. With Service Bus, it sends and receives by session,
receives a deferred message by its sequence number, administers a queue, sends with a signature for the bare host name, is refused with an
expired signature, and reads messages that the library's publisher encoded.

The programs for JavaScript, Go and Java print what they find, and the test compares it. The program for .NET compares it itself, step by
step. If a language is not installed on this machine, or its package registry does not answer, its test is skipped with the reason.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from azure.servicebus import ServiceBusMessageBatch, TransportType
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.servicebus import ServiceBusPublisher, encoding
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.records import Record
from tests.support.patience import HUNG_SECONDS

if not os.environ.get("OUTBOX_TEST_LANGUAGES"):
    pytest.skip("installs packages of other languages: make test-languages", allow_module_level=True)

pytestmark = [pytest.mark.looptime(False), pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
INSTALL_SECONDS = 900

# What three ordered queries return if each page is read by a new query, which has the continuation of the page before:
# - across: a query over several ranges. It returns whether it had more than one page, and then all numbers.
# - filter: a query whose filter names the partition key. It returns its pages, and so does the next query.
# - key: a query with a partition key as its option.
PAGES = {
    "across": [True, *range(10)],
    "filter": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
    "key": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
}
QUERIES = {"js": PAGES.keys(), "go": ("filter", "key"), "java": PAGES.keys()}

# How the program in each language names the types of a string and of an integer.
TYPES = {
    "js": ("string", "number"),
    "go": ("string", "int32"),
    "java": ("String", "Integer"),
    "dotnet": ("String", "Int32"),
}

# The number of steps of the .NET program. The test compares it, so that no step is left out by mistake.
DOTNET_STEPS = 157

# Deviations from Azure that an emulator can be started with. For each: the topic and the step of the .NET program that has to fail then.
NOTICED = [
    ("304-without-etag", "feed", "from now, nothing"),
    ("feed-skips", "feed", "from the beginning, all"),
    ("feed-reversed", "processor", "over a split, each key in its order"),
    ("412-is-409", "reference", "017 Delete_Single_MidAir_Collision: another etag"),
    ("etags-ignored", "reference", "016 Update_Single_MidAir_Collision: another etag"),
    ("creations-overwrite", "reference", "019 Create_Single_Conflict: its id is there"),
    ("items-never-expire", "reference", "their time to live of ten seconds"),
    ("missing-is-1003", "points", "another key does not have it"),
    ("charges-hidden", "points", "a creation answers the item, an etag, a charge and a session"),
    (
        "duplicates-kept",
        "messages",
        "a session by its name has its messages in order, without one whose id was there",
    ),
    ("deliveries-uncounted", "messages", "one that failed comes again, and counts"),
]


@contextmanager
def started(*options: str) -> Iterator[dict[str, str]]:
    """
    Start both emulators on free ports. Yield environment variables with their addresses, for the programs.
    """
    command = [sys.executable, "-m", "cosmos_outbox_emulators", "--json", "--tls", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own code
        announced = json.loads(process.stdout.readline())
        try:
            cosmos, servicebus = (fields(announced[name]) for name in ("cosmos", "servicebus"))
            yield {
                "COSMOS_ENDPOINT": cosmos["AccountEndpoint"],
                "COSMOS_KEY": cosmos["AccountKey"],
                "SERVICEBUS_CONNECTION_STRING": announced["servicebus"],
                "SERVICEBUS_ADDRESS": servicebus["Endpoint"].removeprefix("sb://"),
                "SERVICEBUS_SIGNED": signed(servicebus, expires=4_102_444_800),
                "SERVICEBUS_EXPIRED": signed(servicebus, expires=1_577_836_800),
                "CERTIFICATE": announced["certificate"],
                "CONTROL": announced["control"],
                "NO_PROXY": "127.0.0.1,localhost",
            }
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def emulators() -> Iterator[dict[str, str]]:
    """The environment variables for a pair of emulators that all languages share."""
    with started() as variables:
        yield variables


def fields(connection_string: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in connection_string.rstrip(";").split(";"))


def signed(servicebus: Mapping[str, str], *, expires: int) -> str:
    """
    Return a connection string with a shared access signature for the bare host name, as the tests of the Go SDK make it.
    """
    host = quote_plus(servicebus["Endpoint"].removeprefix("sb://"))
    digest = hmac.digest(
        servicebus["SharedAccessKey"].encode(), f"{host}\n{expires}".encode(), hashlib.sha256
    )
    signature = quote_plus(base64.b64encode(digest))
    token = f"sr={host}&sig={signature}&se={expires}&skn={servicebus['SharedAccessKeyName']}"
    return f"Endpoint={servicebus['Endpoint']};SharedAccessSignature=SharedAccessSignature {token}"


def sources(language: str, folder: Path, *programs: str) -> Path:
    """
    Copy the folder of a language's program, because installers write files into it. Return the copy. Skip the test if a command is missing.
    """
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"NOT TESTED: {', '.join(missing)} is not on this machine")
    return Path(shutil.copytree(HERE / language, folder / language))


def install(*command: str, folder: Path) -> None:
    done = run(*command, folder=folder, seconds=INSTALL_SECONDS)
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        pytest.skip(f"NOT TESTED: {' '.join(command[:3])} cannot install: {' '.join(why):.200}")


def run(
    *command: str, folder: Path, env: Mapping[str, str] | None = None, seconds: float = HUNG_SECONDS
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own programs
        command,
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def results(done: subprocess.CompletedProcess[str]) -> object:
    assert 0 == done.returncode, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def expected(language: str) -> dict[str, object]:
    return {
        "committed": [201, 201],
        "refused": [424, 409],
        "changes": ["entity", "event"],
        "throughput": [18_000, 12_000],
        "pages": {query: PAGES[query] for query in QUERIES[language]},
        "hierarchical": "bob",
        "received": [f"{language}: {language} {number}" for number in (1, 2)],
        "ours": [as_read(message, *TYPES[language]) for message in ours(language)],
        "deferred": "later",
        # The lock duration and message count of a new queue, whether a subscription requires sessions, and whether a deleted queue exists.
        "administered": ["PT30S", 0, True, False],
        "signed": "signed",
        "expired": "ExpiredToken: The token is expired. Expiration time: 'Wed, 01 Jan 2020 00:00:00 GMT'",
    }


def ours(language: str) -> list[OutboundMessage]:
    """
    Return messages whose strings, integers and bodies need the short and the long encodings of AMQP.

    The SDK encodes the first message of a batch, and the library the others. So the first message has the same contents as the second.
    """
    session = f"{language}-ours"
    name = "Zo\u00eb \u20ac \U0001f600"
    like_the_second, second = (
        OutboundMessage(
            message_id=f"{session}-{number}-\u00eb",
            session_id=session,
            subject="Renamed",
            body=json.dumps({"name": name}, ensure_ascii=False).encode(),
            properties={"name": name, "number": 7},
        )
        for number in (1, 2)
    )
    integers = OutboundMessage(
        message_id=f"{session}-3",
        session_id=session,
        subject=f"Renamed to {name}",
        body=b"",
        content_type="text/plain; charset=utf-8",
        properties={
            "text": name * 100,
            "empty": "",
            "negative": -5,
            "byte": 200,
            "least": -(2**31),
            "most": 2**31 - 1,
        },
    )
    large = OutboundMessage(
        message_id=f"{session}-4",
        session_id=session,
        subject="x" * 300,
        body=(name * 5_000).encode(),
        content_type="text/plain",
        properties={},
    )
    return [like_the_second, second, integers, large]


def as_read(message: OutboundMessage, text: str, integer: str) -> dict[str, object]:
    return {
        "id": message.message_id,
        "session": message.session_id,
        "subject": message.subject,
        "contentType": message.content_type,
        "properties": {
            name: [text if isinstance(value, str) else integer, value]
            for name, value in message.properties.items()
        },
        "body": message.body.decode(),
    }


def publish(emulators: Mapping[str, str], language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish the messages of `ours`. Require that the library's own encoder encoded all of them except the first."""
    told: list[Record] = []
    appended: list[bool] = []
    append = encoding.append

    def noted(batch: ServiceBusMessageBatch, message: OutboundMessage) -> bool:
        appended.append(append(batch, message))
        return appended[-1]

    async def send() -> None:
        async with (
            # With this SDK, only `custom_endpoint_address` can name another port than 5671. The SDK then uses WebSockets by default, so
            # the transport is set, too.
            ServiceBusClient.from_connection_string(
                emulators["SERVICEBUS_CONNECTION_STRING"],
                custom_endpoint_address=f"sb://{emulators['SERVICEBUS_ADDRESS']}",
                transport_type=TransportType.Amqp,
                connection_verify=emulators["CERTIFICATE"],
                retry_total=0,
            ) as client,
            ServiceBusPublisher(client, "events", lanes=1, notify=told.append) as publisher,
        ):
            await publisher.publish(0, ours(language))

    # Once in a process, the library compares its encoder with that of the SDK. Let it do so before `append` is
    # patched.
    assert encoding.difference() is None
    monkeypatch.setattr(encoding, "append", noted)
    asyncio.run(send())

    assert ([], [True] * 3) == (told, appended), "SdkFallback, or a message that the SDK encoded"


def test_the_javascript_sdks_work_on_the_emulators(
    emulators: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = sources("js", tmp_path, "node", "npm")
    install("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent", folder=folder)
    trust = {"NODE_EXTRA_CA_CERTS": emulators["CERTIFICATE"]}
    publish(emulators, "js", monkeypatch)
    done = run("node", "smoke.mjs", folder=folder, env=emulators | trust)

    assert expected("js") == results(done)


def test_the_go_sdks_work_on_the_emulators(
    emulators: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = sources("go", tmp_path, "go")
    install("go", "mod", "download", folder=folder)
    built = run("go", "build", "-mod=readonly", "-o", "smoke", ".", folder=folder, seconds=INSTALL_SECONDS)
    assert (0, "") == (built.returncode, built.stderr)
    publish(emulators, "go", monkeypatch)
    done = run(
        str(folder / "smoke"), folder=folder, env=emulators | {"SSL_CERT_FILE": emulators["CERTIFICATE"]}
    )

    assert expected("go") == results(done)


def test_the_java_sdks_work_on_the_emulators(
    emulators: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = sources("java", tmp_path, "java", "keytool", "mvn")
    install("mvn", "--batch-mode", "--quiet", "dependency:build-classpath", folder=folder)
    store = "trust.p12"
    imported = run(
        "keytool",
        *("-importcert", "-noprompt", "-alias", "emulators", "-file", emulators["CERTIFICATE"]),
        *("-keystore", store, "-storetype", "PKCS12", "-storepass", "changeit"),
        folder=folder,
    )
    assert 0 == imported.returncode, imported.stdout
    trust = [f"-Djavax.net.ssl.trustStore{end}" for end in (f"={store}", "Password=changeit")]
    classpath = (folder / "classpath").read_text()
    publish(emulators, "java", monkeypatch)
    done = run("java", *trust, "-cp", classpath, "Smoke.java", folder=folder, env=emulators)

    assert expected("java") == results(done)


@pytest.fixture(scope="module")
def build_dotnet(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """
    Return a function that builds the .NET program at its first call. If this function skips the tests, pytest reports
    one line for all of them. A fixture that skips would be reported for each test.
    """

    @cache
    def build() -> Path:
        folder = sources("dotnet", tmp_path_factory.mktemp("languages"), "dotnet")
        install("dotnet", "restore", "--verbosity", "quiet", folder=folder)
        built = run(
            *("dotnet", "build", "--no-restore", "--output", "built"), folder=folder, seconds=INSTALL_SECONDS
        )
        assert 0 == built.returncode, built.stdout
        return folder

    return build


def run_dotnet(
    folder: Path, emulators: Mapping[str, str], *topics: str, published: Sequence[OutboundMessage] = ()
) -> tuple[int, list[str], list[str], str]:
    """
    Run the .NET program. Return its exit code, the steps that passed, the steps that failed, and what it printed about the failed steps.
    """
    there = folder / "published.json"
    there.write_text(json.dumps([as_read(message, *TYPES["dotnet"]) for message in published]))
    command = ("dotnet", "built/smoke.dll", *topics)
    done = run(*command, folder=folder, env={**emulators, "PUBLISHED": str(there)}, seconds=INSTALL_SECONDS)
    *told, last = done.stdout.splitlines() or [""]
    assert last.startswith("{"), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    steps = json.loads(last)
    return done.returncode, steps["passed"], steps["failed"], "\n".join(told)


def test_the_dotnet_sdk_works_on_the_emulators(
    emulators: dict[str, str], build_dotnet: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
):
    folder = build_dotnet()
    publish(emulators, "dotnet", monkeypatch)
    code, passed, failed, told = run_dotnet(folder, emulators, published=ours("dotnet"))

    assert (0, []) == (code, failed), told
    assert DOTNET_STEPS == len(passed)


@pytest.mark.parametrize(("deviation", "topic", "step"), NOTICED)
def test_the_dotnet_program_notices_a_deviation_of_the_emulators_from_azure(
    build_dotnet: Callable[[], Path], deviation: str, topic: str, step: str
):
    folder = build_dotnet()
    with started("--deviate", deviation) as emulators:
        code, _, failed, told = run_dotnet(folder, emulators, topic)

    assert (1, True) == (code, f"{topic}: {step}" in failed), told or "all steps passed"
