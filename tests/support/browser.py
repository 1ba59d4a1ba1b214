"""
Run headless Chromium for tests of web pages. Tests control it through chromedriver, by HTTP (WebDriver).

If Chromium or chromedriver is missing, these tests are skipped, with a text that says that no browser showed the page.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import aiohttp
import pytest

from tests.support.patience import HUNG_SECONDS

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
MISSING = "NO CHROMIUM: the page was not looked at by a browser (install the packages `chromium` and `chromium-driver`)"


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser window. `session` is the URL of its WebDriver session."""

    http: aiohttp.ClientSession
    session: str

    async def open(self, url: str) -> None:
        await self._command("url", url=url)

    async def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript in the page, as the body of a function. Return what it returns, or the result of the promise that it returns."""
        # The page's content security policy forbids `eval`, but does not apply to scripts that WebDriver sends.
        return await self._command("execute/sync", script=script, args=arguments)

    async def press(self, key: str) -> None:
        """Press and release a key of the keyboard."""
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        await self._command("actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    async def show_as(
        self, width: int, height: int = 1000, *, scheme: str = "light", motion: str = "no-preference"
    ) -> None:
        """Set the size of the window, and the color scheme and motion that the reader prefers."""
        await self._devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        wanted = [{"name": name, "value": value} for name, value in features.items()]
        await self._devtools("Emulation.setEmulatedMedia", features=wanted)

    async def picture(self) -> bytes:
        """Return the content of the window as a PNG."""
        taken = await self._devtools("Page.captureScreenshot", format="png")
        return base64.b64decode(taken["data"])

    async def _devtools(self, name: str, **parameters: object) -> Any:
        return await self._command("goog/cdp/execute", cmd=name, params=parameters)

    async def _command(self, name: str, **body: object) -> Any:
        async with self.http.post(f"{self.session}/{name}", json=body) as response:
            answer = (await response.json())["value"]
        assert not (isinstance(answer, Mapping) and "error" in answer), answer
        return answer


def size_of(picture: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG picture."""
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


@contextmanager
def started_chromium(folder: Path) -> Iterator[str]:
    """
    Start a browser and yield the URL of its WebDriver session. Skip the test if no browser is installed.

    Args:
        folder: the folder for the browser's profile.
    """
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(MISSING)
    environment = {**os.environ, "HOME": str(folder)}
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=PIPE, stderr=DEVNULL, env=environment)  # noqa: S603 - found on the path
    try:
        assert driver.stdout is not None
        lines = iter(driver.stdout.readline, b"")
        port = next(
            int(found[1]) for line in lines if (found := re.search(rb"successfully on port (\d+)", line))
        )
        arguments = (
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
            *("--disable-background-networking", "--no-proxy-server", f"--user-data-dir={folder}/profile"),
        )
        wanted = {"goog:chromeOptions": {"binary": CHROMIUM, "args": arguments}}
        address = f"http://127.0.0.1:{port}/session"
        opened = _asked(address, "POST", json.dumps({"capabilities": {"alwaysMatch": wanted}}))
        session = f"{address}/{opened['sessionId']}"
        yield session
        _asked(session, "DELETE")
    finally:
        driver.terminate()
        driver.communicate()


def _asked(address: str, method: str, body: str = "") -> Any:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(address, data=body.encode() or None, method=method)  # noqa: S310 - always http
    with direct.open(request, timeout=HUNG_SECONDS) as response:
        return json.load(response)["value"]


def axe_core() -> str:
    """Return the JavaScript source of axe-core, which checks the accessibility of a page. Skip the test if it is not installed."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip(
            "NO AXE-CORE: accessibility was not checked (install `axe-core-python`: requirements/dev.txt)"
        )
    return (Path(found.origin).parent / "axe.min.js").read_text()


async def violations(browser: Browser, axe: str) -> list[str]:
    found: list[dict[str, Any]] = await browser.run(
        axe + "; return axe.run(document, {resultTypes: ['violations']}).then(found => found.violations);"
    )
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]
