import contextlib
import socket
import threading

import pytest
from pamqp import commands, frame

from leveret.perf.plan import Address, LoadPlan
from leveret.perf.session import BrokerError, LoadSession, decode, open_sessions
from leveret.perf.topology import declare, messages_ready

REPLIES = {
    "Connection.StartOk": lambda _: commands.Connection.Tune(2047, 8192, 60),
    "Connection.Open": lambda _: commands.Connection.OpenOk(),
    "Connection.Close": lambda _: commands.Connection.CloseOk(),
    "Channel.Open": lambda _: commands.Channel.OpenOk(),
    "Queue.Declare": lambda method: commands.Queue.DeclareOk(method.queue, 7, 0),
    "Queue.Delete": lambda _: commands.Queue.DeleteOk(0),
    "Queue.Bind": lambda _: commands.Queue.BindOk(),
    "Exchange.Declare": lambda _: commands.Exchange.DeclareOk(),
    "Exchange.Delete": lambda _: commands.Exchange.DeleteOk(),
}


class ScriptedBroker:
    """Answers every method with its plain reply and remembers what it was asked."""

    def __init__(self, **replies):
        self.replies = {**REPLIES, **{name.replace("_", "."): r for name, r in replies.items()}}
        self.methods = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.server.getsockname()[1], "me", "secret", "/v")
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(60)

    def uri(self):
        return f"amqp://127.0.0.1:{self.address.port}/"

    def names(self):
        return [method.name for method in self.methods]

    def _accept(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(ConnectionError):
            data = connection.recv(8)
            assert data == b"AMQP\x00\x00\x09\x01"
            start = commands.Connection.Start(0, 9, {}, "PLAIN", "en_US")
            # Cut in two, as a network may.
            encoded = frame.marshal(start, 0)
            connection.sendall(encoded[:5])
            connection.sendall(encoded[5:])
            data = b""
            while received := connection.recv(65536):
                data += received
                while len(data) >= 7 and len(data) >= int.from_bytes(data[3:7], "big") + 8:
                    used, channel, method = frame.unmarshal(data)
                    data = data[used:]
                    self.methods.append(method)
                    if (reply := self.replies.get(method.name)) is not None:
                        connection.sendall(frame.marshal(reply(method), channel))


def test_a_session_logs_in_and_agrees_on_what_the_broker_allows():
    with ScriptedBroker() as broker:
        session = LoadSession.connect(broker.address)
        assert session.frame_bytes_max == 8192
        session.close()
    start_ok, tune_ok, opening = broker.methods[:3]
    assert start_ok.response == "\0me\0secret"
    assert (tune_ok.frame_max, tune_ok.heartbeat) == (8192, 0)
    assert opening.virtual_host == "/v"
    assert broker.names()[-1] == "Connection.Close"


def test_a_refusal_carries_the_brokers_words():
    def refuse(_method):
        return commands.Connection.Close(403, "ACCESS_REFUSED - no", 0, 0)

    with ScriptedBroker(Connection_StartOk=refuse) as broker:
        for connect in (LoadSession.connect, lambda address: list(open_sessions(address, 3))):
            with pytest.raises(BrokerError, match="403 ACCESS_REFUSED - no"):
                connect(broker.address)


def test_sessions_open_in_groups_with_their_channels():
    with ScriptedBroker() as broker:
        groups = list(open_sessions(broker.address, 70, channels=2))
        for group in groups:
            for session in group:
                session.close()
    assert [len(group) for group in groups] == [64, 6]
    assert broker.names().count("Channel.Open") == 140


def test_a_topology_is_declared_after_what_was_left_is_gone():
    plan = LoadPlan(exchange_type="topic", bindings=5, queues=2, queue_argument=["x-max-length=9"])
    with ScriptedBroker() as broker:
        declare(LoadPlan(**{**vars(plan), "uri": broker.uri()}))
    topology = [name for name in broker.names() if name.partition(".")[0] in ("Queue", "Exchange")]
    assert topology == [
        "Exchange.Delete",
        *["Queue.Delete"] * 2,
        *["Queue.Declare"] * 2,
        "Exchange.Declare",
        *["Queue.Bind"] * 5,
    ]
    declared = [method for method in broker.methods if method.name == "Queue.Declare"]
    assert declared[0].arguments == {"x-max-length": 9, "x-queue-type": "classic"}


def test_queues_for_dead_letters_are_there_first():
    plan = LoadPlan(dead_letters=True, queue_argument=["x-message-ttl=0"])
    with ScriptedBroker() as broker:
        declare(LoadPlan(**{**vars(plan), "uri": broker.uri()}))
    declared = [method for method in broker.methods if method.name == "Queue.Declare"]
    assert [method.queue for method in declared] == [*plan.consumed_names, *plan.queue_names]
    assert declared[0].arguments == {"x-queue-type": "classic"}
    assert declared[1].arguments["x-message-ttl"] == 0


def test_messages_ready_are_summed_over_the_queues():
    with ScriptedBroker() as broker:
        assert messages_ready(LoadPlan(uri=broker.uri(), queues=3)) == 21


def test_half_a_frame_is_nothing_yet():
    data = frame.marshal(commands.Basic.ConsumeOk("tag"), 1)
    assert all(decode(data[:size]) == (0, 0, None) for size in range(len(data)))
    assert decode(data)[0] == len(data)
