"""
The indexing policy of a container, completed with the service's defaults. The emulator indexes nothing: queries read every
document.
"""

from __future__ import annotations

from typing import Any

from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject

_ETAG = {"path": '/"_etag"/?'}
_MODES = ("consistent", "lazy", "none")
_SPATIAL_TYPES = ("LineString", "MultiPolygon", "Point", "Polygon")


def fill_in_defaults(policy: Any) -> JsonObject:
    """
    Return an indexing policy with the service's defaults: everything is included except `_etag`. The outdated field `indexes` of a
    path is dropped.
    """
    if not isinstance(policy, dict | None):
        raise bad_request("The indexing policy must be a JSON object.")
    policy = policy or {}
    for unserved in ("vectorIndexes", "fullTextIndexes"):
        if policy.get(unserved):
            raise bad_request(f"This emulator does not support '{unserved}' of the indexing policy.")
    for index in _paths(policy, "spatialIndexes"):
        _check_spatial(index)
    mode = str(policy.get("indexingMode", "consistent")).lower()
    if mode not in _MODES:
        raise bad_request(f"The indexing mode {mode[:50]} is invalid.")
    included, excluded = _paths(policy, "includedPaths"), _paths(policy, "excludedPaths")
    if mode != "none":
        roots = [path["path"] for path in (*included, *excluded)]
        included = included if "/*" in roots else [{"path": "/*"}, *included]
        excluded = excluded if _ETAG in excluded else [*excluded, _ETAG]
    return {
        **policy,
        "indexingMode": mode,
        "automatic": bool(policy.get("automatic", mode != "none")),
        "includedPaths": included,
        "excludedPaths": excluded,
    }


def _check_spatial(index: JsonObject) -> None:
    path, types = index["path"][:50], index.get("types")
    if not types:
        raise bad_request(
            "The spatial data types array cannot be empty. Assign at least one spatial type for the 'types' array for the path "
            f"'{path}'."
        )
    if not isinstance(types, list) or any(kind not in _SPATIAL_TYPES for kind in types):
        raise bad_request(
            f"The spatial data types for the path '{path}' must be of {', '.join(_SPATIAL_TYPES)}."
        )


def _paths(policy: JsonObject, name: str) -> list[JsonObject]:
    paths = policy.get(name) or []
    if not isinstance(paths, list) or not all(
        isinstance(path, dict) and isinstance(path.get("path"), str) for path in paths
    ):
        raise bad_request(f"'{name}' of the indexing policy must be a list of objects with 'path'.")
    kept = [{key: value for key, value in path.items() if key != "indexes"} for path in paths]
    return [{**path, "path": "/*"} if path["path"] == "/" else path for path in kept]
