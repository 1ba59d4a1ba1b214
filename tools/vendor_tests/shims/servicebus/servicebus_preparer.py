"""
Decorators that create the queues and topics of a test on the emulator instead of in an Azure subscription. This file replaces the SDK's
file of the same name, and its decorators have the same names.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient
from devtools_testutils import KEY, KEY_NAME, get_credential
from devtools_testutils.preparing import Preparer

SERVICEBUS_ENDPOINT_SUFFIX = os.environ["SERVICEBUS_ENDPOINT_SUFFIX"]
HOST = os.environ["SERVICEBUS_HOST"]
CONNECTION_STRING = (
    f"Endpoint=sb://{HOST}{SERVICEBUS_ENDPOINT_SUFFIX};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};"
    "UseDevelopmentEmulator=true;"
)


@dataclass(frozen=True)
class Resource:
    name: str


def administration() -> ServiceBusAdministrationClient:
    """Return a client that can create entities on the emulator."""
    return ServiceBusAdministrationClient(f"{HOST}{SERVICEBUS_ENDPOINT_SUFFIX}", get_credential())


class _Named(Preparer):
    """Creates a resource with a random name, and passes it to the test as the argument `parameter_name`."""

    parameter = ""

    def __init__(self, name_prefix: str = "", *, parameter_name: str = "", **options: Any) -> None:
        super().__init__()
        self.prefix, self.options = name_prefix, options
        self.parameter_name = parameter_name or self.parameter

    @property
    def supplied(self) -> frozenset[str]:
        return frozenset({self.parameter_name})

    def supply(self, given: dict[str, Any]) -> dict[str, Any]:
        name = f"{self.prefix}{uuid.uuid4().hex[:12]}"
        self.make(name, given)
        return {self.parameter_name: Resource(name)}

    def make(self, name: str, given: dict[str, Any]) -> None:
        raise NotImplementedError


class ServiceBusResourceGroupPreparer(_Named):
    parameter = "resource_group"

    def make(self, name: str, given: dict[str, Any]) -> None:
        pass


class ServiceBusNamespacePreparer(Preparer):
    @property
    def supplied(self) -> frozenset[str]:
        return frozenset(self.supply({}))

    def supply(self, _given: dict[str, Any]) -> dict[str, Any]:
        return {
            "servicebus_namespace": Resource(HOST),
            "servicebus_namespace_connection_string": CONNECTION_STRING,
            "servicebus_namespace_key_name": KEY_NAME,
            "servicebus_namespace_primary_key": KEY,
        }


class ServiceBusQueuePreparer(_Named):
    parameter = "servicebus_queue"

    def make(self, name: str, given: dict[str, Any]) -> None:
        with administration() as client:
            client.create_queue(name, **{"lock_duration": "PT30S", **self.options})


class ServiceBusTopicPreparer(_Named):
    parameter = "servicebus_topic"

    def make(self, name: str, given: dict[str, Any]) -> None:
        with administration() as client:
            client.create_topic(name)


class ServiceBusSubscriptionPreparer(_Named):
    parameter = "servicebus_subscription"

    def make(self, name: str, given: dict[str, Any]) -> None:
        options = dict(self.options)
        topic = given[options.pop("servicebus_topic_parameter_name", "servicebus_topic")].name
        with administration() as client:
            client.create_subscription(topic, name, **options)


class ServiceBusNamespaceAuthorizationRulePreparer(Preparer):
    """Passes a key with the rights that the test asks for. The emulator's configuration has this key already."""

    def __init__(self, *_arguments: Any, access_rights: Sequence[str] = (), **_options: Any) -> None:
        super().__init__()
        (self.key_name,) = [str(right) for right in access_rights] if len(access_rights) == 1 else [KEY_NAME]

    @property
    def supplied(self) -> frozenset[str]:
        return frozenset(self.supply({}))

    def supply(self, _given: dict[str, Any]) -> dict[str, Any]:
        return {
            "servicebus_authorization_rule": Resource(self.key_name),
            "servicebus_authorization_rule_connection_string": CONNECTION_STRING.replace(
                KEY_NAME, self.key_name
            ),
        }


class ServiceBusQueueAuthorizationRulePreparer(Preparer):
    @property
    def supplied(self) -> frozenset[str]:
        return frozenset(
            {
                "servicebus_queue_authorization_rule",
                "servicebus_queue_authorization_rule_connection_string",
            }
        )

    def supply(self, given: dict[str, Any]) -> dict[str, Any]:
        queue = given["servicebus_queue"].name
        return {
            "servicebus_queue_authorization_rule": Resource(KEY_NAME),
            "servicebus_queue_authorization_rule_connection_string": f"{CONNECTION_STRING}EntityPath={queue}",
        }


CachedServiceBusResourceGroupPreparer = ServiceBusResourceGroupPreparer
CachedServiceBusNamespacePreparer = ServiceBusNamespacePreparer
CachedServiceBusQueuePreparer = ServiceBusQueuePreparer
CachedServiceBusTopicPreparer = ServiceBusTopicPreparer
CachedServiceBusSubscriptionPreparer = ServiceBusSubscriptionPreparer
