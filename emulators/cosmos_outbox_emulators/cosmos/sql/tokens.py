"""Splits the text of a query into tokens (words, numbers, signs). `parser.py` builds the query from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request


class TokenKind(StrEnum):
    """The kinds of tokens in a query."""

    NUMBER = "number"
    STRING = "string"
    PARAMETER = "parameter"
    NAME = "name"
    OPERATOR = "operator"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """
    One token, and where it begins in the query. `value` is the value of a literal. `word` is a name or an operator in capitals.
    """

    kind: TokenKind
    text: str
    value: Any = None
    start: int = 0
    word: str | None = None


_PATTERN = re.compile(
    r"""\s*(?:
      (?P<number>0[xX][0-9a-fA-F]+(?!\w)|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w))
    | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<parameter>@\w+)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<operator><=|>=|!=|<>|\|\||\?\?|[=<>()\[\]{}.,*+\-/%:?])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def syntax_error(near: str) -> CosmosError:
    return bad_request(f"Syntax error, incorrect syntax near '{near[:50]}'.")


def tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _PATTERN.match(text, position, end)
        if match is None:
            raise syntax_error(text[position:].lstrip())
        kind = TokenKind(str(match.lastgroup))
        tokens.append(_token(kind, match[kind.value], match.start(kind.value)))
        position = match.end()
    return [*tokens, Token(TokenKind.END, "end of query", start=len(text))]


def _token(kind: TokenKind, text: str, start: int) -> Token:
    if kind is TokenKind.STRING:
        # Two escapes may stand for the two halves (surrogates) of one character, so they are joined by encoding them as UTF-16.
        halves = _ESCAPE.sub(_unescape, text[1:-1]).encode("utf-16", "surrogatepass")
        return Token(kind, text, halves.decode("utf-16", "surrogatepass"), start)
    if kind is TokenKind.NUMBER:
        if len(text) > 400:  # no double is so long, and Python refuses integers of 4,300 digits
            raise syntax_error(text)
        return Token(kind, text, _number(text.lower()), start)
    word = text.upper() if kind in (TokenKind.NAME, TokenKind.OPERATOR) else None
    return Token(kind, text, start=start, word=word)


def _number(text: str) -> float:
    if text.startswith("0x"):
        return int(text, 16)
    return float(text) if "." in text or "e" in text else int(text)


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)
