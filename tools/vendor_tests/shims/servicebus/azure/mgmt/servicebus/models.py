"""The rights of a key, by the names that the tests import."""

from __future__ import annotations

from enum import StrEnum


class AccessRights(StrEnum):
    manage = "Manage"
    send = "Send"
    listen = "Listen"
