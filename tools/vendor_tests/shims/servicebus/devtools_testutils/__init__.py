"""
Replaces the test tools of the SDK's repository, which are not published as a package.

The tests send their requests to the emulator, no request is recorded, and the credential is the emulator's key.
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
    """The base class of every test class of the SDK."""

    is_live = True

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., Any]:
        """Return the test unchanged, because pytest runs coroutines as tests here."""
        return test


AzureMgmtRecordedTestCase = AzureRecordedTestCase


def get_credential(*, is_async: bool = False) -> Any:
    """Return a credential with the emulator's key. In Microsoft's own runs, the credential is one of Entra ID."""
    return (ServiceBusSharedKeyCredentialAsync if is_async else ServiceBusSharedKeyCredential)(KEY_NAME, KEY)


def recorded_by_proxy(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return the test unchanged, because nothing is recorded."""
    return test


def nothing(*_arguments: Any, **_options: Any) -> None:
    """Do nothing. This stands for functions that configure recordings."""


set_custom_default_matcher = nothing


class PowerShellPreparer(Preparer):
    """Reads names, such as that of the namespace, from environment variables and passes them to a test."""

    def __init__(self, _directory: str, **fakes: str) -> None:
        super().__init__()
        self._names = tuple(fakes)

    def supply(self, _given: dict[str, Any]) -> dict[str, Any]:
        return {name: os.environ.get(name.upper(), "") for name in self._names}

    @property
    def supplied(self) -> frozenset[str]:
        return frozenset(self._names)


class NoPreparer(Preparer):
    """Stands for a decorator that creates a resource group. It passes nothing to a test, because an emulator has none."""

    @property
    def supplied(self) -> frozenset[str]:
        return frozenset({"resource_group", "location"})


CachedResourceGroupPreparer = RandomNameResourceGroupPreparer = NoPreparer
