"""The driver sends each contact's changes in order with If-Match, and reports what the responses say."""

from __future__ import annotations

from collections import defaultdict

import pytest
from aiohttp import web

from demo.load import Load, LoadFailed, changes_of, drive

pytestmark = pytest.mark.looptime(False)


class FakeApi:
    """Contacts with versions and If-Match, as the API's contract has them."""

    def __init__(self, *, refusals: int = 0, broken: bool = False) -> None:
        self.versions: dict[str, int] = {}
        self.bodies: dict[str, list[dict]] = defaultdict(list)
        self.refusals = refusals
        self.broken = broken

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/api/contacts{path:.*}", self.change)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def __aexit__(self, *_) -> None:
        await self.runner.cleanup()

    async def change(self, request: web.Request) -> web.Response:
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503, headers={"Retry-After": "0"})
        if self.broken:
            return web.json_response({"title": "Internal error"}, status=500)
        path = request.match_info["path"].strip("/")
        contact = path.split("/")[0] or f"c{len(self.versions)}"
        version = self.versions.get(contact, 0)
        if version and request.headers.get("If-Match") != f'"{version}"':
            return web.Response(status=412)
        self.versions[contact] = version + 1
        self.bodies[contact].append(await request.json())
        return web.Response(
            status=200 if version else 201,
            headers={
                "Location": f"/api/contacts/{contact}",
                "ETag": f'"{version + 1}"',
                "X-Contact-Version": str(version + 1),
                "X-Event-Ids": f"{contact}-{version + 1}-a,{contact}-{version + 1}-b",
            },
        )


async def test_every_contact_gets_its_changes_and_every_event_of_a_response_is_reported():
    api, committed = FakeApi(), []
    async with api as url:
        await drive(url, Load(contacts=7, changes=4, concurrency=3), committed.extend)
    assert {f"c{n}": 4 for n in range(7)} == api.versions
    assert {(f"c{n}", v, p) for n in range(7) for v in range(1, 5) for p in (0, 1)} == {
        (event.contact_id, event.version, event.position) for event in committed
    }
    assert 7 * 4 * 2 == len({event.event_id for event in committed})


async def test_a_refused_request_is_sent_again():
    api, committed = FakeApi(refusals=3), []
    async with api as url:
        await drive(url, Load(contacts=2, changes=2, concurrency=2), committed.extend)
    assert {"c0": 2, "c1": 2} == api.versions


async def test_an_answer_that_is_no_success_ends_the_load_and_says_what_it_was():
    async with FakeApi(broken=True) as url:
        with pytest.raises(LoadFailed, match=r"500 .*Internal error"):
            await drive(url, Load(contacts=2, changes=1), lambda _: None)


async def test_a_request_refused_again_and_again_ends_the_load():
    async with FakeApi(refusals=1000) as url:
        with pytest.raises(LoadFailed, match="refused"):
            await drive(url, Load(contacts=1, changes=1), lambda _: None)


async def test_an_api_that_is_gone_ends_the_load():
    async with FakeApi() as url:
        pass
    with pytest.raises(LoadFailed, match="cannot be reached"):
        await drive(url, Load(contacts=1, changes=1), lambda _: None)


def test_the_same_seed_sends_the_same_requests_and_another_seed_others():
    first, second = Load(contacts=1, changes=50, seed=1), Load(contacts=1, changes=50, seed=2)
    assert list(changes_of(3, first)) == list(changes_of(3, first))
    assert list(changes_of(3, first)) != list(changes_of(3, second))


@pytest.mark.parametrize("seed", range(20))
def test_every_change_alters_something_so_that_it_raises_an_event(seed):
    contact: dict = {}
    changes = list(changes_of(0, Load(contacts=1, changes=40, seed=seed)))
    assert 40 == len(changes)
    for change in changes:
        assert {**contact, **change.body} != contact
        contact.update(change.body)
