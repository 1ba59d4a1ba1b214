"""The rights of a shared access key, under the names that the SDK's tests import."""

from __future__ import annotations

from enum import StrEnum


class AccessRights(StrEnum):
    manage = "Manage"
    send = "Send"
    listen = "Listen"
