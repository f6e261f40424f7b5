"""The thread that keeps the session, where the system has no descriptors or threads for it."""

from __future__ import annotations

import socket
import threading

import pytest

from leveret.cluster.coordination import kazoo_client, session_keeper
from leveret.cluster.coordination.kazoo_client import KazooConnections, ZooKeeperClient
from leveret.cluster.coordination.session_keeper import SessionKeeper
from leveret.cluster.coordination.settings import ZooKeeperSettings
from leveret.cluster.coordination.zookeeper import boottime_ms
from leveret.config.cluster import parse_connect_string
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_SECONDS, wait_until

NO_DESCRIPTORS = OSError, 24, "Too many open files"
NO_THREADS = RuntimeError, "can't start new thread"


class KeptEvents:
    """Events that a keeper has told."""

    def __init__(self):
        self.losses = []

    def ping_loop(self):
        pass

    def may_have_changed(self):
        raise AssertionError("there is no server")

    def lost(self, number, reason):
        self.losses.append((number, reason))


@pytest.fixture
def keeper(monkeypatch):
    """A keeper whose servers do not answer; it looks again soon."""
    monkeypatch.setattr(session_keeper, "RENEW_MS", 5)
    settings = ZooKeeperSettings(
        parse_connect_string(f"127.0.0.1:{free_port()}/tested"), session_ms=100
    )
    made = SessionKeeper(settings, boottime_ms, KeptEvents())
    before = set(threading.enumerate())
    yield made
    ended = threading.Event()
    made.end(ended.set)
    assert ended.wait(LIMIT_SECONDS)
    wait_until(lambda: before.issuperset(threading.enumerate()), "the end of all threads")


def failing(method, failure, numbers):
    """Return a method some calls of which fail, those that have a number; and its calls."""
    calls = []

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) in numbers:
            raise failure[0](*failure[1:])
        return method(*arguments, **options)

    return fail, calls


@pytest.mark.parametrize(
    ("method", "failure", "numbers"),
    [
        ("create_socket_pair", NO_DESCRIPTORS, (1, 2, 3)),
        # Of the first thread of one client, the second one of the next, the last one of another.
        ("spawn", NO_THREADS, (1, 3, 6)),
    ],
)
def test_a_client_that_cannot_begin_is_followed_by_another(
    keeper, monkeypatch, caplog, method, failure, numbers
):
    fail, calls = failing(getattr(KazooConnections, method), failure, numbers)
    monkeypatch.setattr(KazooConnections, method, fail)
    keeper.start()
    wait_until(lambda: len(calls) > max(numbers), "another client")
    assert keeper._events.losses == []
    told = [line for line in caplog.messages if failure[-1] in line]
    assert len(told) == 1
    wait_until(lambda: "refused" in keeper.problem, "a server that was tried")


def test_a_client_that_is_thrown_away_for_its_silence_is_followed_by_another(keeper, monkeypatch):
    fail, calls = failing(KazooConnections.create_socket_pair, NO_DESCRIPTORS, (1, 2, 3))
    keeper.start()
    wait_until(lambda: keeper._client is not None, "a client")
    monkeypatch.setattr(KazooConnections, "create_socket_pair", fail)
    wait_until(lambda: len(calls) > 3, "another client")
    wait_until(lambda: "refused" in keeper.problem, "a server that was tried")


def test_a_server_that_is_being_tried_is_named():
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        settings = ZooKeeperSettings(
            parse_connect_string(f"{address}/tested"), session_ms=int(LIMIT_SECONDS * 1000)
        )
        client = ZooKeeperClient(settings, lambda *_: None)
        assert client.problem == "no server was tried yet"
        client.start()
        connection, _ = silent.accept()
        with connection:
            assert client.problem == f"{address}: it has not answered yet"
            client.abandon()
            wait_until(lambda: before.issuperset(threading.enumerate()), "the end of all threads")


def test_a_client_ends_where_no_thread_can_begin(keeper, monkeypatch):
    client = ZooKeeperClient(keeper._settings, lambda *_: None)
    client.start()

    def begin(thread):
        raise AssertionError(thread)

    monkeypatch.setattr(kazoo_client.Thread, "start", begin)
    ended = threading.Event()
    client.stop(ended.set)
    assert ended.wait(LIMIT_SECONDS)
    monkeypatch.undo()
    keeper.start()
