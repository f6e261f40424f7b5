"""Description of a client that a node passes on."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.passed_client import PROTOCOLS, PassedClient

CLIENT = PassedClient("amqp", ("10.1.2.3", 5000), ("10.0.0.1", 5672))
DEEP = "[" * 100_000 + "]" * 100_000
hosts = st.text(st.characters(codec="utf-8"), max_size=255).filter(str.isprintable)
ends = st.tuples(hosts, st.integers(0, 65_535))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 70_000) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def told(**changed):
    return json.dumps({**CLIENT._asdict(), **changed}).encode()


@given(st.builds(PassedClient, st.sampled_from(sorted(PROTOCOLS)), ends, ends))
def test_what_is_told_of_a_client_is_understood(client):
    assert PassedClient.from_bytes(client.to_bytes()) == client


def test_what_a_later_release_adds_is_left_out():
    assert PassedClient.from_bytes(told(tls="1.3")) == CLIENT


def taken(data):
    """Return the client of some bytes, if it is one; else there is the documented error only."""
    with suppress(ValueError):
        client = PassedClient.from_bytes(data)
        assert client.protocol in PROTOCOLS
        for host, port in (client.peer, client.here):
            assert type(port) is int
            assert 0 <= port <= 65_535
            assert len(host) <= 255
            assert host.isprintable()


@given(st.binary(max_size=100))
def test_any_bytes_are_a_client_or_none(data):
    taken(data)


@given(values)
def test_any_value_is_a_client_or_none(value):
    taken(json.dumps(value).encode())


@given(st.dictionaries(st.sampled_from(["protocol", "peer", "here"]), values))
def test_any_part_is_one_of_a_client_or_none(changed):
    taken(told(**changed))


@given(st.data())
def test_a_changed_byte_is_no_other_error(data):
    changed = bytearray(CLIENT.to_bytes())
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    taken(bytes(changed))


@pytest.mark.parametrize("end", ["peer", "here"])
@pytest.mark.parametrize(
    "wrong",
    [
        ("a" * 256, 1),
        ("a\nb", 1),
        ("\x1b[31m", 1),
        ("\x00", 1),
        ("\u2028", 1),
        ("\ud800", 1),
        (None, 1),
        (1, 1),
        (["a"], 1),
        ("a", -1),
        ("a", 65_536),
        ("a", 10**400),
        ("a", 1.0),
        ("a", "1"),
        ("a", True),
        ("a", False),
        ("a", None),
        ("a", [1]),
        ("a",),
        ("a", 1, 2),
        [],
        [["a", 1]],
        [[["a"], [1]]],
        "a1",
        {"a": 1, "b": 2},
        None,
        1,
    ],
)
def test_what_is_no_end_of_a_connection(end, wrong):
    with pytest.raises(ValueError, match=r"^no client: "):
        PassedClient.from_bytes(told(**{end: wrong}))


@pytest.mark.parametrize(
    "wrong", ["", "AMQP", "amqp ", "stomp", "http/prometheus", None, 1, True, ["amqp"], {"amqp": 1}]
)
def test_what_is_no_protocol_of_clients(wrong):
    with pytest.raises(ValueError, match=r"^no protocol of clients: "):
        PassedClient.from_bytes(told(protocol=wrong))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"1",
        b'"amqp"',
        b"\xff",
        b"NaN",
        b"9" * 10_000,
        told()[:-1],
        told() + b"x",
        DEEP.encode(),
        told().replace(b"5000", DEEP.encode()),
        told().replace(b'"amqp"', DEEP.encode()),
        json.dumps({"protocol": "amqp", "peer": ["a", 1]}).encode(),
    ],
    ids=repr,
)
def test_what_is_no_client(data):
    with pytest.raises(ValueError, match=r"^no (client|protocol of clients): "):
        PassedClient.from_bytes(data)
