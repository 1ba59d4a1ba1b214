"""
Let each program read an environment as it would at start: JSON in, the mistakes that it finds out.

Runs in the project's environment, where the programs are installed, and imports nothing else of these checks.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

_READERS = {
    "worker": ("cosmos_outbox.service.settings", "load"),
    "consumer": ("cosmos_outbox.service.consumer_settings", "load_consumer"),
    "api": ("examples.contacts.settings", "Settings"),
    "subscriber": ("examples.contacts.settings", "SubscriberSettings"),
}


def refused(program: str, environment: dict[str, str]) -> list[str]:
    """
    Return one line a mistake that a program finds in its environment.
    """
    module, name = _READERS[program]
    read = getattr(importlib.import_module(module), name)
    os.environ.clear()
    os.environ.update(environment)
    try:
        read()
    except Exception as error:  # noqa: BLE001 # any error of a program is an answer
        return str(error).splitlines()
    return []


if __name__ == "__main__":
    json.dump([refused(**asked) for asked in json.load(sys.stdin)], sys.stdout)
