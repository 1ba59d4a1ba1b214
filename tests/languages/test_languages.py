"""
The SDKs of other languages on the emulators, with TLS: `make test-languages`.

A program for each commits a batch, has one refused, reads the change feed, replaces the throughput of a container, resumes an order on
its second page, reads by a hierarchical key; sends and receives by session, takes a deferred message by its number, administers a queue,
sends with a signature that names the bare host, is refused with an expired one, and reads messages that the library's publisher encoded.
That for .NET compares what it finds itself, step by step. A language that is not on this machine, or whose package registry does not
answer, is skipped with the reason.
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

# Where an order is resumed: over several ranges (was it resumed, and all numbers), by a filter that names the partition key, by the key
PAGES = {
    "across": [True, *range(10)],
    "filter": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
    "key": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
}
QUERIES = {"js": PAGES.keys(), "go": ("filter", "key"), "java": PAGES.keys()}

# What each calls the types of a text and of an integer
TYPES = {
    "js": ("string", "number"),
    "go": ("string", "int32"),
    "java": ("String", "Integer"),
    "dotnet": ("String", "Int32"),
}

# All of them, so that none is left out by mistake
DOTNET_STEPS = 157

# What an emulator does otherwise than Azure, and a topic of the program for .NET with a step that has to notice
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
    Both emulators, as environment variables; ports 8081 and 5671 may be taken, so they are free ones.
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
    """One pair for all languages."""
    with started() as variables:
        yield variables


def fields(connection_string: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in connection_string.rstrip(";").split(";"))


def signed(servicebus: Mapping[str, str], *, expires: int) -> str:
    """
    Return a connection string whose signature names the bare host, as the tests of the SDK for Go sign it.
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
    Return a copy of the program's folder, since installers write beside it; skip where a command is missing.
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
        # The lock and the messages of a new queue, whether a subscription has sessions, whether the queue outlives its deletion
        "administered": ["PT30S", 0, True, False],
        "signed": "signed",
        "expired": "ExpiredToken: The token is expired. Expiration time: 'Wed, 01 Jan 2020 00:00:00 GMT'",
    }


def ours(language: str) -> list[OutboundMessage]:
    """
    Return messages with the short and the long forms of texts, integers and bodies.

    The SDK encodes the first message of a batch: that one is like the second.
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
    """Send the library's messages, and check that its own encoder wrote all but the first."""
    told: list[Record] = []
    appended: list[bool] = []
    append = encoding.append

    def noted(batch: ServiceBusMessageBatch, message: OutboundMessage) -> bool:
        appended.append(append(batch, message))
        return appended[-1]

    async def send() -> None:
        async with (
            # This SDK takes another port than 5671 from here only, and then means WebSockets unless it is told.
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

    assert encoding.difference() is None  # found out once for a process, with this function too
    monkeypatch.setattr(encoding, "append", noted)
    asyncio.run(send())

    assert ([], [True] * 3) == (told, appended), "SdkFallback, or a message that the SDK encoded"


def test_javascript(emulators: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = sources("js", tmp_path, "node", "npm")
    install("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent", folder=folder)
    trust = {"NODE_EXTRA_CA_CERTS": emulators["CERTIFICATE"]}
    publish(emulators, "js", monkeypatch)
    done = run("node", "smoke.mjs", folder=folder, env=emulators | trust)

    assert expected("js") == results(done)


def test_go(emulators: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = sources("go", tmp_path, "go")
    install("go", "mod", "download", folder=folder)
    built = run("go", "build", "-mod=readonly", "-o", "smoke", ".", folder=folder, seconds=INSTALL_SECONDS)
    assert (0, "") == (built.returncode, built.stderr)
    publish(emulators, "go", monkeypatch)
    done = run(
        str(folder / "smoke"), folder=folder, env=emulators | {"SSL_CERT_FILE": emulators["CERTIFICATE"]}
    )

    assert expected("go") == results(done)


def test_java(emulators: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    """Give what builds the program once; what skips there says so in one line for all tests, unlike a fixture."""

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
    Return the status, the steps that passed and those that failed, and what was printed of these.
    """
    there = folder / "published.json"
    there.write_text(json.dumps([as_read(message, *TYPES["dotnet"]) for message in published]))
    command = ("dotnet", "built/smoke.dll", *topics)
    done = run(*command, folder=folder, env={**emulators, "PUBLISHED": str(there)}, seconds=INSTALL_SECONDS)
    *told, last = done.stdout.splitlines() or [""]
    assert last.startswith("{"), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    steps = json.loads(last)
    return done.returncode, steps["passed"], steps["failed"], "\n".join(told)


def test_dotnet(emulators: dict[str, str], build_dotnet: Callable[[], Path], monkeypatch: pytest.MonkeyPatch):
    folder = build_dotnet()
    publish(emulators, "dotnet", monkeypatch)
    code, passed, failed, told = run_dotnet(folder, emulators, published=ours("dotnet"))

    assert (0, []) == (code, failed), told
    assert DOTNET_STEPS == len(passed)


@pytest.mark.parametrize(("deviation", "topic", "step"), NOTICED)
def test_dotnet_notices(build_dotnet: Callable[[], Path], deviation: str, topic: str, step: str):
    folder = build_dotnet()
    with started("--deviate", deviation) as emulators:
        code, _, failed, told = run_dotnet(folder, emulators, topic)

    assert (1, True) == (code, f"{topic}: {step}" in failed), told or "all steps passed"
