"""
Partition keys: their values, where a container keeps them in its documents, the text that names a key, and ranges of keys.

The text of a key is used as session id, in logs, in the parked store and as the KEY of commands. For a key that is a string, it is the
string itself. For any other key it is the compact JSON list of its parts: `[5]`, `[true]`, `["t1","u1"]`.

This module also checks which ids a container accepts for its documents, and hashes keys and ids that are too long for Service Bus.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from cosmos_outbox.errors import UsageError

KeyPart = str | int | float | bool
PartitionKey = KeyPart | tuple[KeyPart, ...]

MOST_LEVELS = 3
MAX_ID_LENGTH = 128  # the limit of Service Bus for message and session ids, in UTF-16 units
HASHED = "sha256:"  # the beginning of each hash that stands for an id which Service Bus would refuse
_ID, _MAX_ID_BYTES = re.compile(r"(?!\.{1,2}$|.*%[0-9A-Fa-f]{2})[^/\\?#\t\r\n]*[^/\\?#\t\r\n ]"), 1023
_MAX_KEY_BYTES = 2048
_A_TEXT = f"1 to {_MAX_KEY_BYTES} bytes of valid text"
_EXACT = 2**53  # up to here a 64-bit float holds every integer
_SHOWN = 100
_STEP = re.compile(r'/(?:"([^"]+)"|([^/"]+))')
# The fields of a document that cannot contain the partition key: the library writes them, and an entity and its events differ in them.
_ENVELOPE = frozenset({"id", "type", "data", "ttl", "version", "meta"})


def parts_of(key: PartitionKey) -> tuple[KeyPart, ...]:
    """Return the parts of a partition key, one for each level: a key that is a single value has one part."""
    return key if isinstance(key, tuple) else (key,)


def key_text(key: PartitionKey) -> str:
    """
    Return the text that names a partition key. Equal keys have equal texts, and so have 1 and 1.0.

    If a container has both strings and numbers as keys, the number 5 and the string `[5]` have the same text as well.
    """
    if isinstance(key, str):
        return key
    parts = parts_of(key)
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    # `default` gives a text even to a value that cannot be a key, so that an error can show it.
    return json.dumps([*map(_canonical, parts)], ensure_ascii=False, separators=(",", ":"), default=repr)


def broker_id(name: str) -> str:
    """
    Return the session or message id for a name: the name itself or, if Service Bus would refuse it, its hash with the prefix `sha256:`.

    A name that begins with that prefix is hashed too, so that two names never get the same id.
    """
    # the length in UTF-16 units; None if the name contains half of a surrogate pair, which cannot be encoded
    length = len(name) if name.isascii() else bytes_of(name) and len(name.encode("utf-16-le")) // 2
    if length and length <= MAX_ID_LENGTH and not name.startswith(HASHED):
        return name
    return HASHED + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def key_of_text(text: str, *, levels: int = 1) -> PartitionKey:
    """
    Return the partition key that a text names: the inverse of `key_text`.

    With one level, the text `[5]` gives the number 5, although it may also be the text of the string `[5]`. In a container whose keys are
    all strings, use the text itself instead of this function.

    Args:
        text: the text, such as the session id of a message, as `key_text` writes it. The text may have spaces between the parts.
        levels: the number of levels of the container's partition key. Defaults to 1.

    Raises:
        ValueError: the text names no key with this number of levels.
    """
    found = _list_in(text)
    if levels == 1:
        match found:
            case [int() | float() as value] if _is_part(value) and key_text(value) == text:
                return value
        return text
    if found is None or len(found) != levels or not all(map(_is_part, found)):
        raise ValueError(
            f'{text[:_SHOWN]!r} is no partition key of {levels} levels; write one as ["t1","u1"] for two levels.'
        )
    return tuple(found)


def identity(key: PartitionKey) -> Hashable:
    """Return a hashable value that is equal only for equal keys. A key itself is not enough: in Python, True equals 1."""
    if isinstance(key, str):
        return key
    parts = parts_of(key)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else (key_text(key),)


@dataclass(frozen=True, slots=True)
class KeyPaths:
    """The partition key paths of a container. Each is a tuple of property names: `/owner/id` is `("owner", "id")`."""

    levels: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return ", ".join(
            "".join(f'/"{name}"' if "/" in name else f"/{name}" for name in names) for names in self.levels
        )

    def key_of(self, document: Mapping[str, Any]) -> PartitionKey | None:
        """Return the partition key of a document; None if one of its parts is missing or null."""
        if len(self.levels) == 1:
            part = _value_at(document, self.levels[0])
            return part if type(part) is str or _is_part(part) else None
        parts = tuple([_value_at(document, names) for names in self.levels])
        return parts if all(map(_is_part, parts)) else None

    def fields(self, key: PartitionKey, stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Return the properties of a document that hold its partition key. If such a property is an object, as for the path `/owner/id`, its
        other fields are copied from the `stored` document.
        """
        fields: dict[str, Any] = {}
        for names, part in zip(self.levels, parts_of(key), strict=True):
            inside = fields
            for depth, name in enumerate(names[:-1], start=1):
                kept = _value_at(stored or {}, names[:depth])
                inside = inside.setdefault(name, dict(kept) if isinstance(kept, dict) else {})
            inside[names[-1]] = part
        return fields

    def problem(self, key: object) -> str | None:
        """Return why a value cannot be a key of the container; None if it can."""
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self.levels):
            example = ", ".join(names[-1] for names in self.levels)
            asked = f"a tuple ({example})" if len(self.levels) > 1 else "a single value"
            return f"the container is partitioned on {self}, so its keys are {asked}"
        problem = next(filter(None, map(_problem_of, parts)), None)
        size = 0 if problem else sum(len(part.encode()) for part in parts if isinstance(part, str))
        return f"it needs {_A_TEXT}" if parts == ("",) or size > _MAX_KEY_BYTES else problem

    def parse(self, text: str) -> PartitionKey:
        """
        Return the partition key that a text names, as `key_text` writes it. The text may have spaces between the parts.

        Raises:
            ValueError: the text names no key of the container.
        """
        if len(self.levels) == 1:
            return key_of_text(text)
        found = _list_in(text)
        key = (text,) if found is None else tuple(found)
        if (why := self.problem(key)) is not None:
            example = json.dumps([names[-1] for names in self.levels], separators=(",", ":"))
            raise ValueError(f"{text[:_SHOWN]!r} is no partition key, because {why}; write it as {example}.")
        return key


