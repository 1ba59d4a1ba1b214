"""The AMQP error conditions that Service Bus answers with."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Condition(StrEnum):
    DECODE_ERROR = "amqp:decode-error"
    FRAMING_ERROR = "amqp:connection:framing-error"
    CONNECTION_FORCED = "amqp:connection:forced"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    INTERNAL_ERROR = "amqp:internal-error"
    INVALID_FIELD = "amqp:invalid-field"
    LINK_DETACH_FORCED = "amqp:link:detach-forced"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    NOT_FOUND = "amqp:not-found"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    ARGUMENT_ERROR = "com.microsoft:argument-error"
    ARGUMENT_OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    TIMEOUT = "com.microsoft:timeout"


class AmqpError(Exception):
    """A refusal that is sent to the peer. Its condition decides what the client does next."""

    def __init__(self, condition: str, description: str = "", info: Mapping[str, Any] | None = None) -> None:
        super().__init__(condition, description)
        self.condition = str(condition)
        self.description = description
        self.info = info or {}


def entity_not_found(path: str) -> AmqpError:
    return AmqpError(Condition.NOT_FOUND, f"The messaging entity 'sb://localhost/{path}' could not be found.")
