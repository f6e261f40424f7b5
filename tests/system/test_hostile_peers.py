"""Any bytes of a peer get the documented answer, and no other client notices."""

from __future__ import annotations

import random
import socket
import struct
import time

import pytest
from pamqp import commands

from leveret.amqp.sockets import REFUSALS_MAX
from tests.harness.broker import MIB, BrokerProcess
from tests.harness.bystander import Bystander
from tests.harness.wire import (
    PROTOCOL_HEADER,
    Client,
    ClosedError,
    Wire,
    frame_bytes,
    publish_bytes,
)
from tests.support.waiting import LIMIT_SECONDS

HANDSHAKE_TIMEOUT_SECONDS = 3.0
CHANNEL_MAX_TEXT = (
    "NOT_ALLOWED - number of channels opened (2047) has reached the negotiated channel_max (2047)"
)
DEEP_TABLE_TEXT = "SYNTAX_ERROR - field table nested deeper than 64"


@pytest.fixture(scope="module")
def shared(tmp_path_factory, processes):
    """One broker for all: what one peer does to it would show in what follows."""
    settings = {
        "handshake_timeout_seconds": HANDSHAKE_TIMEOUT_SECONDS,
        "tail_cache_bytes_max": 4 * MIB,
    }
    with BrokerProcess(tmp_path_factory.mktemp("hostile") / "data", **settings) as broker:
        yield broker
        broker.check_untroubled()
        broker.stop()


@pytest.fixture
def broker(shared):
    """The broker, with a bystander beside each test that must notice nothing."""
    with Bystander(shared.port):
        yield shared


def test_garbage_is_answered_with_the_protocol_header(broker):
    for seed in range(10):
        with Wire(broker.port) as wire:
            wire.socket.sendall(random.Random(seed).randbytes(1000))
            assert wire.await_end() in {PROTOCOL_HEADER, b""}  # a reset may swallow it


@pytest.mark.covers("B-001")
@pytest.mark.parametrize("header", [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"HTTP/1.1"])
def test_a_wrong_version_is_told_the_right_one(broker, header):
    with Wire(broker.port) as wire:
        wire.socket.sendall(header)
        assert wire.await_end() == PROTOCOL_HEADER


@pytest.mark.covers("B-007")
@pytest.mark.parametrize("said", [b"", b"AMQP", PROTOCOL_HEADER])
def test_an_unfinished_handshake_ends_with_its_time(broker, said):
    with Wire(broker.port) as wire:
        wire.socket.sendall(said)
        began = time.monotonic()
        answer = wire.await_end()
        assert bool(answer) is (said == PROTOCOL_HEADER)
        assert time.monotonic() - began > HANDSHAKE_TIMEOUT_SECONDS / 2


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 131_073])
def test_a_frame_too_large_is_refused_at_its_header(broker, size):
    memory = broker.rss_bytes
    with Client(broker.port) as client:
        client.send_bytes(struct.pack(">BHI", 1, 1, size))
        closed = client.await_close()
    assert closed.code == 501
    assert closed.text == (
        f"FRAME_ERROR - type 1, all octets = <<>>: {{frame_too_large,{size},131064}}"
    )
    assert broker.rss_bytes - memory < 16 * MIB


def test_a_frame_too_large_before_login(broker):
    with Wire(broker.port) as wire:
        wire.send_bytes(PROTOCOL_HEADER + struct.pack(">BHI", 1, 0, 0xFFFFFFFF))
        wire.expect(0, commands.Connection.Start)
        assert wire.await_close().code == 501


@pytest.mark.covers("B-306")
def test_channels_end_at_channel_max(broker):
    with Client(broker.port) as client:
        opened = b"".join(
            frame_bytes(1, number, b"\x00\x14\x00\x0a\x00") for number in range(2, 2049)
        )
        client.send_bytes(opened)
        closed = client.await_close()
    assert (closed.code, closed.text) == (530, CHANNEL_MAX_TEXT)


def nested_table(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        field = b"\x01aF" + struct.pack(">I", len(table)) + table
        table = field
    return struct.pack(">I", len(table)) + table


def test_a_deep_table_in_a_method_closes_the_connection(broker):
    with Client(broker.port) as client:
        declare = b"\x00\x32\x00\x0a\x00\x00\x04deep\x00" + nested_table(900)
        client.send_bytes(frame_bytes(1, 1, declare))
        closed = client.await_close()
    assert closed.text == DEEP_TABLE_TEXT


def test_deep_headers_are_only_looked_at_where_they_matter(broker):
    properties = b"\x20\x00" + nested_table(900)
    with Client(broker.port).confirming() as client:
        client.declare("deep-headers")
        client.publish("deep-headers", [b"one"], properties=properties)
        client.await_confirms(1)
        client.consume("deep-headers", no_ack=True)
        assert [one.body for one in client.deliveries(1)] == [b"one"]
    with Client(broker.port) as client:
        client.send_bytes(publish_bytes("", b"x", exchange="amq.headers", properties=properties))
        closed = client.await_close()
    assert closed.text == DEEP_TABLE_TEXT


def test_thousands_of_half_open_connections(broker):
    memory = broker.rss_bytes
    sockets = [half_open(broker.port) for _ in range(3000)]
    try:
        assert (broker.rss_bytes - memory) / len(sockets) < 40_000
        for one in sockets:
            one.settimeout(4 * HANDSHAKE_TIMEOUT_SECONDS)
            assert one.recv(1) == b""
    finally:
        for one in sockets:
            one.close()


def half_open(port: int) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), 30)
    one.sendall(b"AMQP")
    return one


