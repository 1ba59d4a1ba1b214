"""
Reads with `at_least`, the version that the caller needs: an older version is read again, and a deleted entity raises NotFound at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cosmos_outbox import Entity, NotFound, Outbox
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Message, TryLater


class Order(Entity):
    total: int = 0


class Lagging(MemoryContainer):
    """
    A container whose replica has the version `replica` (None: no document). Reads with `newest=True` return the versions in `newest`
    one after another, and then the stored version.
    """

    def __init__(self, replica: int | None, newest: Sequence[int]) -> None:
        super().__init__()
        self.replica, self.newest, self.reads = replica, list(newest), 0

    async def read(
        self, document_id: str, partition_key: Any, *, newest: bool = False, **options: Any
    ) -> dict[str, Any]:
        self.reads += 1
        document = await super().read(document_id, partition_key, **options)
        version = (self.newest.pop(0) if self.newest else document["version"]) if newest else self.replica
        if version is None:
            raise NotFound(document_id=document_id)
        return {**document, "version": version}


async def stored(replica: int | None, *newest: int, versions: int = 3) -> Lagging:
    container = Lagging(replica, newest)
    async with Outbox(container).unit_of_work() as uow:
        order = uow.repository(Order).create(Order(id="o1"))
        for total in range(versions):
            order.total = total
            await uow.commit()
    return container


@pytest.mark.parametrize(
    ("replica", "newest", "reads"),
    # Each row has the version that the first read finds on a replica, the versions that the next reads find in the write region before
    # they find version 3, and the number of reads until version 3 is returned.
    [
        (3, (), 1),
        (2, (), 2),
        (None, (), 2),  # the replica lacks the entity, so the write region is read too
        (2, (2, 2), 4),  # two regions take writes, so the write region may lag too
    ],
)
async def test_a_read_of_a_minimum_version_is_repeated_in_the_write_region(
    replica: int | None, newest: tuple[int, ...], reads: int
):
    container = await stored(replica, *newest)
    async with Outbox(container).unit_of_work() as uow:
        assert 3 == (await uow.repository(Order).read("o1", at_least=3)).version
    assert reads == container.reads


@pytest.mark.parametrize("of", ["repository", "documents"])
async def test_a_read_of_a_minimum_version_raises_trylater_while_the_version_is_older(of: str):
    container = await stored(1, *[2] * 6)
    async with Outbox(container).unit_of_work() as uow:
        documents: Any = uow.repository(Order) if of == "repository" else uow.documents()
        with pytest.raises(TryLater, match="version 2, and version 3 is asked for"):
            await documents.read("o1", at_least=3)
        await documents.read("o1")
        with pytest.raises(TryLater, match="version 1, and version 3"):
            await documents.find("o1", at_least=3)


@pytest.mark.parametrize(
    ("properties", "version"),
    [({"entity-version": 7}, 7), ({"entity-version": "7"}, 7), ({"entity-version": "new"}, None), ({}, None)],
)
def test_a_message_has_the_version_of_its_entity(properties: dict[str, Any], version: int | None):
    assert version == Message(message_id="m", properties=properties).entity_version