ON_PARTITION_KEY = KeyPaths((("partitionKey",),))


def key_paths_of(paths: Sequence[str]) -> KeyPaths:
    """
    Return the partition key paths of a container, after a check that an outbox can work with them.

    Raises:
        ValueError: an outbox cannot work with these paths.
    """
    if not 1 <= len(paths) <= MOST_LEVELS:
        raise ValueError(f"a container has 1 to {MOST_LEVELS} partition key paths, not {len(paths)}")
    levels = []
    for path in paths:
        if not path or _STEP.sub("", path):
            raise ValueError(f"{path!r} is no path of a property, such as /tenantId or /owner/id")
        names = tuple(quoted or plain for quoted, plain in _STEP.findall(path))
        if names[0] in _ENVELOPE or names[0].startswith("_"):
            raise ValueError(
                f"{path} is no property that an entity and its events share, so no batch could hold both; the paths must "
                f"not begin with /{', /'.join(sorted(_ENVELOPE))} or an underscore"
            )
        levels.append(names)
    return KeyPaths(tuple(levels))


def check_id(document_id: str, *, of: str = "a document") -> None:
    """
    Check that Cosmos DB accepts an id, and that requests can name a document with this id.

    Args:
        document_id: the id.
        of: what has the id, for the text of the error.

    Raises:
        UsageError: the id cannot be used.
    """
    # Cosmos DB would accept most of the characters that are refused here. But they break the URL of the document, or the SDK refuses them.
    # An escape such as `%20` is refused because Cosmos DB's gateway decodes it once too often, and answers 401 to each request for the
    # document.
    size = bytes_of(document_id) if isinstance(document_id, str) else None
    if not size or size > _MAX_ID_BYTES or not _ID.fullmatch(document_id):
        raise UsageError(
            f"{document_id!r:.{_SHOWN}} cannot be the id of {of}: an id has 1 to {_MAX_ID_BYTES} bytes of valid text "
            "without / \\ ? #, tabs, line ends and escapes such as %20, does not end with a space, and is not . or .."
        )