@pytest.mark.covers("B-304")
@pytest.mark.usefixtures("processes")
def test_connections_beyond_the_limit_are_told_and_closed(tmp_path):
    with BrokerProcess(tmp_path / "data", connections_max=10) as broker:
        clients = [Client(broker.port) for _ in range(10)]
        with pytest.raises(ClosedError) as refusal:
            Client(broker.port)
        assert refusal.value.text == (
            "NOT_ALLOWED - connection refused: node connection limit (10) is reached"
        )
        silent = [half_open(broker.port) for _ in range(REFUSALS_MAX)]
        for _ in range(20):
            with Wire(broker.port) as refused:
                assert refused.await_end() == b""
        for one in silent:
            one.close()
        for client in clients:
            client.declare("still-served")
        clients.pop().hang_up()
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:  # until the broker has noticed
            try:
                clients.append(Client(broker.port))
                break
            except OSError:
                assert time.monotonic() < deadline
        for client in clients:
            client.hang_up()


def test_cut_frames_and_contents_harm_nobody(broker):
    whole = publish_bytes("cut", bytes(200_000))
    with Client(broker.port).confirming() as client:
        client.declare("cut")
        client.publish("cut", [b"before"])
        client.await_confirms(1)
    for cut in (1, 6, 7, 20, 30, 100, 140_000, len(whole) - 1):
        with Client(broker.port) as client:
            client.send_bytes(whole[:cut])
    with Client(broker.port) as client:
        assert client.count("cut") == 1


@pytest.mark.usefixtures("processes")
def test_guessed_passwords_cost_little_memory(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker, Bystander(broker.port):
        memory = broker.rss_bytes
        guesses = [half_logged_in(broker.port, number) for number in range(100)]
        for wire in guesses:
            wire.await_end()
            wire.hang_up()
        assert broker.rss_bytes - memory < 96 * MIB


def half_logged_in(port: int, number: int) -> Wire:
    wire = Wire(port)
    wire.send_bytes(PROTOCOL_HEADER)
    wire.expect(0, commands.Connection.Start)
    wire.send(0, commands.Connection.StartOk({}, "PLAIN", f"\0guest\0guess{number}", "en_US"))
    return wire


def test_rapid_connects(broker):
    for i in range(300):
        wire = Wire(broker.port)
        if i % 3:
            wire.socket.sendall(PROTOCOL_HEADER[: i % 9])
        wire.hang_up()
    for _ in range(20):
        Client(broker.port).hang_up()
    with Client(broker.port) as client:
        assert client.declare("rapid").queue == "rapid"


@pytest.mark.covers("B-122")
def test_what_a_dead_consumer_held_is_delivered_again_in_order(broker):
    bodies = [b"%d" % i for i in range(1000)]
    with Client(broker.port).confirming() as client:
        client.declare("left")
        client.publish("left", bodies)
        client.await_confirms(1000)
    with Client(broker.port) as dying:
        dying.consume("left")
        taken = list(dying.deliveries(1000))
        dying.ack(10, multiple=True)
        dying.call(1, commands.Basic.Qos(prefetch_count=0))
    with Client(broker.port) as client:
        client.consume("left")
        again = list(client.deliveries(990))
        assert [one.body for one in again] == bodies[10:]
        assert all(one.redelivered for one in again)
        assert not any(one.redelivered for one in taken)
        client.ack(again[-1].tag, multiple=True)
        client.call(1, commands.Basic.Qos(prefetch_count=0))
        assert client.count("left") == 0


@pytest.mark.usefixtures("processes")
def test_who_finds_no_room_to_wait_for_a_handshake_is_told_of(tmp_path):
    limits = {"handshakes_max": 1, "handshakes_waiting_max": 2}
    with BrokerProcess(tmp_path / "data", handshake_timeout_seconds=20, **limits) as broker:
        silent, first, second = (Wire(broker.port) for _ in range(3))
        with silent, first, second, Wire(broker.port) as third:
            assert third.await_end() == b""
            assert "closed a connection from 127.0.0.1 before its handshake" in broker.log()
            assert "(handshakes_waiting_max)" in broker.log()
            silent.hang_up()
            first.send_bytes(PROTOCOL_HEADER)
            first.expect(0, commands.Connection.Start)
        broker.check_untroubled()


@pytest.mark.usefixtures("processes")
def test_who_hangs_up_while_he_waits_for_his_handshake_leaves_the_line(tmp_path):
    limits = {"handshakes_max": 1, "handshakes_waiting_max": 1}
    with BrokerProcess(tmp_path / "data", handshake_timeout_seconds=20, **limits) as broker:
        with Wire(broker.port) as silent:
            waiting = Wire(broker.port)
            waiting.send_bytes(PROTOCOL_HEADER)
            waiting.hang_up()
            deadline = time.monotonic() + LIMIT_SECONDS
            while True:  # until the broker has noticed
                patient = Wire(broker.port)
                try:
                    patient.await_end(0.3)
                except TimeoutError:
                    break
                patient.hang_up()
                assert time.monotonic() < deadline
            silent.hang_up()
            patient.send_bytes(PROTOCOL_HEADER)
            patient.expect(0, commands.Connection.Start)
            patient.hang_up()
        broker.check_untroubled()
