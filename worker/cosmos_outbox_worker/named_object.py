"""Named object: import the object that `package.module:name` names, from installed packages or from the working directory."""

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
    Import the object that `package.module:name` names.

    Args:
        name: the module and the name in it, separated by a colon.
        kind: what the object should be, such as "consumer", for error texts.

    Raises:
        ConfigurationError: there is no such module, or no such name in it. Errors that the module itself raises are not caught.
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or not colon or not attribute.isidentifier():
        raise ConfigurationError(
            f"{name!r} does not name a {kind}: write package.module:{kind}, the module and the name in it."
        )
    module = import_named(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = get_close_matches(attribute, vars(module), n=1)
        hint = f" Did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigurationError(f"The module {module_name!r} has no {attribute!r}.{hint}") from None


def raise_text(error: BaseException) -> str:
    """
    Return the text of an error that imported code raised, with the file, line and function that raised it. Frames of Python's import
    system are skipped, because they do not show the mistake.
    """
    frames = extract_tb(error.__traceback__)
    at = next(one for one in reversed(frames) if not one.filename.startswith("<"))
    return f"{error!r} in {at.filename}, line {at.lineno} in {at.name}"


def import_named(name: str) -> ModuleType:
    """
    Import a module that is installed, or that is in the working directory.

    Raises:
        ConfigurationError: there is no such module. Errors that the module itself raises are not caught.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # If a module that the named module imports is missing, raise the error as it is: its traceback shows which import failed.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"There is no module {error.name!r}. {name!r} was searched in {here} and among the installed packages."
        ) from None
