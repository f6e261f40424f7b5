import pytest
from pamqp import commands, frame

from leveret import __version__
from leveret.amqp import handshake
from leveret.amqp.client_properties import CAPABILITIES_MAX
from leveret.amqp.handshake import Tuned
from leveret.config import Configuration
from leveret.errors import ConnectionClosingError
from tests.support.client import PROTOCOL_HEADER, Client, wire
from tests.support.stage import Gate, Stage

CONFIGURATION = Configuration(frame_max=131072, channel_max=2047, heartbeat_seconds=60)
REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the "
    "broker logfile."
)


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


def start_ok(response="\0guest\0guest", mechanism="PLAIN", **capabilities):
    return commands.Connection.StartOk({"capabilities": capabilities}, mechanism, response)


def begun(stage):
    client = Client(stage)
    client.feed(PROTOCOL_HEADER)
    client.received()
    return client


def logged_in(stage):
    client = begun(stage)
    assert client.call(start_ok(), 0).name == "Connection.Tune"
    return client


def closes(client):
    return [method[1:] for method in client.methods(0) if method[0] == "Connection.Close"]


# -- negotiation


@pytest.mark.covers("B-005", "B-006")
@pytest.mark.parametrize(
    ("answer", "tuned"),
    [
        ((2047, 131072, 60), Tuned(2047, 131072, 60)),
        ((1, 4096, 0), Tuned(1, 4096, 0)),
        ((100, 8192, 600), Tuned(100, 8192, 600)),
    ],
)
def test_a_client_may_ask_for_less(answer, tuned):
    assert handshake.negotiate(CONFIGURATION, commands.Connection.TuneOk(*answer)) == tuned


