"""The tests of azure-servicebus: the live ones of sending, receiving, sessions and management."""

from __future__ import annotations

from urllib.parse import urlsplit

from tools.vendor_tests.suite import HERE, Addresses, Suite, parts


def environment(addresses: Addresses) -> dict[str, str]:
    """Name the namespace by host and port, and its key."""
    namespace = parts(addresses.servicebus)
    where = urlsplit(namespace["Endpoint"])
    return {
        "SERVICEBUS_HOST": str(where.hostname),
        "SERVICEBUS_ENDPOINT_SUFFIX": f":{where.port}",
        "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": where.netloc,
        "SERVICEBUS_SAS_POLICY": namespace["SharedAccessKeyName"],
        "SERVICEBUS_SAS_KEY": namespace["SharedAccessKey"],
        "SERVICEBUS_CONNECTION_STR": addresses.servicebus,
    }


_LIVE = ("list_sessions", "message", "mgmt_*", "queues", "sb_client", "sessions", "subscriptions", "topic")

SUITE = Suite(
    name="servicebus",
    distribution="azure-servicebus",
    environment=environment,
    files=tuple(f"**/test_{name}{kind}.py" for name in _LIVE for kind in ("", "_async")),
    left_out=("*/test_mgmt_dictmixin.py", "test_mgmt_client_kwargs.py"),  # the SDK alone
    serve=("--config", str(HERE / "servicebus-keys.json")),
    # The tests wait by design: for locks of 30 s and for messages that must not come.
    test_seconds=500,
    file_seconds=5400,
)
