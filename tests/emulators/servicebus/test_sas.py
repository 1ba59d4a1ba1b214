"""
Tests of shared access signature (SAS) tokens: which tokens the emulator accepts, and for which entities.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote_plus

import pytest

from cosmos_outbox_emulators.servicebus.sas import InvalidToken, covers, entity_path, verify

KEYS = {"Root": ("other", "secret==")}


def token(resource="sb://host/events", *, name="Root", key="secret==", expires=2000):
    encoded = quote_plus(resource)
    signature = hmac.new(key.encode(), f"{encoded}\n{expires}".encode(), hashlib.sha256).digest()
    sig = quote_plus(base64.b64encode(signature))
    return f"SharedAccessSignature sr={encoded}&sig={sig}&se={expires}&skn={name}"


def test_a_signed_token_is_valid_until_it_expires():
    assert 2000 == verify(token(), "sb://host:5672/events", KEYS, 1999)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (token(key="wrong"), "InvalidSignature"),
        (token(name="Nobody"), "InvalidSignature"),
        (token(name="Nobody", key=""), "InvalidSignature"),
        (token(expires=1000), r"ExpiredToken: .* Expiration time: 'Thu, 01 Jan 1970 00:16:40 GMT'"),
        (token("sb://host/other"), "InvalidAudience"),
        (token("sb://host/events/Subscriptions/s"), "InvalidAudience"),
        ("eyJhbGciOi.eyJhdWQi.c2ln", "MalformedToken"),
        ("SharedAccessSignature sr=x", "MalformedToken"),
        ("", "MalformedToken"),
    ],
)
def test_an_invalid_token_is_refused_with_a_reason(text, words):
    with pytest.raises(InvalidToken, match=words):
        verify(text, "sb://host/events", KEYS, 1000)


def test_a_token_covers_its_resource_and_the_entities_below_it():
    assert 2000 == verify(token("sb://host/"), "sb://host/events/Subscriptions/s", KEYS, 0)
    assert 2000 == verify(token("sb://host/Events"), "sb://host/events/Subscriptions/s", KEYS, 0)
    assert not covers("event", "events")


@pytest.mark.parametrize(
    ("resource", "other"),
    [
        ("host", "elsewhere"),
        ("HOST/events", "HOST/other"),
        ("host:5672/events", "host:5672/other"),
        ("sb://host/events?api-version=2024-05", "sb://host/other?api-version=2024-05"),
    ],
)
@pytest.mark.parametrize("host", ["host:5672", "host"])
def test_a_token_may_name_a_host_or_a_whole_url_as_its_resource(resource, other, host):
    assert 2000 == verify(token(resource), f"sb://{host}/events", KEYS, 0)
    with pytest.raises(InvalidToken, match="InvalidAudience"):
        verify(token(other), f"sb://{host}/events", KEYS, 0)


@pytest.mark.parametrize(
    "address",
    [
        "amqps://host:5671/t/Subscriptions/s",
        "sb://host/t/Subscriptions/s/",
        "t/Subscriptions/s",
        "/t/Subscriptions/s",
    ],
)
def test_the_path_of_an_entity_is_read_from_any_form_of_its_address(address):
    assert "t/Subscriptions/s" == entity_path(address)


def test_an_address_without_a_path_means_the_namespace():
    assert "" == entity_path("sb://host")
