"""The exception with which the emulator refuses a request. It has the status, sub-status and message that Azure would send."""

from __future__ import annotations

from collections.abc import Mapping


class CosmosError(Exception):
    """Refuses a request. It carries the HTTP status, the Cosmos DB sub-status and the message of the reply."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        substatus: int = 0,
        retry_after_ms: int | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.substatus = substatus
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.details = details or {}
        # Headers that the reply gets in addition to those of every refusal
        self.headers: Mapping[str, str] = {}


def bad_request(message: str, *, substatus: int = 0) -> CosmosError:
    return CosmosError(400, message, substatus=substatus)


def not_found(message: str = "Entity with the specified id does not exist in the system.") -> CosmosError:
    return CosmosError(404, message)


def conflict() -> CosmosError:
    return CosmosError(409, "Entity with the specified id already exists in the system.")


def precondition_failed(*, substatus: int = 0) -> CosmosError:
    return CosmosError(412, "One of the specified pre-condition is not met.", substatus=substatus)


def too_large(message: str = "Request size is too large.") -> CosmosError:
    return CosmosError(413, message)