@pytest.mark.covers("B-005")
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((2048, 4096), "channel_max = 2048 is higher than the maximum allowed value (2047)"),
        ((0, 4096), "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
        ((1, 131073), "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ((1, 0), "frame_max = 0 is higher than the maximum allowed value (131072)"),
        ((1, 4095), "frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_what_was_not_offered_is_refused(stage, answer, text):
    client = logged_in(stage)
    client.send(commands.Connection.TuneOk(*answer, 0), channel=0)
    assert closes(client) == [(530, f"NOT_ALLOWED - negotiated {text}", 10, 31)]


@pytest.mark.covers("B-005")
def test_heartbeats_are_the_clients_choice(stage):
    client = logged_in(stage)
    client.send(commands.Connection.TuneOk(1, 4096, 7), channel=0)
    assert client.transport.heartbeat_seconds == 7


@pytest.mark.covers("B-006", "B-310")
def test_frames_are_cut_to_what_was_negotiated(stage):
    client = Client(stage).open(frame_max=4096)
    client.declare("q")
    client.publish("q", b"x" * 10_000, frame_max=4096)
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    sizes = [size for name, size in client.methods()[1:] if name == "header"]
    assert sizes == [10_000]
    client.publish("q", b"y" * 5000, frame_max=8192)
    ((code, text, *_),) = closes(client)
    assert code == 501
    assert "{frame_too_large,5000,4088}" in text


# -- capabilities


@pytest.mark.covers("B-004")
@pytest.mark.parametrize(
    ("properties", "understood"),
    [
        (None, set()),
        ({"capabilities": "all"}, set()),
        ({"capabilities": {"basic.nack": True, "x": False, "y": 1}}, {"basic.nack"}),
    ],
)
def test_capabilities_are_those_set_to_true(properties, understood):
    assert handshake.client_capabilities(properties) == understood


@pytest.mark.covers("B-002", "B-003", "B-004")
def test_the_server_says_who_it_is(stage):
    client = Client(stage)
    client.feed(PROTOCOL_HEADER)
    ((number, start),) = client.received()
    assert number == 0
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == "PLAIN AMQPLAIN"
    assert start.locales == "en_US"
    told = {key: start.server_properties[key] for key in ("product", "version", "leveret_version")}
    assert told == {
        "product": "RabbitMQ",
        "version": "3.13.7",
        "leveret_version": __version__,
    }
    assert start.server_properties.keys() == {
        *("capabilities", "cluster_name", "copyright", "information", "platform"),
        *("product", "version", "leveret_version"),
    }
    assert start.server_properties["capabilities"] == dict.fromkeys(
        [
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "consumer_priorities",
            "authentication_failure_close",
            "per_consumer_qos",
            "direct_reply_to",
        ],
        True,
    )


# -- protocol headers


@pytest.mark.covers("B-001")
@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("data", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"])
def test_headers_that_are_understood(stage, data, step):
    client = Client(stage, step)
    client.feed(data)
    assert client.names() == ["Connection.Start"]


@pytest.mark.covers("B-001")
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    "data",
    [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"],
)
def test_other_headers_are_answered_with_ours(stage, data, step):
    client = Client(stage, step)
    client.feed(data)
    assert client.transport.sent == PROTOCOL_HEADER
    assert client.transport.closed


def test_a_header_and_what_follows_may_come_at_once(stage):
    client = Client(stage)
    client.feed(PROTOCOL_HEADER + frame.marshal(start_ok(), 0))
    assert client.names() == ["Connection.Start", "Connection.Tune"]


# -- login


@pytest.mark.covers("B-007", "B-008", "B-301")
def test_a_wrong_password_is_answered_late_and_told_who_understands(stage):
    client = begun(stage)
    client.send(start_ok("\0guest\0wrong", authentication_failure_close=True), channel=0)
    stage.advance(2.9)
    assert client.received() == []
    stage.advance(0.2)
    assert closes(client) == [(403, REFUSED, 0, 0)]
    (line,) = [text for _, _, text in client.transport.logged]
    assert "refused the login of user 'guest' by PLAIN: wrong password" in line


@pytest.mark.covers("B-008")
def test_a_wrong_password_is_not_told_who_does_not_understand(stage):
    client = begun(stage)
    client.send(start_ok("\0guest\0wrong"), channel=0)
    stage.advance(3.1)
    assert client.received() == []
    assert client.transport.closed


@pytest.mark.covers("B-301")
def test_an_unknown_user_is_answered_alike(stage):
    client = begun(stage)
    client.send(start_ok("\0nobody\0x", authentication_failure_close=True), channel=0)
    stage.advance(3.1)
    assert closes(client) == [(403, REFUSED, 0, 0)]


@pytest.mark.covers("B-013")
def test_guest_must_come_from_this_machine(stage):
    client = begun(stage)
    client.transport.peer_is_loopback = False
    client.send(start_ok(authentication_failure_close=True), channel=0)
    stage.advance(3.1)
    assert closes(client) == [(403, REFUSED, 0, 0)]


@pytest.mark.covers("B-308")
def test_an_unknown_mechanism(stage):
    client = begun(stage)
    client.send(start_ok("x", "GSSAPI"), channel=0)
    text = "COMMAND_INVALID - unknown authentication mechanism 'GSSAPI'"
    assert closes(client) == [(503, text, 10, 11)]


def test_a_client_gone_while_its_password_is_checked(stage):
    stage.password_checks = Gate()
    client = begun(stage)
    client.send(start_ok(), channel=0)
    client.transport.lose()
    stage.password_checks.open()
    stage.run()
    assert client.connection.state is handshake.ConnectionState.CLOSED


# -- order


@pytest.mark.covers("B-309")
@pytest.mark.parametrize(
    ("method", "channel", "state"),
    [
        (commands.Connection.Open("/"), 0, "starting"),
        (commands.Channel.Open(), 1, "starting"),
    ],
)
def test_methods_before_their_time(stage, method, channel, state):
    client = begun(stage)
    client.send(method, channel=channel)
    ((code, text, *_),) = closes(client)
    assert (code, text) == (504, f"CHANNEL_ERROR - unexpected method in connection state {state}")


@pytest.mark.covers("B-309")
def test_opening_before_tuning(stage):
    client = logged_in(stage)
    client.send(commands.Connection.Open("/"), channel=0)
    text = "CHANNEL_ERROR - unexpected method in connection state tuning"
    assert closes(client) == [(504, text, 10, 40)]


@pytest.mark.covers("connection")
def test_a_client_may_leave_at_any_time(stage):
    client = logged_in(stage)
    assert client.call(commands.Connection.Close(200, "", 0, 0), 0).name == "Connection.CloseOk"
    assert client.transport.closed


@pytest.mark.covers("B-302")
def test_a_vhost_that_is_not_there(stage):
    client = logged_in(stage)
    client.send(commands.Connection.TuneOk(1, 4096, 0), commands.Connection.Open("x"), channel=0)
    assert closes(client) == [(530, "NOT_ALLOWED - vhost x not found", 10, 40)]


@pytest.mark.covers("B-303")
def test_a_vhost_that_is_not_the_users(stage):
    stage.access.remove_permission("guest", "/")
    client = logged_in(stage)
    client.send(commands.Connection.TuneOk(1, 4096, 0), commands.Connection.Open("/"), channel=0)
    text = "NOT_ALLOWED - access to vhost '/' refused for user 'guest'"
    assert closes(client) == [(530, text, 10, 40)]


def test_errors_are_of_the_kind_that_closes_connections():
    with pytest.raises(ConnectionClosingError):
        handshake.negotiate(CONFIGURATION, commands.Connection.TuneOk(0, 0, 0))


# -- what a client says of itself


def held_start_ok(stage, properties, password="guest"):
    """A client whose password is being checked."""
    stage.password_checks.is_open = False
    client = begun(stage)
    client.send(commands.Connection.StartOk(properties, "PLAIN", f"\0guest\0{password}"), channel=0)
    return client


def test_properties_are_read_after_the_password(stage):
    client = held_start_ok(stage, {"product": "p", "capabilities": {"basic.nack": True}})
    assert client.connection.client_properties == {}
    assert client.connection.capabilities == frozenset()
    stage.password_checks.open()
    assert [name for name, *_ in client.methods(0)] == ["Connection.Tune"]
    assert client.connection.client_properties == {
        "product": "p",
        "capabilities": {"basic.nack": True},
    }
    assert client.connection.capabilities == {"basic.nack"}


def test_a_table_that_is_broken_costs_a_stranger_his_login_only(stage):
    method = wire(start_ok(), 0)
    broken = method.replace(b"\x0ccapabilities", b"\xffcapabilities")
    assert broken != method
    client = begun(stage)
    client.feed(broken)
    assert [code for code, *_ in closes(client)] == [501]


def test_only_so_many_flat_properties_are_kept(stage):
    many = {f"key{i}": i for i in range(100)}
    nested = {"deep": {"a": {"b": 1}}, "list": [1, 2, 3]}
    flags = {f"can{i}": True for i in range(100)} | {"word": "yes", "cannot": False}
    client = begun(stage)
    method = commands.Connection.StartOk(
        nested | many | {"capabilities": flags}, "PLAIN", "\0guest\0guest"
    )
    assert client.call(method, 0).name == "Connection.Tune"
    kept = client.connection.client_properties
    assert len(kept) == stage.configuration.client_properties_max == 64
    assert len(kept["capabilities"]) == CAPABILITIES_MAX
    assert not any(isinstance(value, dict | list) for key, value in kept.items() if key[0] == "k")
    assert "deep" not in kept
    assert "list" not in kept


def test_frames_before_the_login_are_short(stage):
    client = begun(stage)
    client.feed(b"\x01\x00\x00" + (8193).to_bytes(4, "big"))
    text = "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,8193,8184}"
    assert closes(client) == [(501, text, 0, 0)]


def test_an_operator_may_allow_longer_tokens():
    stage = Stage(initial_frame_max=65_536)
    client = begun(stage)
    token = "t" * 60_000
    client.send(commands.Connection.StartOk({}, "PLAIN", f"\0guest\0{token}"), channel=0)
    stage.advance(3)
    assert "refused the login of user 'guest' by PLAIN: " in client.transport.logged[-1][2]
