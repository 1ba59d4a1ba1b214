"""Env file: the option `--env-file`, which sets environment variables from a file unless the environment has them already."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dotenv.parser import parse_stream

from cosmos_outbox.errors import ConfigurationError


def without_env_files(arguments: Sequence[str]) -> list[str]:
    """
    Set the variables of each `--env-file FILE` in the environment, and return the arguments without these options.

    If several files have a variable, the last file wins. A variable that the environment had before stays as it is.

    Raises:
        ConfigurationError: a file cannot be read, or a line in it is not NAME=VALUE.
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
        text = one.original.string  # it may contain a secret, so no error may show it
        if one.key and one.value is not None and "\0" not in text:
            found[one.key] = one.value
        elif one.key or one.error:
            # The text may begin with blank lines. Count them, too, so that the error names the wrong line after them.
            line = one.original.line + len(text) - len(text.lstrip("\n"))
            raise ConfigurationError(
                f"--env-file {path!r}: line {line} is no NAME=VALUE, or has an open quote."
            )
    return found
