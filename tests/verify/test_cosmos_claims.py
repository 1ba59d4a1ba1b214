"""Tests that every claim of `verify` about the behaviour of Cosmos DB holds on the emulators."""

from __future__ import annotations

import pytest

from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import cosmos_claims
from cosmos_outbox_testing.verify.results import Held
from cosmos_outbox_testing.verify.site import open_site

pytestmark = [
    pytest.mark.looptime(False),
    # aiohttp warns of request bodies of more than 1 MB. Azure's SDK sends the requests, so this library cannot avoid the warning.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]
ONLY = {"sessions": "all", "plain": "relayed", "only": ("cosmos",)}


async def test_every_claim_of_verify_about_cosmos_db_holds_on_the_emulators(verified: OutboxEmulators):
    async with open_site(**ONLY) as site:
        outcomes = await cosmos_claims.run(site, lambda _: None)

    not_asked = {one.name for one in cosmos_claims.CLAIMS if one.not_asked} | {"split"}
    assert not_asked == {one.name for one in outcomes if one.held is Held.NOT_RUN}
    assert [] == [
        (one.name, one.expected, one.found) for one in outcomes if one.held in (Held.DIFFERENT, Held.BROKEN)
    ]
