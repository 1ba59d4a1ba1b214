"""
Tests of the status page in a browser: it is accessible by axe-core's rules, fits its window, and renews itself.

`UPDATE_STATUS_PAGE=1` writes the pictures of the documentation.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from cosmos_outbox.changefeed import Lag
from cosmos_outbox_worker.http_server import serving_health
from tests.support.browser import Browser, axe_core, size_of, started_chromium, violations
from tests.support.fleets import ALL, HEALTHY, HOSTILE, LARGE, TROUBLED
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

PICTURES = Path(__file__).parents[2] / "docs/how-to/images"
WIDE, TABLET, PHONE = 1200, 768, 400
SHOTS = {
    "wide": (TROUBLED, WIDE, 1500, "light"),
    "tablet": (TROUBLED, TABLET, 1300, "light"),
    "phone": (TROUBLED, PHONE, 1200, "light"),
    "dark": (HEALTHY, WIDE, 1150, "dark"),
}


class Site:
    """
    A health port with the status page of a worker. The test sets the worker's state, and can stop and start the port.
    """

    def __init__(self) -> None:
        self.snapshot = HEALTHY
        self._serving: AsyncExitStack | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._serving = AsyncExitStack()
        health = serving_health(
            lambda: self.snapshot,
            metrics=lambda: (b"", "text/plain"),
            address=str(port),
        )
        self.url = await self._serving.enter_async_context(health)

    async def stop(self) -> None:
        if self._serving is not None:
            await self._serving.aclose()
            self._serving = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started_chromium(tmp_path_factory.mktemp("chromium")) as session:
        yield session


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HUNG_SECONDS)) as http:
        opened = Browser(http, chromium)
        await opened.open("about:blank")
        await opened.show_as(WIDE)
        yield opened


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    served = Site()
    await served.start()
    yield served
    await served.stop()


async def test_axe_core_finds_no_violation_in_any_state_size_or_colour(browser: Browser, site: Site):
    axe, found = axe_core(), {}
    # Only 60 leases, because axe-core takes long for a page with a thousand.
    few = replace(LARGE, lag=Lag(leases=LARGE.lag.leases[:60])) if LARGE.lag else LARGE
    for name, site.snapshot in (ALL | {"large": few}).items():
        looks = (
            ((WIDE, "light"), (PHONE, "dark")) if site.snapshot in (TROUBLED, HOSTILE) else ((WIDE, "light"),)
        )
        for width, scheme in looks:
            await browser.show_as(width, scheme=scheme)
            await browser.open(site.url)
            found[name, width] = await violations(browser, axe)
    assert {} == {where: faults for where, faults in found.items() if faults}


async def test_the_status_page_fits_its_window_in_every_state(browser: Browser, site: Site):
    """The page never needs a horizontal scroll bar. Names and errors that look like HTML are shown as text."""
    for name, site.snapshot in ALL.items():
        for width in (WIDE, TABLET, PHONE, 320):
            await browser.show_as(width)
            await browser.open(site.url)
            assert width == await browser.run("return document.documentElement.scrollWidth"), (name, width)
        if name == "large":
            assert 24 <= await browser.run("return document.querySelector('summary').offsetHeight"), (
                "a finger's tip"
            )
    site.snapshot = HOSTILE
    await browser.open(site.url)
    assert [0, 1] == await browser.run("return [document.images.length, document.scripts.length]")
    assert "cosmos-outbox" in await browser.run("return document.title")


async def test_the_keyboard_reaches_all_parts_of_the_page_with_a_visible_focus(browser: Browser, site: Site):
    site.snapshot = TROUBLED
    await browser.open(site.url)
    reached = []
    while not reached or "BODY" != reached[-1]:
        await browser.press("\ue004")  # Tab
        tag, outline = await browser.run(
            "const now = document.activeElement; return [now.tagName, getComputedStyle(now).outlineStyle]"
        )
        assert "BODY" == tag or "none" != outline
        reached.append(tag)
    assert [*["DIV"] * 7, *["A"] * 3, "BODY"] == reached


async def test_the_status_page_renews_itself_and_finds_a_restarted_worker(browser: Browser, site: Site):
    await browser.open(site.url)
    await browser.run("window.kept = document.querySelector('h1')")

    site.snapshot = TROUBLED
    await browser.run("return renew()")
    assert "NOT READY" in await browser.run("return document.title")
    assert "polite" == await live(browser)

    assert "97 s" not in await browser.run("return document.body.innerText")
    site.snapshot = replace(TROUBLED, at=TROUBLED.at + timedelta(seconds=7))
    await browser.run("return renew()")
    assert ["off", True] == [
        await live(browser),
        "97 s" in await browser.run("return document.body.innerText"),
    ]

    port = site.port
    await site.stop()
    await browser.run("return renew()")
    assert "does not answer" in await browser.run("return document.body.innerText")

    site.snapshot = replace(HEALTHY, instance="the-next-one")
    await site.start(port)
    await browser.run("return renew()")
    text = await browser.run("return document.body.innerText")
    assert ("the-next-one" in text, "does not answer" in text) == (True, False)
    assert await browser.run("return window.kept === document.querySelector('h1')"), "it was loaded anew"


async def live(browser: Browser) -> str:
    found = await browser.run("return document.getElementById('state').ariaLive")
    assert isinstance(found, str)
    return found


async def test_a_renewal_of_the_status_page_keeps_open_details_and_scroll_position(
    browser: Browser, site: Site
):
    site.snapshot = ALL["large"]
    await browser.open(site.url)
    await browser.run("document.querySelector('details').open = true")
    site.snapshot = replace(site.snapshot, lag_at=None)
    await browser.run("return renew()")
    assert await browser.run("return document.querySelector('details').open")

    await browser.show_as(TABLET)
    site.snapshot = HOSTILE
    await browser.open(site.url)
    await browser.run("document.querySelector('#parked .scroll').scrollLeft = 60")
    site.snapshot = replace(HOSTILE, parked=TROUBLED.parked and replace(HOSTILE.parked, count=4))
    await browser.run("return renew()")
    assert 60 == await browser.run("return document.querySelector('#parked .scroll').scrollLeft")


async def test_the_status_page_never_has_two_requests_for_new_data_at_once(browser: Browser, site: Site):
    """The page sends the next request only after an answer, or after the time limit of a request without one."""
    await browser.open(site.url)
    signal, before, after = await browser.run("""
        const timers = [], signals = [];
        let answer;
        setTimeout = (_, milliseconds) => timers.push(milliseconds);
        fetch = (_, options) => { signals.push(options.signal); return new Promise(done => { answer = done; }); };
        const renewing = keepRenewing();
        const before = timers.length;
        answer(new Response("", {status: 502}));
        await renewing;
        return [signals[0] instanceof AbortSignal, before, timers];
    """)
    assert (True, 0, [5000]) == (signal, before, after)


async def test_pictures_show_the_status_page_in_three_sizes_dark_and_light(browser: Browser, site: Site):
    for name, (site.snapshot, width, height, scheme) in SHOTS.items():
        await browser.show_as(width, height, scheme=scheme)
        await browser.open(site.url)
        picture = await browser.picture()
        assert (width, height) == size_of(picture)
        if os.environ.get("UPDATE_STATUS_PAGE"):
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / f"status-page-{name}.png").write_bytes(picture)
