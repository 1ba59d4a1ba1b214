"""The suite of azure-servicebus: its live tests of sending, receiving, sessions and management."""

from __future__ import annotations

from urllib.parse import urlsplit

from tools.vendor_tests.suite import HERE, Addresses, Edit, Suite, parts


def environment(addresses: Addresses) -> dict[str, str]:
    """Return the environment variables that name the namespace, by host and port, and its key."""
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

# Release 7.15 of the SDK broke two of its own tests. First, the SDK now passes `await_outcome` to a method
# that a test replaces, so the replacement has to accept it. Second, if a receiver is not open, the time limit
# of its first receive now also limits the wait for a session. The test expects the time limit of the
# constructor, which the changelog promises only for an open receiver. So the edit opens the receiver first.
_SETTLES = "def _hack_amqp_message_complete(cls, _, _unused, settlement"
_BOUNDED = "receiver.receive_messages(max_wait_time=5)\n            assert time.time() - start_time > 65"
_OPENED = "receiver.{0}()\n            assert time.time() - start_time > 65"
_PATIENT = """uamqp_transport=uamqp_transport,
        ) as sb_client:

            receiver = sb_client.get_queue_receiver(
                servicebus_queue.name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10
"""
_EDITS = (
    *(
        Edit(file=file, old=f"{_SETTLES}):", new=f"{_SETTLES}, **kwargs):")
        for file in ("test_queues.py", "async_tests/test_queues_async.py")
    ),
    Edit(file="test_sessions.py", old=_BOUNDED, new=_OPENED.format("__enter__")),
    Edit(file="async_tests/test_sessions_async.py", old=_BOUNDED, new=_OPENED.format("__aenter__")),
    # Without this edit, the async test makes four attempts of 70 s, twice, which takes ten minutes. With it,
    # the test makes two attempts, as its blocking version does.
    Edit(
        file="async_tests/test_sessions_async.py",
        old=_PATIENT,
        new=_PATIENT.replace("\n", " retry_total=1,\n", 1),
    ),
)

SUITE = Suite(
    name="servicebus",
    distribution="azure-servicebus",
    environment=environment,
    files=tuple(f"**/test_{name}{kind}.py" for name in _LIVE for kind in ("", "_async")),
    left_out=("*/test_mgmt_dictmixin.py", "test_mgmt_client_kwargs.py"),  # these need no service
    edits=_EDITS,
    serve=("--config", str(HERE / "servicebus-keys.json")),
    # The tests wait on purpose: for locks of 30 s to end, and to see that a message does not come.
    test_seconds=500,
    file_seconds=5400,
)
