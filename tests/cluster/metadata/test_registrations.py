"""Registrations of nodes and of the controller."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.metadata.encoding import MalformedError
from leveret.cluster.metadata.registrations import (
    ControllerTerm,
    RegisteredProcess,
    decode_controller,
    decode_registration,
    decode_session,
    encode_controller,
    encode_registration,
    encode_session,
)
from leveret.ports.coordination import NodeRegistration

NODE = RegisteredProcess(
    NodeRegistration(3, "peer:1", "client:2", "dir", "räck", 4, "1.0", 1, 2, session=9), 77
)


def test_they_are_read_as_they_were_written():
    assert decode_registration(encode_registration(NODE), 3) == NODE
    term = ControllerTerm(3, 9, 2)
    assert decode_controller(encode_controller(term)) == term
    assert decode_session(encode_session(5)) == 5


def test_fields_of_newer_releases_are_left_out():
    more = json.dumps({**json.loads(encode_registration(NODE)), "zone": "z"}).encode()
    assert decode_registration(more, 3) == NODE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 10_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "node is missing"),
        (encode_registration(NODE).replace(b'"session":9', b'"session":true'), "session"),
        (encode_registration(NODE).replace(b'"session":9', b'"session":-1'), "out of range"),
        (encode_registration(NODE).replace(b'"peer:1"', b"1"), "peer_address"),
        (encode_registration(NODE) + b" " * 20_000, "more than"),
        (encode_registration(NODE).replace(b'"node":3', b'"node":4'), "of node 4"),
    ],
)
def test_what_no_node_writes_is_refused_with_the_reason(data, reason):
    with pytest.raises(MalformedError, match=reason):
        decode_registration(data, 3)


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_a_session(data):
    try:
        session = decode_session(data)
    except MalformedError:
        return
    assert session >= 0