def check_partition_key(
    key: object, paths: KeyPaths = ON_PARTITION_KEY, *, of: object = "a document", by_default: bool = False
) -> None:
    """
    Check that a container takes a partition key, and that Service Bus can name a session after it.

    Args:
        key: the partition key.
        paths: the partition key paths of the container.
        of: what has the key, for the text of the error.
        by_default: whether the key is the document's id, because the caller gave no partition key.

    Raises:
        UsageError: the value cannot be a partition key.
    """
    if (problem := paths.problem(key)) is not None:
        advice = " It is the id, as no `partition_key=` was given: pass one." if by_default else ""
        raise UsageError(f"{key!r:.{_SHOWN}} cannot be the partition key of {of}: {problem}.{advice}")


def _list_in(text: str) -> list[Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _value_at(document: Mapping[str, Any], names: Sequence[str]) -> Any:
    value = document.get(names[0])
    for name in names[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _is_part(value: Any) -> TypeGuard[KeyPart]:
    return isinstance(value, str) or (isinstance(value, int | float) and _double(value) is not None)


def _problem_of(part: object) -> str | None:
    if isinstance(part, str):
        return None if bytes_of(part) is not None else f"it needs {_A_TEXT}"
    if isinstance(part, int | float):
        # Compare the number with its 64-bit float, because Cosmos DB stores numbers as 64-bit floats.
        return None if _double(part) == part else "a number has to be one that a 64-bit float holds"
    if part is None:
        return "null is no key: an event has to name the one that it belongs to"
    if callable(part):
        return "it is a method: write `@property` above it"
    return "each part is a string, a number or a boolean; of a UUID take `str(…)`, of bytes a text"


def bytes_of(text: str) -> int | None:
    """Return the number of bytes of a text in UTF-8; None if UTF-8 cannot encode the text."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return None


def _double(number: float) -> float | None:
    try:
        return float(number) if math.isfinite(number) else None
    except OverflowError:
        return None


def _canonical(part: KeyPart) -> KeyPart:
    # Return an int for a float such as 1.0, so that a number has the same text whether a program wrote 1 or 1.0.
    if isinstance(part, bool) or not isinstance(part, int | float) or (number := _double(part)) is None:
        return part
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRange:
    """
    A part of a container: the effective partition keys (hashes) from min (inclusive) to max (exclusive), in upper-case hexadecimal.

    Each lease, each read of the change feed and each physical partition has such a range.
    """

    min: str
    max: str

    def overlaps(self, other: FeedRange) -> bool:
        return self.min < other.max and other.min < self.max

    def contains(self, other: FeedRange) -> bool:
        return self.min <= other.min and other.max <= self.max

    def intersection(self, other: FeedRange) -> FeedRange:
        """Return the part that two overlapping ranges share."""
        return FeedRange(min=max(self.min, other.min), max=min(self.max, other.max))

    def without(self, others: Iterable[FeedRange]) -> tuple[FeedRange, ...]:
        """Return the parts of this range that no other given range covers, in order."""
        left, low = [], self.min
        for other in sorted(others, key=lambda other: other.min):
            if low < other.max and other.min < self.max:
                if other.min > low:
                    left.append(FeedRange(min=low, max=other.min))
                low = other.max
        return (*left, FeedRange(min=low, max=self.max)) if low < self.max else tuple(left)
