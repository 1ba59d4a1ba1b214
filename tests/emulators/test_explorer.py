"""
Tests of the explorer, the web pages of the emulators: which items and messages they show, and that looking at them changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import aiohttp
import pytest

from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.seed import plant
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.queue import Outcome
from tests.emulators.servicebus.engine import Recorder, broker, message
from tests.support.browser import Browser, started_chromium

pytestmark = pytest.mark.looptime(False)

EVIL = "<script>alert('x')</script>&\""
ENTITIES = {
    "topics": [{"name": "events", "subscriptions": [{"name": "all", "requires_session": True}]}],
    "queues": [{"name": "q"}],
}


@asynccontextmanager
async def explored(seed=None) -> AsyncIterator[tuple[CosmosServer, object, object]]:
    """
    Run both emulators with the control server, which serves the explorer.

    Yield the Cosmos DB server, the broker, and a function that fetches a page and returns its status, headers and text. The
    function's attribute `url` is the address of the explorer.
    """
    clock = AdjustableClock()
    engine, _ = broker(ENTITIES)
    async with (
        CosmosServer(Account(clock=clock)) as cosmos,
        ControlServer(cosmos, engine, clock=clock) as control,
        aiohttp.ClientSession() as session,
    ):
        plant(cosmos.account, seed or {})

        async def page(address, /, **query):
            async with session.get(control.url + address, params=query) as reply:
                return reply.status, reply.headers, await reply.text()

        page.url = control.url
        yield cosmos, engine, page


def rows_of(text: str) -> list[list[str]]:
    """Return the text of the cells of each table row of a page."""
    lines = re.findall(r"<tr>(<td.*?)</tr>", text, re.DOTALL)
    plain = [re.findall(r"<td[^>]*>(.*?)</td>", line, re.DOTALL) for line in lines]
    return [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in cells] for cells in plain]


def seed_of(*items, key="/pk"):
    return {
        "databases": [
            {
                "id": "shop",
                "containers": [{"id": "orders", "partitionKey": key, "ranges": 2, "items": [*items]}],
            }
        ]
    }


async def test_the_first_page_of_the_explorer_lists_containers_entities_and_faults():
    async with explored(seed_of({"id": "1", "pk": "a"})) as (cosmos, engine, page):
        cosmos.faults.add({"operation": "batch", "status": 429, "count": 3})
        engine.faults.add({"action": "server-busy"})
        engine.topic("events").publish([message("a", session_id="s")])
        status, headers, text = await page("/")
        assert (200, "text/html; charset=utf-8") == (status, headers["content-type"])
        found = rows_of(text)
        assert ["shop", "orders", "/pk", "1", "2", ""] in found
        assert ["events", "all", "1", "0", "1", "0", "0", "1"] in found
        assert any('"status": 429' in row[0] and '"left": 3' in row[0] for row in found)
        assert any("server-busy" in row[0] for row in found)


async def test_the_explorer_pages_the_items_of_a_container_and_filters_them_by_key():
    items = [{"id": f"i{n:03}", "pk": f"k{n % 2}"} for n in range(120)]
    typed = [{"id": "number", "pk": 5}, {"id": "text", "pk": "5"}, {"id": "none"}]
    async with explored(seed_of(*items, *typed)) as (_, _, page):
        where = {"database": "shop", "container": "orders"}
        seen, numbers = [], range(3)
        for number in numbers:
            _, _, text = await page("/explorer/container", **where, page=number)
            seen.append([row[0].split("{")[0] for row in rows_of(text)[2:]])
            assert (number < 2, number > 0) == ("Next page" in text, "Previous page" in text)
        assert [50, 50, 23] == [len(each) for each in seen]
        assert 123 == len(set().union(*seen))

        for key, names in (("k1", 60), ("5", 2), ("k9", 0), ("[1, 2]", 0)):
            _, _, text = await page("/explorer/container", **where, key=key)
            assert min(names, 50) == len(rows_of(text)[2:]), key


async def test_the_explorer_takes_a_hierarchical_key_as_a_json_array():
    async with explored(seed_of({"id": "1", "a": "x", "b": 1}, key=["/a", "/b"])) as (_, _, page):
        where = {"database": "shop", "container": "orders"}
        for key, count in (('["x", 1]', 1), ('["x", 2]', 0), ("x", 0)):
            _, _, text = await page("/explorer/container", **where, key=key)
            assert count == len(rows_of(text)[2:]), key
        assert "x, 1" in rows_of((await page("/explorer/container", **where))[2])[2]


async def test_the_explorer_shows_the_messages_of_a_queue_without_locking_them():
    """The test looks at messages, sessions, locks and dead letters."""
    async with explored() as (_, engine, page):
        queue = engine.queue("q")
        engine.topic("q").publish([message(name, body=f"body {name}".encode()) for name in "abc"])
        receiver = Recorder(credit=2)
        queue.pump(receiver)
        queue.settle(receiver.got[0][1], Outcome.DEAD_LETTER, "no use")
        _, _, text = await page("/explorer/queue", path="q")
        assert [["2", "locked"], ["3", "ready"]] == [[row[1], row[3]] for row in rows_of(text)]
        assert "body b" in text
        _, _, text = await page("/explorer/queue", path="Q/$deadletterqueue")
        assert ["no use"] == [row[7] for row in rows_of(text)]
        assert (1, 2) == (len(queue.locked), queue.active)

        engine.topic("events").publish([message("a", session_id="s"), message("b", session_id="s")])
        sessions = engine.queue("events/Subscriptions/all").sessions
        sessions.set_state(sessions.accept(Recorder(), "s"), b"half way")
        _, _, text = await page("/explorer/queue", path="events/Subscriptions/all")
        [session, *_] = rows_of(text)
        assert ["s", "2"] == session[:2]
        assert ("until", "half way") == (session[2][:5], session[3][-8:])


async def test_every_page_of_the_explorer_escapes_stored_text():
    """
    Names and bodies that look like HTML have no effect. The only script is the explorer's own, on its first page.
    """
    item = {"id": EVIL.replace("/", "|"), "pk": EVIL, "value": EVIL}
    async with explored(seed_of(item)) as (cosmos, engine, page):
        cosmos.faults.add({"container": EVIL, "status": 500})
        sent = message(
            EVIL,
            session_id=EVIL,
            body=EVIL.encode(),
            application={EVIL: EVIL},
        )
        engine.topic("events").publish([sent])
        own = ['<script src="/explorer/live.js" defer>']
        for path, query, scripts in (
            ("/", {}, own),
            ("/explorer/container", {"database": "shop", "container": "orders"}, []),
            ("/explorer/container", {"database": "shop", "container": "orders", "key": EVIL}, []),
            ("/explorer/queue", {"path": "events/Subscriptions/all"}, []),
        ):
            status, headers, text = await page(path, **query)
            assert (200, scripts) == (status, re.findall("<script[^>]*>?", text))
            assert "http-equiv" not in text, "it would be loaded anew under its reader"
            assert "default-src 'none'" in headers["content-security-policy"]


async def test_the_first_page_of_the_explorer_renews_itself_in_a_browser(tmp_path: Path):
    """If the emulators no longer answer, the page says so."""
    with started_chromium(tmp_path) as session:
        async with aiohttp.ClientSession() as http, explored(seed_of()) as (cosmos, engine, page):
            browser = Browser(http, session)
            await browser.open(page.url)
            await browser.run("window.kept = document.querySelector('h1')")
            engine.faults.add({"action": "server-busy"})
            cosmos.account.create_database({"id": "later"})
            await browser.run("document.querySelector('a').focus(); return renew()")
            text = await browser.run("return document.body.innerText")
            assert ("server-busy" in text, "later" in text) == (True, False), (
                "the reader was in the databases"
            )
            await browser.run("document.activeElement.blur(); return renew()")
            text = await browser.run("return document.body.innerText")
            assert ("later" in text, "do not answer" in text) == (True, False)
            assert await browser.run("return window.kept === document.querySelector('h1')")
            await browser.run("fetch = () => Promise.reject(new Error('gone')); return renew()")
            assert "do not answer" in await browser.run("return document.body.innerText")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/explorer/container", 400),
        ("/explorer/container?database=d&container=c", 404),
        ("/explorer/container?database=shop&container=c", 404),
        ("/explorer/queue", 400),
        ("/explorer/queue?path=events", 404),
        ("/explorer/queue?path=q&page=99999999999999999999", 200),
        ("/explorer/queue?path=q&page=-1", 200),
        ("/explorer/container?database=shop&container=orders&key=" + "[" * 2000, 200),
    ],
)
async def test_the_explorer_answers_an_odd_address_with_a_fitting_status(path: str, status: int):
    async with explored(seed_of()) as (_, _, page):
        assert status == (await page(path))[0]
