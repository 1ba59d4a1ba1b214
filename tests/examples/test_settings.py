from __future__ import annotations

import pytest

from cosmos_outbox import ConfigurationError
from examples.contacts.settings import Settings

SECRET = "AccountEndpoint=https://a.documents.azure.com/;AccountKey=c2VzYW1l;"  # noqa: S105 - of no account


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECTION_STRING", "ENDPOINT", "DATABASE", "CONTAINER"):
        monkeypatch.delenv(f"OUTBOX_COSMOS_{name}", raising=False)


def test_a_connection_string_is_the_only_required_setting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOX_COSMOS_CONNECTION_STRING", SECRET)
    settings = Settings()

    assert ("contacts", "data") == (settings.cosmos_database, settings.cosmos_container)
    assert "c2VzYW1l" not in repr(settings)


def test_an_endpoint_may_replace_the_connection_string(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOX_COSMOS_ENDPOINT", "https://a.documents.azure.com")
    monkeypatch.setenv("OUTBOX_COSMOS_CONNECTION_STRING", "")  # an empty variable counts as not set
    assert "https://a.documents.azure.com" == Settings().cosmos_endpoint


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, ["OUTBOX_COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT"]),
        ({"CONNECTION_STRING": SECRET, "ENDPOINT": "https://a"}, ["not both"]),
        ({"ENDPOINT": "nowhere"}, ["OUTBOX_COSMOS_ENDPOINT: "]),
    ],
)
def test_one_error_names_the_variables_of_all_wrong_settings(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], named: list[str]
):
    """The error names all wrong variables at once, and shows no secret."""
    for name, value in environment.items():
        monkeypatch.setenv(f"OUTBOX_COSMOS_{name}", value)
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    for words in named:
        assert words in str(caught.value)
    assert "c2VzYW1l" not in str(caught.value)
