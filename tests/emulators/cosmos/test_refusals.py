"""
Tests through the SDK that the emulator refuses each Cosmos DB feature that it lacks, with a message that names the feature.

Similar features that the emulator has are tested in the same place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from azure.cosmos import ContainerProxy, CosmosClient, DatabaseProxy, PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError

from cosmos_outbox_emulators.in_thread import cosmos_in_thread
from tests.emulators.cosmos.driver import Driver

pytestmark = pytest.mark.looptime(False)
ITEM = {"id": "a", "pk": "k"}


@pytest.fixture(scope="module")
def database() -> Iterator[DatabaseProxy]:
    with (
        cosmos_in_thread(partitions=3) as emulator,
        CosmosClient.from_connection_string(emulator.connection_string) as client,
    ):
        emulator.create_container("d", "c", partition_key="/pk", ranges=3)
        yield client.get_database_client("d")


@pytest.fixture
def container(database: DatabaseProxy) -> ContainerProxy:
    return database.get_container_client("c")


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (lambda c: c.create_item(ITEM, pre_trigger_include="stamp"), 404, "The trigger 'stamp' does not exist"),
        (lambda c: c.upsert_item(ITEM, post_trigger_include="count"), 404, "The trigger 'count' does not exist"),
        (lambda c: list(c.query_items("SELECT udf.f(c.x) FROM c", partition_key="k")), 400, "no user-defined functions"),
        (lambda c: list(c.query_items("SELECT * FROM c WHERE UDF.f(c.x)", partition_key="k")), 400, "must not use 'udf.'"),
        (lambda c: list(c.query_items("SELECT VALUE t FROM c JOIN t IN c.tags", partition_key="k")), 400, "must not have JOIN"),
        (lambda c: list(c.query_items("SELECT VALUE t FROM items AS c JOIN t IN c.tags", partition_key="k")), 400, "or IN after FROM"),
        (lambda c: list(c.query_items("SELECT *", partition_key="k")), 400, "is not valid if FROM clause is omitted"),
        (lambda c: list(c.query_items("SELECT c.id WHERE c.id = 'a'", partition_key="k")), 400, "'c' could not be resolved"),
    ],
)  # fmt: skip
def test_the_refusal_of_a_missing_feature_names_the_feature(
    container: ContainerProxy, ask: Callable[[ContainerProxy], object], status: int, words: str
):
    with pytest.raises(CosmosHttpResponseError, match=words) as refused:
        ask(container)
    assert status == refused.value.status_code
    assert [] == list(container.read_all_items())


def test_a_query_without_from_has_one_row(container: ContainerProxy):
    assert [{"$1": 1}] == list(container.query_items("SELECT 1", partition_key="k"))
    assert [{"$1": 1}] == list(container.query_items("SELECT 1", enable_cross_partition_query=True))
    assert ["a-b"] == list(
        container.query_items("SELECT VALUE 'a' || '-b'", enable_cross_partition_query=True)
    )
    assert [1] == list(container.query_items("SELECT VALUE COUNT(1)", enable_cross_partition_query=True))
    assert [] == list(container.query_items("SELECT 1 WHERE false", partition_key="k"))


def test_only_the_first_range_answers_a_query_without_from():
    driver = Driver(partitions=3)
    found = [driver.rows("SELECT VALUE 7", x_ms_documentdb_partitionkeyrangeid=number) for number in "012"]
    assert [[7], [], []] == found


def test_a_change_feed_with_a_query_is_refused():
    reply = Driver().query("SELECT * FROM c", a_im="Incremental Feed")
    assert (400, True) == (reply.status, b"does not filter the change feed by a query" in reply.body)


LWW, CUSTOM = ({"mode": mode} for mode in ("LastWriterWins", "Custom"))
NEVER = "should not have conflict resolution"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("conflict_resolution_policy", {"mode": "Loudest"}, "The mode of 'conflictResolutionPolicy' must be LastWriterWins or Custom"),
        ("conflict_resolution_policy", {"mode": ["Custom"]}, "The mode of 'conflictResolutionPolicy' must be"),
        ("conflict_resolution_policy", "Custom", "The mode of 'conflictResolutionPolicy' must be"),
        ("conflict_resolution_policy", {"conflictResolutionPath": "/a/b"}, "Invalid path '/a/b' for last writer wins conflict resolution"),
        ("conflict_resolution_policy", {"conflictResolutionPath": 5}, "Invalid path '5' for last writer wins conflict resolution"),
        ("conflict_resolution_policy", {**LWW, "conflictResolutionProcedure": "p"}, f"LastWriterWins conflict resolution mode {NEVER} procedure"),
        ("conflict_resolution_policy", {**CUSTOM, "conflictResolutionPath": "/a"}, f"Custom conflict resolution mode {NEVER} path set"),
        ("indexing_policy", {"spatialIndexes": [{"path": "/p/*"}]}, "The spatial data types array cannot be empty.*'/p/\\*'"),
        ("indexing_policy", {"spatialIndexes": [{"path": "/p/*", "types": []}]}, "The spatial data types array cannot be empty"),
        ("indexing_policy", {"spatialIndexes": [{"path": "/p/*", "types": ["Circle"]}]}, "must be of LineString, MultiPolygon, Point, Polygon"),
        ("indexing_policy", {"spatialIndexes": [{"path": "/p/*", "types": [[]]}]}, "must be of LineString"),
        ("indexing_policy", {"vectorIndexes": [{"path": "/v", "type": "flat"}]}, "does not support 'vectorIndexes'"),
        ("indexing_policy", {"fullTextIndexes": [{"path": "/t"}]}, "does not support 'fullTextIndexes'"),
        ("computed_properties", [{"name": "n", "query": "SELECT VALUE c.n FROM c"}], "does not support 'computedProperties'"),
        ("vector_embedding_policy", {"vectorEmbeddings": [{"path": "/v"}]}, "does not support 'vectorEmbeddingPolicy'"),
        ("full_text_policy", {"defaultLanguage": "en-US"}, "does not support 'fullTextPolicy'"),
        ("analytical_storage_ttl", -1, "does not support 'analyticalStorageTtl'"),
        ("unique_key_policy", {"uniqueKeys": [{"paths": ["/a"]}]}, "does not support unique keys"),
        ("unique_key_policy", "nonsense", "does not support unique keys"),
    ],
)  # fmt: skip
def test_a_container_with_an_unsupported_feature_is_not_created(
    database: DatabaseProxy, name: str, value: object, words: str
):
    with pytest.raises(CosmosHttpResponseError, match=words) as refused:
        database.create_container("other", PartitionKey("/pk"), **{name: value})
    assert 400 == refused.value.status_code
    assert ["c"] == [one["id"] for one in database.list_containers()]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("materializedViewDefinition", {"definition": "SELECT * FROM c"}, "does not support 'materializedViewDefinition'"),
        ("materializedViews", [{"id": "v"}], "does not support 'materializedViews'"),
        ("dataMaskingPolicy", {"includedPaths": []}, "does not support 'dataMaskingPolicy'"),
        ("clientEncryptionPolicy", {"includedPaths": []}, "does not support 'clientEncryptionPolicy'"),
        ("ttlPropertyPath", "/ends", "does not support 'ttlPropertyPath'"),
        ("geospatialConfig", {"type": "Geometry"}, "does not support 'geospatialConfig' of type Geometry"),
        ("geospatialConfig", {"type": "Flat"}, "must be Geography or Geometry"),
        ("geospatialConfig", {"type": []}, "must be Geography or Geometry"),
        ("geospatialConfig", "Flat", "must be Geography or Geometry"),
    ],
)  # fmt: skip
def test_unsupported_fields_of_a_definition_are_refused(name: str, value: object, words: str):
    """
    The Python SDK has no parameter for these fields of a container's definition, so the test sends the definition itself.
    """
    definition = {"id": "n", "partitionKey": {"paths": ["/pk"]}, name: value}
    for method, target in (("POST", "/dbs/d/colls"), ("PUT", "/dbs/d/colls/c")):
        reply = Driver().send(method, target, definition | ({"id": "c"} if method == "PUT" else {}))
        assert (400, True) == (reply.status, words in json.loads(reply.body)["message"])


def test_a_container_s_definition_is_completed_with_azure_s_defaults(database: DatabaseProxy):
    spatial = {"spatialIndexes": [{"path": "/p/*", "types": ["Point"]}]}
    made = database.create_container(
        "full", PartitionKey("/pk"), indexing_policy=spatial, conflict_resolution_policy=CUSTOM
    )
    try:
        described, plain = made.read(), database.get_container_client("c").read()
        with pytest.raises(
            CosmosHttpResponseError, match="Updating conflict resolution policy is currently not supported"
        ):
            database.replace_container("full", PartitionKey("/pk"), conflict_resolution_policy=LWW)
        assert (
            9 == database.replace_container("full", PartitionKey("/pk"), default_ttl=9).read()["defaultTtl"]
        )
    finally:
        database.delete_container("full")
    default = {**LWW, "conflictResolutionPath": "/_ts", "conflictResolutionProcedure": ""}
    own = {**CUSTOM, "conflictResolutionPath": "", "conflictResolutionProcedure": ""}
    assert (default, own) == (plain["conflictResolutionPolicy"], described["conflictResolutionPolicy"])
    assert {"type": "Geography"} == plain["geospatialConfig"] == described["geospatialConfig"]
    assert spatial["spatialIndexes"] == described["indexingPolicy"]["spatialIndexes"]
