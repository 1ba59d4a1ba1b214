"""Conditional requests: the headers ETag, If-Match and If-None-Match, as RFC 9110 defines them."""

from __future__ import annotations

from fastapi import HTTPException, Request, Response
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox import NotModified, PreconditionFailed
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.fastapi import Match, NoneMatch, set_etag
from tests.unit.fastapi.orders import Order, ask, make_app

# A text of any ASCII characters that RFC 9110 allows in an etag.
opaque = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='"'), max_size=8)
etags = st.builds(lambda weak, text: f'{"W/" * weak}"{text}"', st.booleans(), opaque)
gaps = st.text(" \t", max_size=2)
commas = st.lists(gaps, min_size=2, max_size=3).map(",".join)


def order(etag: str | None) -> Order:
    return Order.restore({"id": "o1"}, version=1, etag=etag)


def request(method: str) -> Request:
    return Request({"type": "http", "method": method, "headers": []})


@given(st.lists(etags, min_size=1, max_size=4), st.data())
def test_a_list_of_etags_may_have_any_spacing_and_several_header_lines(
    listed: list[str], data: st.DataObject
):
    text = data.draw(gaps) + listed[0]
    lines: list[str] = []
    for etag in listed[1:]:
        if data.draw(st.booleans()):
            lines.append(text)
            text = etag
        else:
            text += data.draw(commas) + etag
    lines.append(text + data.draw(gaps))

    assert tuple(listed) == Match.of(lines).etags
    strong = tuple(etag.removeprefix("W/") for etag in listed)
    assert strong == NoneMatch.of(request("GET"), lines).etags


@given(st.text(st.sampled_from('*,"W/ ab'), max_size=8))
def test_a_malformed_etag_header_is_never_treated_as_missing(text: str):
    try:
        found = Match.of([text]).etags
    except HTTPException:
        return
    assert found
    assert all(etag == "*" or etag.endswith('"') for etag in found)


@given(st.lists(etags, max_size=4), etags)
def test_if_match_compares_etags_strongly(listed: list[str], own: str):
    """
    A weak etag (`W/"…"`) never fulfils If-Match. If-None-Match ignores the prefix `W/`, as RFC 9110 asks.
    """
    own = own.removeprefix("W/")
    change, copy = Match.of(listed or None), NoneMatch.of(request("HEAD"), listed or None)

    assert (not listed or own in listed) == holds(change, order(own))
    assert (own not in {etag.removeprefix("W/") for etag in listed}) == holds(copy, order(own))


def holds(condition: Match | NoneMatch, entity: Order) -> bool:
    try:
        condition.check(entity)
    except (PreconditionFailed, NotModified):
        return False
    return True


def test_an_answer_has_no_etag_header_if_the_etag_is_unknown():
    response = Response()
    set_etag(response, order(None))
    assert "etag" not in response.headers


async def test_a_client_can_read_change_and_delete_an_entity_by_etag():
    app = make_app(MemoryContainer())
    created = await ask(app, "POST", "/orders/o1")
    first = created.headers["etag"]

    unchanged = await ask(app, "GET", "/orders/o1", [("If-None-Match", f'"x", W/{first}')])
    assert (304, first, "") == (unchanged.status, unchanged.headers["etag"], unchanged.text)
    unconditional = await ask(app, "POST", "/orders/o1/payment")
    assert 428 == unconditional.status
    assert "If-Match" in unconditional.body["detail"]
    paid = await ask(app, "POST", "/orders/o1/payment", [("If-Match", first)])
    assert (200, True) == (paid.status, paid.body["paid"])
    second = paid.headers["etag"]
    assert first != second
    assert 200 == (await ask(app, "GET", "/orders/o1", [("If-None-Match", first)])).status

    late = await ask(app, "DELETE", "/orders/o1", [("If-Match", first)])
    assert (412, second) == (late.status, late.headers["etag"])
    assert 412 == (await ask(app, "DELETE", "/orders/o1", [("If-None-Match", "*")])).status
    assert 204 == (await ask(app, "DELETE", "/orders/o1", [("If-Match", f'"x",{second}')])).status
    assert 404 == (await ask(app, "GET", "/orders/o1")).status
