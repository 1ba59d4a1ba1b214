"""
Settings of the contacts API: the environment, read once, every mistake reported with the name of its variable.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cosmos_outbox import ConfigurationError

PREFIX = "OUTBOX_"


class Settings(BaseSettings):
    """
    What the API is told by its environment; `Settings()` raises ConfigurationError with all mistakes.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")

    cosmos_connection_string: SecretStr | None = Field(
        default=None, description="Cosmos DB account with its key. Use either this or OUTBOX_COSMOS_ENDPOINT."
    )
    cosmos_endpoint: str | None = Field(
        default=None, description="URL of the Cosmos DB account, reached with the default Azure credential."
    )
    cosmos_database: str = Field(default="contacts", min_length=1, description="Database of the contacts.")
    cosmos_container: str = Field(default="data", min_length=1, description="Container of the contacts.")

    def __init__(self, **values: object) -> None:
        mistakes: list[str] = []
        try:
            super().__init__(**values)  # type: ignore[arg-type] # values for fields, as pydantic-settings takes them
        except ValidationError as error:
            mistakes = [
                f"{PREFIX}{str(mistake['loc'][0]).upper()}: {mistake['msg'].removeprefix('Value error, ')}"
                for mistake in error.errors(include_input=False, include_url=False)
            ]
            faulty = {str(mistake["loc"][0]) for mistake in error.errors(include_input=False)}
            connected = bool(faulty & {"cosmos_connection_string", "cosmos_endpoint"})
        else:
            connected = self.cosmos_connection_string is not None or self.cosmos_endpoint is not None
            if self.cosmos_connection_string is not None and self.cosmos_endpoint is not None:
                mistakes.append(
                    f"{PREFIX}COSMOS_CONNECTION_STRING and {PREFIX}COSMOS_ENDPOINT: set one of them, not both"
                )
        if not connected and not mistakes:
            mistakes.append(
                f"{PREFIX}COSMOS_CONNECTION_STRING or {PREFIX}COSMOS_ENDPOINT: one of them is required"
            )
        if mistakes:
            raise ConfigurationError("\n".join(sorted(mistakes))) from None

    @field_validator("cosmos_connection_string")
    @classmethod
    def _names_account_and_key(cls, secret: SecretStr | None) -> SecretStr | None:
        text = secret.get_secret_value() if secret is not None else ""
        missing = [part for part in ("AccountEndpoint=", "AccountKey=") if part not in text]
        if secret is not None and missing:
            raise ValueError(f"is no connection string: it lacks {' and '.join(missing)}…")
        return secret

    @field_validator("cosmos_endpoint")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError("must be a URL such as https://ACCOUNT.documents.azure.com")
        return url
