"""
A stand-in for the test tools of the SDK's repository, which are not published.

Tests run live, nothing is recorded, and the credential is the emulator's key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import (
    ServiceBusSharedKeyCredential as ServiceBusSharedKeyCredentialAsync,
)

from .preparing import Preparer

KEY_NAME, KEY = os.environ["SERVICEBUS_SAS_POLICY"], os.environ["SERVICEBUS_SAS_KEY"]


class AzureRecordedTestCase:
    """The base of every test class."""

    is_live = True

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., Any]:
        """Leave a coroutine as it is: here they run as tests."""
        return test


AzureMgmtRecordedTestCase = AzureRecordedTestCase


def get_credential(*, is_async: bool = False) -> Any:
    """Return the emulator's key, where Microsoft's own runs use Entra ID."""
    return (ServiceBusSharedKeyCredentialAsync if is_async else ServiceBusSharedKeyCredential)(KEY_NAME, KEY)


def recorded_by_proxy(test: Callable[..., Any]) -> Callable[..., Any]:
    """Leave a test as it is."""
    return test


def nothing(*_arguments: Any, **_options: Any) -> None:
    """Stand for what concerns recordings."""


set_custom_default_matcher = nothing


class PowerShellPreparer(Preparer):
    """Hands a test the names of the service that its environment variables hold."""

    def __init__(self, _directory: str, **fakes: str) -> None:
        super().__init__()
        self._names = tuple(fakes)

    def supply(self, _given: dict[str, Any]) -> dict[str, Any]:
        return {name: os.environ.get(name.upper(), "") for name in self._names}

    @property
    def supplied(self) -> frozenset[str]:
        return frozenset(self._names)


class NoPreparer(Preparer):
    """Supplies nothing: there are no resource groups here."""

    @property
    def supplied(self) -> frozenset[str]:
        return frozenset({"resource_group", "location"})


CachedResourceGroupPreparer = RandomNameResourceGroupPreparer = NoPreparer
