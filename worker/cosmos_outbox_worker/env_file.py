"""Env file: variables from a file, for several programs of one service; a variable that the environment has already stays."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dotenv.parser import parse_stream

from cosmos_outbox.errors import ConfigurationError


def without_env_files(arguments: Sequence[str]) -> list[str]:
    """
    Return the arguments of a command without its files of variables, wherever they stand, and set the variables in those files.

    A later file wins over an earlier one, and what the process had over all.

    Raises:
        ConfigurationError: a file cannot be read, or a line of it is none of NAME=VALUE.
    """
    others: list[str] = []
    found: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        option, equals, file = word.partition("=")
        if option == "--env-file":
            found |= _variables(file if equals else next(words, ""))
        else:
            others += [word, *(words if word == "--" else ())]
    for name, value in found.items():
        os.environ.setdefault(name, value)
    return others


def _variables(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8-sig") as file:  # noqa: PTH123 - an empty path is no folder
            bindings = list(parse_stream(file))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigurationError(f"--env-file {path!r}: {why}.") from error
    found = {}
    for one in bindings:
        text = one.original.string  # the text may be a secret, and is not shown
        if one.key and one.value is not None and "\0" not in text:
            found[one.key] = one.value
        elif one.key or one.error:
            line = one.original.line + len(text) - len(text.lstrip("\n"))  # blank lines come before the text
            raise ConfigurationError(
                f"--env-file {path!r}: line {line} is no NAME=VALUE, or has an open quote."
            )
    return found
