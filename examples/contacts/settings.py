"""The settings of the API and of the subscriber, read from OUTBOX_ environment variables."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cosmos_outbox import ConfigurationError

PREFIX = "OUTBOX_"


class _FromEnvironment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)  # type: ignore[arg-type] # values for fields, as pydantic-settings takes them
        except ValidationError as error:
            # Leave the given value out of the error, because it may be a secret.
            mistakes = error.errors(include_url=False, include_input=False)
            lines = [
                ": ".join([*(f"{PREFIX}{str(name).upper()}" for name in each["loc"]), each["msg"]])
                for each in mistakes
            ]
            raise ConfigurationError("\n".join(lines)) from None


class Settings(_FromEnvironment):
    """The settings of the API. `Settings()` raises a ConfigurationError that names each environment variable that is wrong."""

    cosmos_connection_string: SecretStr | None = Field(default=None, description="Account with its key.")
    cosmos_endpoint: str | None = Field(
        default=None, pattern=r"^https?://[^/]+", description="Account, for the default Azure credential."
    )
    cosmos_database: str = Field(default="contacts", min_length=1)
    cosmos_container: str = Field(default="data", min_length=1)

    @model_validator(mode="after")
    def _has_one_account(self) -> Self:
        if (self.cosmos_connection_string is None) == (self.cosmos_endpoint is None):
            raise ValueError("set OUTBOX_COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT, and not both")
        return self


class SubscriberSettings(_FromEnvironment):
    """The settings of the subscriber: from which subscription it receives, and how many sessions it holds at once."""

    servicebus_connection_string: str
    servicebus_transport: Literal["tcp", "websockets"] = "tcp"
    topic: str = "events"
    subscription: str = "all"
    receivers: int = Field(default=32, ge=1, le=1000)
