"""Requests and answers that nodes of a cluster pass on: what comes is not trusted."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.mgmt_ui.forwarded import (
    AnswerHead,
    ForwardedMessageError,
    ForwardedRequest,
    ForwardedUser,
)

USER = ForwardedUser("app", ("monitoring",), True, ("10.0.0.7", 51234))
PATH = "/api/leveret/topics/%2F/q/offsets"
REQUEST = ForwardedRequest("GET", PATH, "time=1", USER, (0, 2), b'{"a": "\n"}')


def packed(request):
    return memoryview(b"".join(request.pack()))


def test_a_request_passes():
    assert ForwardedRequest.parse(packed(REQUEST)) == REQUEST
    bare = REQUEST._replace(body=b"", partitions=(), query="")
    assert ForwardedRequest.parse(packed(bare)) == bare


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PATCH"},
        {"path": "/api/users"},
        {"path": "/api/leveret/é"},
        {"query": "é"},
        {"user": USER._replace(name="")},
        {"user": USER._replace(name="x" * 5000)},
        {"user": USER._replace(tags=("x",) * 300)},
        {"user": USER._replace(tags=(1,))},
        {"user": USER._replace(peer=("host", -1))},
        {"user": USER._replace(peer=("host", 1 << 16))},
        {"partitions": (-1,)},
        {"partitions": (True,)},
        {"partitions": ("0",)},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(change):
    with pytest.raises(ForwardedMessageError):
        ForwardedRequest.parse(packed(REQUEST._replace(**change)))


@given(st.data())
def test_a_damaged_request_is_refused_or_another_one(data):
    damaged = bytearray(packed(REQUEST))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged) - 1)) :]
    else:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ForwardedMessageError):
        assert ForwardedRequest.parse(memoryview(bytes(damaged))).is_valid


@given(st.binary(max_size=200))
def test_bytes_are_no_request_and_no_answer(payload):
    for parse in (ForwardedRequest.parse, AnswerHead.parse):
        with pytest.raises(ForwardedMessageError):
            parse(memoryview(payload))


def test_the_head_of_an_answer_passes_with_the_headers_that_matter():
    headers = [(b"content-type", b"application/json"), (b"set-cookie", b"x=1")]
    head = AnswerHead.of({"status": 200, "headers": headers})
    assert head == AnswerHead(200, (("content-type", "application/json"),))
    assert AnswerHead.parse(memoryview(head.pack())) == head


@pytest.mark.parametrize(
    "told",
    [
        {"status": 99, "headers": []},
        {"status": "200", "headers": []},
        {"status": 200, "headers": {}},
        {"status": 200, "headers": [["set-cookie", "x=1"]]},
        {"status": 200, "headers": [["content-type", "a\r\nset-cookie: x"]]},
        {"status": 200, "headers": [["content-type", "é"]]},
        {"status": 200, "headers": [["content-type"]]},
        {"status": 200, "headers": [["content-type", 1]]},
        {"status": 200, "headers": ["x"]},
        {"status": 200, "headers": [["content-type", "x" * 20_000]]},
        [],
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(told):
    with pytest.raises(ForwardedMessageError):
        AnswerHead.parse(memoryview(json.dumps(told).encode()))
