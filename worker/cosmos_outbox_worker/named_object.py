"""Named object: what `package.module:name` stands for, found among the installed packages and in the working directory."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from cosmos_outbox.errors import ConfigurationError


def object_named(name: str, kind: str) -> Any:
    """
    Return the object that a name stands for; `kind` says what it should be.

    Raises:
        ConfigurationError: there is no such module, or no such name in it. What the module itself raises passes through.
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or not colon or not attribute.isidentifier():
        raise ConfigurationError(
            f"{name!r} names no {kind}: say package.module:{kind}, the module and the name in it."
        )
    module = import_named(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = get_close_matches(attribute, vars(module), n=1)
        hint = f" Did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigurationError(f"The module {module_name!r} has no {attribute!r}.{hint}") from None


def raise_text(error: BaseException) -> str:
    """Return the text of an error of a caller's code, with the place where it was raised. Frames of the import itself are skipped."""
    frames = extract_tb(error.__traceback__)
    at = next(one for one in reversed(frames) if not one.filename.startswith("<"))
    return f"{error!r} in {at.filename}, line {at.lineno} in {at.name}"


def import_named(name: str) -> ModuleType:
    """
    Import a module, which may be in the working directory.

    Raises:
        ConfigurationError: there is none. What the module itself raises passes through.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # If another module is missing, the traceback says which one imports it.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"There is no module {error.name!r}. {name!r} is looked for in {here} and among the installed packages."
        ) from None
