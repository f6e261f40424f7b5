"""AMQP URIs are read as RabbitMQ's client reads them, and never shown with their secrets."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.shovels.uris import (
    AmqpUri,
    InvalidUriError,
    hide_password,
    without_credentials,
)


def test_everything_a_uri_can_say():
    uri = AmqpUri.parse(
        "amqps://us%40er:p%2Fw@[::1]:5999/my%2Fhost?heartbeat=30&connection_timeout=500"
        "&auth_mechanism=external&cacertfile=/ca&certfile=/c&keyfile=/k&password=x"
        "&verify=verify_none&server_name_indication=name"
    )
    assert (uri.host, uri.port, uri.vhost) == ("::1", 5999, "my/host")
    assert (uri.user, uri.password, uri.mechanism) == ("us@er", "p/w", "external")
    assert (uri.heartbeat_seconds, uri.connect_ms_max) == (30, 500)
    assert (uri.ca_file, uri.certificate_file, uri.key_file, uri.key_password) == (
        "/ca",
        "/c",
        "/k",
        "x",
    )
    assert (uri.is_secure, uri.verifies_peer, uri.server_name) == (True, False, "name")


@pytest.mark.parametrize(
    ("text", "host", "port", "vhost", "user"),
    [
        ("amqp://", "", 5672, "/", "guest"),
        ("amqp:///v", "", 5672, "v", "guest"),
        ("amqp://u@/v", "", 5672, "v", "u"),
        ("AMQP://h", "h", 5672, "/", "guest"),
        ("amqp://h/", "h", 5672, "", "guest"),
        ("amqp://h/%2F", "h", 5672, "/", "guest"),
        ("amqps://h", "h", 5671, "/", "guest"),
    ],
)
def test_defaults(text, host, port, vhost, user):
    uri = AmqpUri.parse(text)
    assert (uri.host, uri.port, uri.vhost, uri.user) == (host, port, vhost, user)
    assert uri.is_direct == (not host)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("h", "{unable_to_parse_uri,no_scheme}"),
        ("http://h", '{unexpected_uri_scheme,"http"}'),
        ("amqp://h:0", "{port_out_of_range,0}"),
        ("amqp://h:65536", "{port_out_of_range,65536}"),
        ("amqp://:5672", "port_requires_host"),
        ("amqp://h/a/b", '{invalid_vhost,"a/b"}'),
        ("amqp://h?auth_mechanism=x", '{unknown_mechanism,"x"}'),
        (
            "amqp://h?heartbeat=x",
            '{invalid_amqp_params_parameter,heartbeat,{not_an_integer,"x"}}',
        ),
        ("amqp://h/%zz", "{invalid_entity,percent_encoding}"),
    ],
)
def test_what_is_no_uri(text, reason):
    with pytest.raises(InvalidUriError) as told:
        AmqpUri.parse(text)
    assert str(told.value) == reason


def test_secrets_are_not_shown():
    secret = "amqps://user:hush@host:1/v?password=hush#hush"
    assert without_credentials(secret) == "amqps://host:1/v"
    shown = hide_password("amqps://user:hush@host:1/v?a=b&password=hush")
    assert shown == "amqps://user:…@host:1/v?a=b&password=…"
    assert hide_password("amqp://user@host") == "amqp://user@host"


@given(st.text())
def test_any_text_is_a_uri_or_refused(text):
    for candidate in (text, f"amqp://{text}"):
        with contextlib.suppress(InvalidUriError):
            AmqpUri.parse(candidate)
        without_credentials(candidate)
        hide_password(candidate)
