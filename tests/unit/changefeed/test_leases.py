"""
Lease documents: the library writes them byte for byte as .NET v3 does, and reads leases of other versions too.
"""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.changefeed.leases import (
    format_timestamp,
    from_document,
    lease_prefix,
    new_lease,
    parse_timestamp,
    to_document,
    with_properties,
)
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import MonitoredContainer

CONTAINER = MonitoredContainer(
    account_host="MyAcct.documents.azure.com", database_rid="AbCdEg==", container_rid="AbCdEhZ8xyQ="
)
PREFIX = lease_prefix("orders-proc", CONTAINER)
WRITTEN_BY_DOTNET = {
    "id": f"{PREFIX}..0",
    "version": 0,
    "LeaseToken": "0",
    "FeedRange": {"Range": {"min": "", "max": "FF"}},
    "Owner": "host-1",
    "ContinuationToken": '"1519"',
    "properties": {"theirs": "kept"},
    "timestamp": "2026-08-07T18:56:44.1234567Z",
    "Mode": "Incremental Feed",
    "SomethingNew": {"kept": True},
    "_etag": '"00000000-0000-0000-0000-000000000001"',
    "_ts": 1786129004,
}


bounds = st.integers(0, 15).map(lambda n: f"{n:X}0" if n else "")
ranges = st.tuples(bounds, bounds).filter(lambda b: b[0] < b[1]).map(lambda b: FeedRange(min=b[0], max=b[1]))


@given(ranges, st.lists(ranges, max_size=5))
def test_subtracting_ranges_returns_the_parts_that_no_other_range_covers(
    whole: FeedRange, others: list[FeedRange]
):
    left = whole.without(others)

    for number in range(16):
        point = FeedRange(min=f"{number:X}0" if number else "", max=f"{number:X}8")
        outside = whole.overlaps(point) and not any(other.overlaps(point) for other in others)
        assert outside == any(part.overlaps(point) for part in left)
    assert all(a.max < b.min for a, b in itertools.pairwise(left))


def test_the_prefix_of_lease_ids_is_that_of_dotnet():
    assert "orders-procmyacct.documents.azure.com_AbCdEg==_AbCdEhZ8xyQ=" == PREFIX


def test_a_new_version_0_lease_has_exactly_the_fields_of_dotnet():
    lease = new_lease(PREFIX, "0", FeedRange(min="", max="FF"))

    assert (
        '{"id": "orders-procmyacct.documents.azure.com_AbCdEg==_AbCdEhZ8xyQ=..0", "version": 0, "LeaseToken": "0", '
        '"Owner": null, "ContinuationToken": null, "properties": {}, "timestamp": null, '
        '"FeedRange": {"Range": {"min": "", "max": "FF"}}, "Mode": "Incremental Feed"}'
    ) == json.dumps(to_document(lease))


def test_a_new_version_1_lease_names_its_range_in_token_and_id():
    lease = new_lease(PREFIX, "-3F", FeedRange(min="", max="3F"), version=1)

    document = to_document(lease)
    assert (1, "-3F", f"{PREFIX}..-3F") == (document["version"], document["LeaseToken"], document["id"])


def test_a_write_keeps_the_unchanged_fields_of_a_lease_by_dotnet():
    now = datetime(2026, 11, 21, 7, 0, 0, 250_000, tzinfo=UTC)

    written = from_document(WRITTEN_BY_DOTNET).with_changes(now=now, owner="me", continuation='"1600"').raw

    changed = {"Owner": "me", "ContinuationToken": '"1600"', "timestamp": "2026-11-21T07:00:00.250000Z"}
    system = {"_etag", "_ts"}
    assert {**{k: v for k, v in WRITTEN_BY_DOTNET.items() if k not in system}, **changed} == written


def test_a_handover_request_changes_only_the_properties_of_a_lease():
    lease = from_document(WRITTEN_BY_DOTNET)

    written = with_properties(lease, {"x": "y"})

    system = {"_etag", "_ts"}
    assert {
        **{k: v for k, v in WRITTEN_BY_DOTNET.items() if k not in system},
        "properties": {"x": "y"},
    } == written


@pytest.mark.parametrize(
    "missing", ["Mode", "FeedRange", "Owner", "ContinuationToken", "properties", "timestamp", "version"]
)
def test_a_lease_of_an_older_dotnet_version_is_read_although_a_field_is_missing(missing: str):
    document = {name: value for name, value in WRITTEN_BY_DOTNET.items() if name != missing}

    assert "0" == from_document(document).token


def test_the_lease_token_of_the_dotnet_v2_library_is_its_partition_id():
    document = {name: value for name, value in WRITTEN_BY_DOTNET.items() if name != "LeaseToken"}

    assert "7" == from_document({**document, "PartitionId": "7"}).token


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ContinuationToken": "1519"}, "Java"),
        ({"ContinuationToken": "eyJWIjoxfQ=="}, "Java"),
        ({"ContinuationToken": 1519}, "Java"),
        ({"Mode": "Full-Fidelity Feed"}, "mode"),
        ({"LeaseToken": None}, "not a lease"),
        ({"properties": {"start": "2026-13-45T99:00:00Z"}}, "timestamp"),
        ({"properties": {"start": "0001-01-01T00:00:00+01:00"}}, "timestamp"),
        ({"properties": "abc"}, "properties"),
        ({"properties": ["x"]}, "properties"),
        ({"properties": {"handover.wanted-by": 7}}, "properties"),
        ({"properties": {"start": None}}, "properties"),
        ({"properties": {"start": "soon"}}, "'soon' is no timestamp"),
    ],
)
def test_an_unsupported_lease_is_refused_with_its_id_and_the_reason(change: dict[str, object], word: str):
    with pytest.raises(ConfigurationError, match=word) as refused:
        from_document({**WRITTEN_BY_DOTNET, **change})

    assert f"{PREFIX}..0" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-07T18:56:44Z",
        "2026-08-07T18:56:44.0000000Z",
        "2026-08-07T20:56:44.000000000+02:00",
    ],
)
def test_timestamps_are_read_with_any_fraction_and_zone(text: str):
    assert datetime(2026, 8, 7, 18, 56, 44, tzinfo=UTC) == parse_timestamp(text)


@given(st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis adds the zone
def test_a_timestamp_survives_writing_and_reading(moment: datetime):
    assert moment == parse_timestamp(format_timestamp(moment))


def test_the_expiry_of_a_lease_is_judged_by_the_clock_of_the_service():
    lease = from_document({**WRITTEN_BY_DOTNET, "timestamp": "2031-01-01T00:00:00Z"})
    written = datetime.fromtimestamp(WRITTEN_BY_DOTNET["_ts"], UTC)
    expiration = timedelta(seconds=60)

    assert not lease.expired(written + timedelta(seconds=60), expiration)
    assert lease.expired(written + timedelta(seconds=61), expiration)


def test_a_lease_without_an_owner_counts_as_expired():
    assert from_document({**WRITTEN_BY_DOTNET, "Owner": " "}).expired(
        datetime(1970, 1, 1, tzinfo=UTC), timedelta(days=9)
    )
