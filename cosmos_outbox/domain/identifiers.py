"""
What names a document: which ids and partition keys Cosmos DB takes, and random UUIDs, made in bulk because asking the
system for randomness once each costs more than all else that a small event needs.
"""

from __future__ import annotations

import os

from cosmos_outbox.errors import UsageError

_AT_ONCE = 128
_VARIANTS = "89ab" * 4
_FORBIDDEN = frozenset("/\\?#\t\r\n")
_RELATIVE = frozenset({".", ".."})
_MAX_ID_BYTES = 1023
_MAX_KEY_BYTES = 2048
_SHOWN = 100
_ready: list[str] = []

# A child process would hand out the ids that its parent hands out too.
os.register_at_fork(after_in_child=_ready.clear)


def new_id() -> str:
    """
    Return a random UUID (version 4).
    """
    try:
        return _ready.pop()  # atomic, so that threads may call too
    except IndexError:
        digits = os.urandom(16 * _AT_ONCE).hex()
        made = [_formatted(digits[start : start + 32]) for start in range(0, len(digits), 32)]
        _ready.extend(made[1:])
        return made[0]


def check_id(document_id: str) -> None:
    """
    Check that Cosmos DB takes an id and gives the document out again.

    Raises:
        UsageError: it does not.
    """
    # The service accepts most of them, but they break the URL by which a document is addressed, or the SDK refuses to.
    if (
        not 1 <= _bytes_of(document_id) <= _MAX_ID_BYTES
        or not _FORBIDDEN.isdisjoint(document_id)
        or document_id in _RELATIVE
        or document_id.endswith(" ")
    ):
        raise UsageError(
            f"{_shown(document_id)} cannot be the id of a document: it needs 1 to {_MAX_ID_BYTES} bytes of valid text "
            "without any of / \\ ? #, tabs and line ends, no space at its end, and more than . or .."
        )


def check_partition_key(partition_key: str) -> None:
    """
    Check that Cosmos DB takes a partition key and Service Bus can name a session after it.

    Raises:
        UsageError: it does not, or it cannot.
    """
    if not 1 <= _bytes_of(partition_key) <= _MAX_KEY_BYTES:
        raise UsageError(
            f"{_shown(partition_key)} cannot be a partition key: it needs 1 to {_MAX_KEY_BYTES} bytes of valid text."
        )


def _bytes_of(text: object) -> int:
    try:
        return len(text.encode()) if isinstance(text, str) else 0
    except UnicodeEncodeError:  # half of a surrogate pair
        return 0


def _shown(value: object) -> str:
    return repr(value[:_SHOWN] if isinstance(value, str) else value)


def _formatted(h: str) -> str:
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANTS[int(h[16], 16)]}{h[17:20]}-{h[20:]}"
