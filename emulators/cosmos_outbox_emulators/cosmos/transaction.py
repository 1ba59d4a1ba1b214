"""
One atomic unit of work on one partition key: a single operation, or all operations of a batch.

Writes are staged, and `commit` makes them visible. An error before `commit` leaves everything unchanged.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import (
    bad_request,
    conflict,
    not_found,
    precondition_failed,
    too_large,
)
from cosmos_outbox_emulators.cosmos.item import Item, ItemKey, expiry
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject, check_depth, encode
from cosmos_outbox_emulators.cosmos.partition_key import LogicalKey
from cosmos_outbox_emulators.cosmos.patch import apply_patch
from cosmos_outbox_emulators.cosmos.scope import window_of_key
from cosmos_outbox_emulators.cosmos.sql import parse_condition

LARGEST_ITEM_BYTES = 2 * 1024 * 1024
_LONGEST_ID_BYTES = 1023
_LONGEST_TTL = 2_147_483_647
_KEY_MISMATCH = 1001
_CONDITION_NOT_MET = 1110


class OperationKind(StrEnum):
    """The kinds of operations, by the names that a batch request uses for them."""

    CREATE = "Create"
    READ = "Read"
    UPSERT = "Upsert"
    REPLACE = "Replace"
    DELETE = "Delete"
    PATCH = "Patch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation on one item. The kind decides which of the fields are needed."""

    kind: OperationKind
    id: str | None = None
    body: JsonObject | None = None
    if_match: str | None = None
    if_none_match: str | None = None
    lsn: int | None = None  # a read outside of a batch sees the state at this LSN


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The status of one operation, and the item that it wrote or found, if any."""

    status: int
    item: Item | None = None


class Transaction:
    """
    Operations on one partition key at one moment. They are staged and take effect when `commit` is called. A transaction that is
    never committed changes nothing.
    """

    def __init__(self, container: Container, key: LogicalKey, now: float) -> None:
        self._container = container
        self._key = key
        self._now = now
        self._timestamp = int(now)
        self.partition = container.partition_of(key.epk)
        self.partition.purge(now)
        self._lsn = self.partition.lsn + 1
        self._staged: dict[ItemKey, Item | None] = {}

    def commit(self) -> None:
        if self._staged:
            self.partition.apply(
                self._lsn, self._staged, at=self._now, remember_s=self._container.replication.lag_s
            )
            if self._container.on_commit:
                self._container.on_commit(self.partition, self._staged)
            self._staged = {}

    def execute(self, operation: Operation) -> Outcome:
        match operation.kind:
            case OperationKind.CREATE:
                return self._create(operation)
            case OperationKind.UPSERT:
                return self._upsert(operation)
            case OperationKind.READ:
                return self._read(operation)
            case OperationKind.REPLACE:
                return self._replace(operation)
            case OperationKind.DELETE:
                return self._delete(operation)
            case OperationKind.PATCH:
                return self._patch(operation)

    def _create(self, operation: Operation) -> Outcome:
        body = _require_body(operation.body)
        if self._find(body.get("id")) is not None:
            raise conflict()
        return Outcome(status=201, item=self._put(body, None))

    def _upsert(self, operation: Operation) -> Outcome:
        body = _require_body(operation.body)
        current = self._find(body.get("id"))
        if current is not None:
            _check_conditions(operation, current)
        return Outcome(status=201 if current is None else 200, item=self._put(body, current))

    def _read(self, operation: Operation) -> Outcome:
        current = (
            self._get(operation.id) if operation.lsn is None else self._as_of(operation.id, operation.lsn)
        )
        if operation.if_none_match in ("*", current.etag):
            return Outcome(status=304, item=current)
        return Outcome(status=200, item=current)

    def _replace(self, operation: Operation) -> Outcome:
        body = _require_body(operation.body)
        current = self._get(operation.id)
        _check_conditions(operation, current)
        if body.get("id") == operation.id:
            return Outcome(status=200, item=self._put(body, current))
        # A replacement with another id renames the item: on the service, the same resource continues under the new id.
        if self._find(body.get("id")) is not None:
            raise conflict()
        renamed = self._put(body, current)
        self._stage(current.key, None)
        return Outcome(status=200, item=renamed)

    def _delete(self, operation: Operation) -> Outcome:
        current = self._get(operation.id)
        _check_conditions(operation, current)
        self._stage(current.key, None)
        return Outcome(status=204)

    def _patch(self, operation: Operation) -> Outcome:
        body = _require_body(operation.body)
        current = self._get(operation.id)
        _check_conditions(operation, current)
        condition = body.get("condition")
        if condition is not None and not parse_condition(condition)(current.body):
            raise precondition_failed(substatus=_CONDITION_NOT_MET)
        return Outcome(
            status=200, item=self._put(apply_patch(current.encoded, body.get("operations")), current)
        )

    def delete_all(self) -> None:
        window = window_of_key(self._key)
        for item in list(self.partition.scan(window.low, window.high)):
            if window.contains(item):
                self._stage(item.key, None)

    def _find(self, item_id: Any) -> Item | None:
        if not isinstance(item_id, str):
            return None
        key = (self._key.encoded, item_id)
        return self._staged[key] if key in self._staged else self.partition.get(key)

    def _as_of(self, item_id: str | None, lsn: int) -> Item:
        item = self.partition.get_at((self._key.encoded, item_id or ""), lsn)
        if item is None:
            raise not_found()
        return item

    def _get(self, item_id: str | None) -> Item:
        item = self._find(item_id)
        if item is None:
            raise not_found()
        return item

    def _stage(self, key: ItemKey, item: Item | None) -> None:
        self._staged.pop(key, None)  # the last write of a key decides its position in the change feed
        self._staged[key] = item

    def _put(self, source: JsonObject, current: Item | None) -> Item:
        item_id = _valid_id(source.get("id"))
        _check_ttl(source.get("ttl", -1))
        container = self._container
        if container.encode_key_of(source) != self._key.encoded:
            raise bad_request(
                "PartitionKey extracted from document doesn't match the one specified in the header.",
                substatus=_KEY_MISMATCH,
            )
        version = container.next_sequence()
        sequence = version if current is None else current.sequence
        rid = base64.b64encode(container.raw_rid + sequence.to_bytes(8, "little"), b"+-").decode()
        etag = f'"{version >> 32:08x}-0000-0000-0000-{version & 0xFFFFFFFF:012x}"'
        body = {
            **source,
            "_rid": rid,
            "_self": f"{container.properties['_self']}docs/{rid}/",
            "_etag": etag,
            "_attachments": "attachments/",
            "_ts": self._timestamp,
        }
        body.pop("_lsn", None)
        encoded = encode(body)
        if len(encoded) > LARGEST_ITEM_BYTES:
            raise too_large()
        check_depth(body, encoded)
        item = Item(
            key=(self._key.encoded, item_id),
            epk=self._key.epk,
            sequence=sequence,
            lsn=self._lsn,
            etag=etag,
            timestamp=self._timestamp,
            body=body,
            encoded=encoded,
            expires_at=expiry(body, self._timestamp, container.default_ttl),
        )
        self._stage(item.key, item)
        return item


def _require_body(body: JsonObject | None) -> JsonObject:
    if body is None:
        raise bad_request("The operation has no resource body.")
    return body


def _valid_id(item_id: Any) -> str:
    if not isinstance(item_id, str) or not item_id:
        raise bad_request("The input content is invalid because the required property 'id' is missing.")
    if any(character in item_id for character in "/\\?#") or len(item_id.encode()) > _LONGEST_ID_BYTES:
        raise bad_request(
            "The id must not contain '/', '\\', '?' or '#', nor be longer than 1023 bytes. "
            "Ensure to provide a unique non-empty string less than '1024' characters."
        )
    return item_id


def _check_ttl(ttl: Any) -> None:
    if not isinstance(ttl, int) or isinstance(ttl, bool) or not (ttl == -1 or 0 < ttl <= _LONGEST_TTL):
        raise bad_request(
            "The input ttl is invalid. Ensure to provide a nonzero positive integer less than or equal to "
            f"'{_LONGEST_TTL}', or '-1' to never expire."
        )


def _check_conditions(operation: Operation, current: Item) -> None:
    if operation.if_match is not None and operation.if_match not in ("*", current.etag):
        raise precondition_failed()
    if operation.if_none_match in ("*", current.etag):
        raise precondition_failed()
