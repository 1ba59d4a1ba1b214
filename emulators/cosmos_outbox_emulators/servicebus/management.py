"""The operations that clients request from $management and $cbs. `requests.py` has the links for these requests and their replies."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from cosmos_outbox_emulators.servicebus import rules
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.channel import Wire
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition, entity_not_found
from cosmos_outbox_emulators.servicebus.decoding import DecodeError
from cosmos_outbox_emulators.servicebus.entry import Session
from cosmos_outbox_emulators.servicebus.message import Message, parse_message, to_timestamp
from cosmos_outbox_emulators.servicebus.primitives import Array, Int, Long
from cosmos_outbox_emulators.servicebus.queue import Outcome, Queue
from cosmos_outbox_emulators.servicebus.requests import Reply, Request
from cosmos_outbox_emulators.servicebus.sas import InvalidToken, entity_path, key_name, verify
from cosmos_outbox_emulators.servicebus.sessions import Sessions
from cosmos_outbox_emulators.servicebus.topic import Subscription, Topic

MANAGEMENT = "$management"
_STATUS = {
    Condition.MESSAGE_LOCK_LOST: 410,
    Condition.SESSION_LOCK_LOST: 410,
    Condition.SESSION_CANNOT_BE_LOCKED: 410,
    Condition.NOT_FOUND: 404,
    Condition.MESSAGE_NOT_FOUND: 404,
    Condition.ENTITY_ALREADY_EXISTS: 409,
    Condition.NOT_IMPLEMENTED: 501,
    Condition.UNAUTHORIZED_ACCESS: 401,
}
# .NET's DateTime.MaxValue. A client that asks for sessions that changed after this time wants the sessions that have messages.
_END_OF_TIME_MS = 253_402_300_799_000


def put_token(wire: Wire, request: Request) -> Reply:
    """Check a shared access signature, and remember on the connection which rights it grants."""
    broker, audience = wire.broker, request.properties.get("name")
    if request.operation != "put-token" or not isinstance(audience, str) or not isinstance(request.body, str):
        return Reply(
            status=400, description="The request is no put-token with a name and a token.", body=None
        )
    try:
        # Tokens expire by the clocks of clients, so the time by which a test moved the broker's clock is subtracted.
        expires = verify(request.body, audience, broker.keys, broker.timers.now() - broker.ahead_s)
    except InvalidToken as error:
        return Reply(status=401, description=str(error), body=None, condition=Condition.UNAUTHORIZED_ACCESS)
    path = base_path(audience)
    if path and path.lower() not in broker.topics and path.lower() not in broker.queues:
        failure = entity_not_found(path)
        return Reply(status=404, description=failure.description, body=None, condition=failure.condition)
    wire.authorise(path, expires + broker.ahead_s, broker.config.rights_of(key_name(request.body)))
    return Reply(status=202, description="Accepted", body=None)


def base_path(address: str) -> str:
    """Return the path of the entity to which an address belongs, without a trailing $management."""
    path = entity_path(address)
    return path[: -len(MANAGEMENT)].rstrip("/") if path.lower().endswith(MANAGEMENT) else path


class Management:
    """Answers management requests about one entity. A request may only name locks that its own connection holds."""

    def __init__(self, wire: Wire, path: str) -> None:
        self._wire = wire
        self._broker: Broker = wire.broker
        self._path = path
        self._operations: dict[str, Callable[[dict[Any, Any]], Reply]] = {
            "renew-lock": self._renew_lock,
            "renew-session-lock": self._renew_session_lock,
            "get-session-state": self._get_session_state,
            "set-session-state": self._set_session_state,
            "update-disposition": self._update_disposition,
            "receive-by-sequence-number": self._receive_by_sequence_number,
            "peek-message": self._peek_message,
            "get-message-sessions": self._get_message_sessions,
            "schedule-message": self._schedule_message,
            "cancel-scheduled-message": self._cancel_scheduled_message,
            "enumerate-rules": self._enumerate_rules,
            "add-rule": self._add_rule,
            "remove-rule": self._remove_rule,
        }
        if path.lower() not in self._broker.topics:
            self._broker.queue(path)

    def answer(self, request: Request) -> Reply:
        try:
            return self._perform(request)
        except DecodeError as error:
            return Reply(status=400, description=str(error), condition=Condition.DECODE_ERROR)
        except AmqpError as error:
            status = _STATUS.get(Condition(error.condition), 400)
            return Reply(status=status, description=error.description, condition=error.condition)

    def _perform(self, request: Request) -> Reply:
        operation = self._operations.get(request.operation)
        if operation is None:
            raise AmqpError(
                Condition.NOT_IMPLEMENTED, f"The operation {request.operation!r} is not implemented."
            )
        body = {} if request.body is None else request.body
        if not isinstance(body, dict):
            raise AmqpError(Condition.ARGUMENT_ERROR, "The body of a request must be a map.")
        return operation(body)

    # These properties look up a part of the entity when an operation needs it.

    @property
    def _queue(self) -> Queue:
        return self._broker.queue(self._path)

    @property
    def _topic(self) -> Topic:
        return self._broker.topic(self._path)

    @property
    def _sessions(self) -> Sessions:
        sessions = self._queue.sessions
        if sessions is None:
            raise AmqpError(
                Condition.NOT_ALLOWED, f"The messaging entity '{self._path}' does not require sessions."
            )
        return sessions

    @property
    def _subscription(self) -> Subscription:
        for subscription in self._broker.owner(self._queue.path).subscriptions.values():
            if subscription.queue is self._queue and self._path.lower() not in self._broker.topics:
                return subscription
        raise AmqpError(Condition.NOT_ALLOWED, f"The messaging entity '{self._path}' has no rules.")

    def _require_session(self, body: dict[Any, Any]) -> Session:
        return self._sessions.get(_get(body, "session-id", str), self._wire)

    # Locks and sessions

    def _renew_lock(self, body: dict[Any, Any]) -> Reply:
        expirations = [to_timestamp(self._queue.renew(token)) for token in _tokens(body)]
        return Reply(body={"expirations": Array(expirations)})

    def _renew_session_lock(self, body: dict[Any, Any]) -> Reply:
        session = self._require_session(body)
        return Reply(body={"expiration": to_timestamp(self._sessions.renew(session))})

    def _get_session_state(self, body: dict[Any, Any]) -> Reply:
        return Reply(body={"session-state": self._require_session(body).state})

    def _set_session_state(self, body: dict[Any, Any]) -> Reply:
        state = _get(body, "session-state", bytes | None)
        limit = self._broker.owner(self._queue.path).config.max_message_size
        if state is not None and len(state) > limit:
            raise AmqpError(
                Condition.MESSAGE_SIZE_EXCEEDED, f"The state of a session must not exceed {limit} bytes."
            )
        self._sessions.set_state(self._require_session(body), state)
        return Reply()

    def _get_message_sessions(self, body: dict[Any, Any]) -> Reply:
        changed_after: int = _get(body, "last-updated-time", int)
        skip, top = _get(body, "skip", int), _get(body, "top", int)
        ids = self._sessions.ids(None if changed_after >= _END_OF_TIME_MS else changed_after / 1000)
        page = ids[max(0, skip) : max(0, skip) + max(0, top)]
        if not page:
            return Reply(status=204, description="No Content")
        return Reply(body={"skip": Int(skip + len(page)), "sessions-ids": Array(page)})

    # Messages

    def _update_disposition(self, body: dict[Any, Any]) -> Reply:
        try:
            outcome = Outcome(_get(body, "disposition-status", str))
        except ValueError as error:
            raise AmqpError(Condition.ARGUMENT_ERROR, str(error)) from None
        reason, description = body.get("deadletter-reason"), body.get("deadletter-description")
        changes = _get(body, "properties-to-modify", dict | None)
        for token in _tokens(body):
            self._queue.settle(token, outcome, _text(reason), _text(description), changes=changes)
        return Reply()

    def _receive_by_sequence_number(self, body: dict[Any, Any]) -> Reply:
        session = self._require_session(body) if self._queue.sessions else None
        sequences = [int(number) for number in _numbers(body)]
        settled = body.get("receiver-settle-mode") == 0
        got = self._queue.receive_deferred(sequences, session=session, receive_and_delete=settled)
        messages = [
            {
                "lock-token": uuid.UUID(bytes_le=token),
                "message": entry.encode(b"" if settled else token),
            }
            for token, entry in got
        ]
        return Reply(body={"messages": messages})

    def _peek_message(self, body: dict[Any, Any]) -> Reply:
        start, count = _get(body, "from-sequence-number", int), _get(body, "message-count", int)
        session_id = body.get("session-id")
        entries = list(self._queue.peek(start, count, session_id if isinstance(session_id, str) else None))
        if not entries:
            return Reply(status=204, description="No Content", condition=Condition.MESSAGE_NOT_FOUND)
        return Reply(body={"messages": [{"message": entry.encode()} for entry in entries]})

    def _schedule_message(self, body: dict[Any, Any]) -> Reply:
        messages = [_parse_scheduled(item) for item in _get(body, "messages", list)]
        return Reply(
            body={"sequence-numbers": Array(Long(number) for number in self._topic.schedule(messages))}
        )

    def _cancel_scheduled_message(self, body: dict[Any, Any]) -> Reply:
        self._topic.cancel([int(number) for number in _numbers(body)])
        return Reply()

    # Rules

    def _enumerate_rules(self, body: dict[Any, Any]) -> Reply:
        skip, top = max(0, _get(body, "skip", int)), max(0, _get(body, "top", int))
        page = list(self._subscription.rules.values())[skip : skip + top]
        if not page:
            return Reply(status=204, description="No Content")
        return Reply(body={"rules": [rules.describe(rule) for rule in page]})

    def _add_rule(self, body: dict[Any, Any]) -> Reply:
        rule, present = (
            rules.parse_rule(body.get("rule-name"), body.get("rule-description")),
            self._subscription.rules,
        )
        if rule.name in present:
            raise AmqpError(Condition.ENTITY_ALREADY_EXISTS, f"The rule '{rule.name}' exists already.")
        present[rule.name] = rule
        return Reply()

    def _remove_rule(self, body: dict[Any, Any]) -> Reply:
        name = _get(body, "rule-name", str)
        if self._subscription.rules.pop(name, None) is None:
            raise AmqpError(Condition.NOT_FOUND, f"The rule '{name}' could not be found.")
        return Reply()


def _get(body: dict[Any, Any], key: str, kind: Any) -> Any:
    value = body.get(key)
    if not isinstance(value, kind):
        raise AmqpError(Condition.ARGUMENT_ERROR, f"The request lacks a valid '{key}'.")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _tokens(body: dict[Any, Any]) -> list[bytes]:
    values = _get(body, "lock-tokens", list)
    if not all(isinstance(value, uuid.UUID) for value in values):
        raise AmqpError(Condition.ARGUMENT_ERROR, "Each lock token must be a uuid.")
    return [value.bytes_le for value in values]


def _numbers(body: dict[Any, Any]) -> list[int]:
    values: list[Any] = _get(body, "sequence-numbers", list)
    if not all(isinstance(value, int) for value in values):
        raise AmqpError(Condition.ARGUMENT_ERROR, "Each sequence number must be a whole number.")
    return values


def _parse_scheduled(item: Any) -> Message:
    if not isinstance(item, dict) or not isinstance(item.get("message"), bytes):
        raise AmqpError(Condition.ARGUMENT_ERROR, "A scheduled message must be a map with binary 'message'.")
    return parse_message(item["message"])
