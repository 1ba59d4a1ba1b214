"""
Checks the definition of a new or changed container. It fills in the service's defaults, and refuses settings that would have no
effect in this emulator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cosmos_outbox_emulators.cosmos import indexing, partition_key
from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject

_LAST_WRITER_WINS, _CUSTOM = "LastWriterWins", "Custom"
_ONE_PROPERTY = re.compile(r"/[^/]+")
_KEPT = {"partitionKey": "The partition key of a container cannot be changed."}
_KEPT["conflictResolutionPolicy"] = "Updating conflict resolution policy is currently not supported."


def fill_in_defaults(body: JsonObject) -> JsonObject:
    """
    Return a container's definition with the service's defaults for what it leaves out. Refuse a definition that the service or this
    emulator does not accept.
    """
    checked = {name: check(name, body.get(name)) for name, check in _CHECKS.items()}
    return {**body, **checked}


def replace(old: JsonObject, body: JsonObject) -> JsonObject:
    """
    Return the new definition of an existing container. Refuse a change of a part that cannot be changed, such as the partition key.
    """
    kept = {name: old[name] for name in _KEPT if name in old}
    new = fill_in_defaults({**kept, **body})
    for name, value in kept.items():
        if new[name] != value:
            raise bad_request(_KEPT[name])
    return new


def _refuse_if_set(name: str, value: Any) -> Any:
    if value:
        raise bad_request(f"This emulator does not support '{name}'.")
    return value


def _unique_keys(name: str, policy: Any) -> Any:
    if policy and (not isinstance(policy, dict) or policy.get("uniqueKeys")):
        raise bad_request("This emulator does not support unique keys.")
    return policy


def _default_ttl(name: str, ttl: Any) -> Any:
    whole = isinstance(ttl, int) and not isinstance(ttl, bool)
    if ttl is not None and not (whole and (ttl == -1 or 0 < ttl <= 2_147_483_647)):
        raise bad_request("The defaultTtl must be -1 or a positive number of seconds.")
    return ttl


def _geospatial(name: str, config: Any) -> Any:
    kind = config.get("type") if isinstance(config, dict) else config
    if kind == "Geometry":
        raise bad_request(
            "This emulator does not support 'geospatialConfig' of type Geometry: it measures on a sphere."
        )
    if kind not in (None, "Geography"):
        raise bad_request("The type of 'geospatialConfig' must be Geography or Geometry.")
    return {"type": "Geography"}


def _conflict_resolution(name: str, policy: Any) -> Any:
    given = {} if policy is None else policy
    mode = given.get("mode", _LAST_WRITER_WINS) if isinstance(given, dict) else None
    if mode not in (_LAST_WRITER_WINS, _CUSTOM):
        raise bad_request(f"The mode of '{name}' must be {_LAST_WRITER_WINS} or {_CUSTOM}.")
    path, procedure = (given.get(f"conflictResolution{part}") or "" for part in ("Path", "Procedure"))
    wrong, kind = (path, "path") if mode == _CUSTOM else (procedure, "procedure")
    if wrong:
        raise bad_request(f"{mode} conflict resolution mode should not have conflict resolution {kind} set.")
    path = path or ("/_ts" if mode == _LAST_WRITER_WINS else "")
    if path and _ONE_PROPERTY.fullmatch(str(path)) is None:
        raise bad_request(f"Invalid path '{str(path)[:50]}' for last writer wins conflict resolution.")
    return {"mode": mode, "conflictResolutionPath": path, "conflictResolutionProcedure": procedure}


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "partitionKey": lambda _, definition: partition_key.parse_definition(definition),
    "indexingPolicy": lambda _, policy: indexing.fill_in_defaults(policy),
    "defaultTtl": _default_ttl,
    "uniqueKeyPolicy": _unique_keys,
    "conflictResolutionPolicy": _conflict_resolution,
    "geospatialConfig": _geospatial,
    **dict.fromkeys(
        (
            "analyticalStorageTtl", "clientEncryptionPolicy", "computedProperties", "dataMaskingPolicy", "fullTextPolicy",
            "materializedViewDefinition", "materializedViews", "ttlPropertyPath", "vectorEmbeddingPolicy",
        ),
        _refuse_if_set,
    ),
}  # fmt: skip
