"""
Faults that a test asks for by name: calls of the store, the topic, the leases or the subscription that have to fail.

    harness.fail("commit", "lost_answer")           # the next commit is written, but its answer is lost
    harness.fail("send", "too_large", key="o1")     # the topic refuses a message of this key as too large

The how-to "Test your own code" has a table of all faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from cosmos_outbox.errors import (
    BrokerUnavailable,
    Conflict,
    LockLost,
    MessageRejected,
    NotFound,
    OutboxError,
    PreconditionFailed,
    RequestTooLarge,
    StoreUnavailable,
    SubscriptionUnavailable,
    TooManyRequests,
)
from cosmos_outbox.event_loop import Background
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.partition_key import PartitionKey, broker_id, key_text
from cosmos_outbox.ports import Write
from cosmos_outbox_testing.port_calls import Call

# With the fault "slow", the caller gets an error first. The call is carried out this many seconds later.
_LATE_SECONDS = 0.002


class _Executed(Enum):
    NOT = auto()
    BEFORE = auto()
    LATER = auto()


@dataclass(frozen=True, slots=True)
class _Fault:
    """
    A fault: the error that the caller gets, and whether the call is carried out all the same.

    error: makes the error for a call.
    executed: when the call is carried out: never, before the error is raised, or later.
    of_one: whether the topic refuses a single message, such as one that is too large. It refuses each batch with this message, so the
        worker sends smaller batches until it has found the message.
    of_replica: whether only reads from a replica fail. A read with `newest=True` succeeds.
    """

    error: Callable[[Call], OutboxError]
    executed: _Executed = _Executed.NOT
    of_one: bool = False
    of_replica: bool = False


def _by(error: Callable[[], OutboxError]) -> Callable[[Call], OutboxError]:
    return lambda call: error()


def _conflict(call: Call) -> OutboxError:
    if call.port == "leases":
        return PreconditionFailed(expected=call.named.get("etag"))
    partition_key, writes = call.arguments
    write: Write = next((one for one in writes if one.etag is not None), writes[-1])
    if write.etag is None:
        return Conflict(document_id=write.id, partition_key=partition_key)
    return PreconditionFailed(expected=write.etag, document_id=write.id, partition_key=partition_key)


def _without_answer(error: Callable[[], OutboxError]) -> dict[str, _Fault]:
    return {
        "lost_answer": _Fault(_by(error), _Executed.BEFORE),
        "unavailable": _Fault(_by(error)),
        "slow": _Fault(_by(error), _Executed.LATER),
    }


_THROTTLED = {"throttled": _Fault(_by(partial(TooManyRequests, retry_after=0.0)))}
_READ = {**_THROTTLED, "unavailable": _Fault(_by(StoreUnavailable))}
_WRITE = {"conflict": _Fault(_conflict), **_THROTTLED, **_without_answer(StoreUnavailable)}
_SETTLE = _without_answer(SubscriptionUnavailable)
del _SETTLE["slow"]

# For each operation: the port, the method, and the possible faults.
_OPERATIONS: Mapping[str, tuple[str, str, Mapping[str, _Fault]]] = {
    "commit": ("store", "commit", {**_WRITE, "too_large": _Fault(_by(RequestTooLarge))}),
    "read": ("store", "read", {**_READ, "behind": _Fault(_by(NotFound), of_replica=True)}),
    "query": ("store", "list", _READ),
    "feed": ("feed", "read_page", _READ),
    "lease": ("leases", "replace", _WRITE),
    "send": (
        "publisher",
        "publish",
        {
            "throttled": _Fault(_by(partial(BrokerUnavailable, retry_after=0.0))),
            **_without_answer(BrokerUnavailable),
            "too_large": _Fault(_by(MessageRejected), of_one=True),
        },
    ),
    "park": ("parked", "commit", _WRITE),
    "settle": ("subscription", "settle", {**_SETTLE, "lock_lost": _Fault(_by(LockLost))}),
}
OPERATIONS: Mapping[str, tuple[str, ...]] = {
    name: tuple(sorted(faults)) for name, (_, _, faults) in _OPERATIONS.items()
}
_NAMES = {(port, method): name for name, (port, method, _) in _OPERATIONS.items()}
_WITH_KEYS = ("commit", "read", "send")


class FaultNotStruck(AssertionError):
    """A test asked for a fault, but made no call to which the fault applies. So the test did not test what it was meant to test."""


def check_fault(operation: str, fault: str, operations: Mapping[str, Sequence[str]]) -> None:
    """
    Check that an operation and its fault exist.

    Raises:
        ValueError: the operation or the fault is unknown. The error lists the known names.
    """
    if operation not in operations:
        raise ValueError(f"There is no operation {operation!r}. The operations are {', '.join(operations)}.")
    if fault not in operations[operation]:
        raise ValueError(f"{operation!r} has no fault {fault!r}; it has {', '.join(operations[operation])}.")


def text_of(operation: str, fault: str, **how: object) -> str:
    """Return the call by which a test asked for a fault, such as "fail('send', 'too_large')", for error texts."""
    usual = {"times": 1, "skip": 0, "key": None, "container": ""}
    said = "".join(f", {name}={value!r}" for name, value in how.items() if value != usual[name])
    return f"fail({operation!r}, {fault!r}{said})"


def is_meant_refusal(error: BaseException | None, asked: Iterable[str]) -> bool:
    """
    Return whether an event was parked or held because the test asked for this with `fail("send", "too_large")`.

    error: why the event was parked; None for an event that was held behind a parked one.
    asked: the faults that the test asked for, as `text_of` returns them.
    """
    asked_for = any(one.startswith("fail('send', 'too_large'") for one in asked)
    return asked_for and (error is None or isinstance(error, MessageRejected))


def require_none_idle(idle: Sequence[str]) -> None:
    """
    Require that every fault of a test made a call fail.

    Raises:
        FaultNotStruck: the list `idle`, which has the faults that made no call fail, is not empty.
    """
    if idle:
        said = [f"{one} never struck." for one in idle]
        raise FaultNotStruck("\n".join([*said, "Correct the fault or the test, or clear the faults."]))


@dataclass(slots=True, kw_only=True)
class _Rule:
    operation: str
    fault: _Fault
    skip: int
    left: int | None
    key: str | None
    said: str
    struck: bool = False

    def strikes(self, call: Call) -> bool:
        if _NAMES.get((call.port, call.method)) != self.operation or self.left == 0:
            return False
        if self.fault.of_replica and call.named.get("newest"):
            return False
        if self.key is not None and self.key not in _keys_of(call):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.left is not None and not (self.fault.of_one and len(call.arguments[1]) > 1):
            self.left -= 1
        self.struck = True
        return True


class Faults:
    """The faults that a test asked for, each for a number of calls. If several apply to a call, the oldest of them decides."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._late = Background()

    def add(
        self,
        operation: str,
        fault: str,
        *,
        times: int | None = 1,
        skip: int = 0,
        key: PartitionKey | None = None,
    ) -> None:
        """
        Make the next calls of an operation fail.

        Args:
            operation: such as `commit`. The how-to "Test your own code" lists all operations.
            fault: such as `lost_answer`.
            times: how many calls fail. None means all calls from now on. Defaults to 1.
            skip: how many calls succeed before the first one fails. Defaults to 0.
            key: the partition key whose commits, reads or sends fail. It is a tuple if the container has a hierarchical partition key.
                Defaults to all partition keys.

        Raises:
            ValueError: the operation or the fault does not exist, or `key` is given for an operation without a partition key. The error
                lists the possible values. Or `times` or `skip` is too small.
        """
        check_fault(operation, fault, OPERATIONS)
        if key is not None and operation not in _WITH_KEYS:
            raise ValueError(f"{operation!r} takes no key: only {', '.join(_WITH_KEYS)} take a key.")
        if (times is not None and times < 1) or skip < 0:
            raise ValueError(f"times={times!r}, skip={skip!r}: `times` is at least 1, and `skip` at least 0.")
        self._rules.append(
            _Rule(
                operation=operation,
                fault=_OPERATIONS[operation][2][fault],
                skip=skip,
                left=times,
                key=None if key is None else _session_of(key),
                said=text_of(operation, fault, times=times, skip=skip, key=key),
            )
        )

    def clear(self) -> None:
        """Remove all faults, also those that have not made a call fail yet."""
        self._rules.clear()

    def require_struck(self) -> None:
        """
        Require that each fault that the test asked for made a call fail.

        The fixture `outbox_harness` calls this after each test that passed.

        Raises:
            FaultNotStruck: some faults made no call fail. The error names them.
        """
        require_none_idle([rule.said for rule in self._rules if not rule.struck])

    def is_meant(self, error: BaseException | None) -> bool:
        """Return whether an event was parked with this error because the test asked for a fault that causes it."""
        return is_meant_refusal(error, (rule.said for rule in self._rules))

    async def wait_for_late(self) -> None:
        """Wait until every call with the fault "slow" has been carried out."""
        await self._late.wait()

    async def around(self, call: Call, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Carry out a call, or raise the error of the first fault that applies to it."""
        fault = next((rule.fault for rule in self._rules if rule.strikes(call)), None)
        if fault is None:
            return await proceed()
        if fault.executed is _Executed.BEFORE:
            await proceed()
        elif fault.executed is _Executed.LATER:
            self._late.add(self._arrive_late(proceed))
        raise fault.error(call)

    async def _arrive_late(self, proceed: Callable[[], Awaitable[Any]]) -> None:
        await asyncio.sleep(_LATE_SECONDS)
        # The caller already got the error of the fault, and does not wait for this call.
        with suppress(OutboxError):
            await proceed()


def _keys_of(call: Call) -> tuple[str, ...]:
    if call.port == "publisher":
        messages: Sequence[OutboundMessage] = call.arguments[1]
        return tuple(message.session_id for message in messages)
    return (_session_of(call.arguments[0 if call.method == "commit" else 1]),)


def _session_of(key: PartitionKey) -> str:
    # A commit or read has a partition key, and a message has a session id that is made from it. Compare session ids, so that the same
    # value of `key` works for all three operations.
    return broker_id(key_text(key))
