"""
The LIKE patterns of the query languages of Cosmos DB and Service Bus: % stands for any text, and _ for any character. In Cosmos DB, [a-e]
also stands for one character of a set, and [^a-e] for one that is not in the set.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SET = r"\[(?P<set>\^?[^\]]+)\]|"


@lru_cache(maxsize=64)
def compile_like(pattern: str, escape: str = "", *, sets: bool = False) -> re.Pattern[str]:
    """
    Return a LIKE pattern as a regular expression for a whole text. Each part between two % is searched only once, at its first
    occurrence (`?>`), so that no pattern can take exponential time.
    """
    escaped = f"{re.escape(escape)}(?P<plain>.)|" if escape else ""
    parts = [""]
    for piece in re.finditer(f"{escaped}{_SET if sets else ''}.", pattern, re.DOTALL):
        named = piece.groupdict()
        if piece[0] == "%":
            parts.append("")
        elif named.get("set"):
            parts[-1] += "[" + re.sub(r"(?<!^)\^|[\[\\&~|]", r"\\\g<0>", named["set"]) + "]"
        else:
            parts[-1] += "." if piece[0] == "_" else re.escape(named.get("plain") or piece[0])
    first, *rest = parts
    found = [f"(?>.*?{part})" for part in rest[:-1] if part]
    return re.compile("".join([first, *found, *(f".*{part}" for part in rest[-1:])]), re.DOTALL)
