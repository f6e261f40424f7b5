"""The floor serves what the rows ask of it."""

import contextlib
import socket

import pytest

from bench.floor import Floor, compile_floor
from bench.measure import perf
from bench.processes import BenchError
from tests.support.waiting import LIMIT_SECONDS

CONFIRMED = ("--messages", "100", "--persistent", "--confirms", "20", "--drain-timeout", "30")
ACKED = ("--ack-every", "1", "--ack-frames", "each")


@pytest.fixture(scope="module")
def program(processes, tmp_path_factory):
    return compile_floor(tmp_path_factory.mktemp("floor"))


@pytest.fixture
def floor(processes, program, tmp_path):
    broker = Floor(tmp_path, "fsync", None, program, polls=False)
    broker.start()
    yield broker
    broker.stop()


def test_publishes_are_confirmed_and_delivered_once(floor, tmp_path):
    result = perf(floor, *CONFIRMED, *ACKED, "--prefetch", "20", "--publishers", "3", "--verify")
    assert result["ok"]
    assert result["confirmed_total"] == result["consumed_total"] == 100
    assert len((tmp_path / "data").read_bytes().rstrip(b"\0")) > 100 * 16


def test_messages_longer_than_a_frame_and_of_no_bytes_are_delivered(floor):
    for size in (0, 150_000):
        result = perf(floor, *CONFIRMED, *ACKED, "--prefetch", "20", "--size", str(size))
        assert result["ok"]
        assert result["consumed_total"] == 100


def test_each_get_is_answered_with_a_message(floor):
    result = perf(floor, "--mode", "drain", "--messages", "500", "--get", *ACKED)
    assert result["ok"]
    assert (result["consumed_total"], result["empty_total"]) == (500, 0)


def test_it_answers_when_it_polls(processes, program, tmp_path):
    broker = Floor(tmp_path, "os", None, program, polls=True)
    broker.start()
    try:
        result = perf(broker, "--consumers", "0", *CONFIRMED, "--publishers", "50")
    finally:
        broker.stop()
    assert result["confirmed_total"] == 100


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\1\0\0\xff\xff\xff\xff\0", "a frame is too long, in bytes: 4294967303"),
        (b"\1\0\0\0\0\0\4\0\x0a\0\x28\0", "a frame ends in 0"),
        (b"\1\0\x40\0\0\0\4\0\x0a\0\x28\xce", "a channel too high: 64"),
        (b"\1\0\0\0\0\0\1\0\xce", "a method frame of bytes: 9"),
        (b"\2\0\1\0\0\0\1\0\xce", "not a frame of type 2"),
        (b"\1\0\1\0\0\0\4\0\x3c\0\x28\xce" + b"\2\0\1\0\0\0\0\xce", "a header of bytes: 8"),
        (b"\1\0\1\0\0\0\4\0\x3c\0\x1e\xce", "no answer is known to method 3932190"),
    ],
)
def test_what_it_does_not_understand_ends_it(floor, sent, said):
    port = int(floor.uri.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), LIMIT_SECONDS) as link:
        link.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(1) == b""
    assert said in floor.log.read_text()


def test_a_compiler_that_fails_is_named(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(BenchError, match=r"^false -O2"):
        compile_floor(tmp_path)
