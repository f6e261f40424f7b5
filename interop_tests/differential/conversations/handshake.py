"""Before a connection is open: headers, mechanisms, passwords, limits, virtual hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from interop_tests.differential.client import CAPABILITIES, PROTOCOL_HEADER, Connection, unchecked

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk


def _start_ok(
    mechanism: str = "PLAIN",
    response: str = "\x00guest\x00guest",
    capabilities: dict[str, bool] | None = None,
) -> Any:
    known = CAPABILITIES if capabilities is None else capabilities
    return unchecked(
        commands.Connection.StartOk,
        client_properties={"capabilities": known},
        mechanism=mechanism,
        response=response,
        locale="en_US",
    )


def _greeted(talk: Talk) -> Connection:
    wire = talk.wire()
    wire.send_raw(PROTOCOL_HEADER, "protocol header")
    wire.read()
    return wire


def _tuned(talk: Talk) -> Connection:
    wire = _greeted(talk)
    wire.send(0, _start_ok())
    wire.read()
    return wire


@pytest.mark.covers("B-001", "B-004", "B-005", "connection")
def start_tune_open_close(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2047, 131072, 60), commands.Connection.Open("/"))
    wire.read()
    wire.close()


@pytest.mark.covers("B-001")
def header_of_another_protocol(talk: Talk) -> None:
    wire = talk.wire()
    wire.send_raw(b"GET / HTTP/1.1\r\n\r\n", "an HTTP request")
    wire.read_bytes(8)
    wire.read()


@pytest.mark.covers("B-001")
def header_of_amqp_1_0(talk: Talk) -> None:
    wire = talk.wire()
    wire.send_raw(b"AMQP\x00\x01\x00\x00", "AMQP 1.0 header")
    wire.read_bytes(8)
    wire.read()


@pytest.mark.covers("B-001")
def header_in_the_0_9_style(talk: Talk) -> None:
    wire = talk.wire()
    wire.send_raw(b"AMQP\x01\x01\x00\x09", "AMQP 0-9 header")
    wire.read()


@pytest.mark.covers("B-308")
def unknown_mechanism(talk: Talk) -> None:
    wire = _greeted(talk)
    wire.send(0, _start_ok(mechanism="SCRAM-NOT-HERE"))
    wire.read()


@pytest.mark.covers("B-002")
def amqplain_login(talk: Talk) -> None:
    wire = _greeted(talk)
    login = "\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    wire.send(0, _start_ok("AMQPLAIN", login))
    wire.read()


@pytest.mark.covers("B-301")
def amqplain_without_password(talk: Talk) -> None:
    wire = _greeted(talk)
    wire.send(0, _start_ok("AMQPLAIN", "\x05LOGINS\x00\x00\x00\x05guest"))
    wire.read()


@pytest.mark.covers("B-301")
def plain_with_a_broken_response(talk: Talk) -> None:
    wire = _greeted(talk)
    wire.send(0, _start_ok(response="guest guest"))
    wire.read()


@pytest.mark.covers("B-008", "B-301")
def bad_password_told(talk: Talk) -> None:
    wire = _greeted(talk)
    wire.send(0, _start_ok(response="\x00guest\x00wrong"))
    wire.read()


@pytest.mark.covers("B-008")
def bad_password_not_told(talk: Talk) -> None:
    wire = _greeted(talk)
    wire.send(0, _start_ok(response="\x00guest\x00wrong", capabilities={}))
    wire.read()


@pytest.mark.covers("B-301")
def unknown_user(talk: Talk) -> None:
    wire = _greeted(talk)
    wire.send(0, _start_ok(response="\x00nobody\x00guest"))
    wire.read()


@pytest.mark.covers("B-302")
def unknown_vhost(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2047, 131072, 0))
    wire.send(0, unchecked(commands.Connection.Open, virtual_host="no such place"))
    wire.read()


@pytest.mark.covers("B-302")
def unusual_vhosts(talk: Talk) -> None:
    for vhost in ("", "a/b", "/ "):
        wire = _tuned(talk)
        wire.send(0, commands.Connection.TuneOk(2047, 131072, 0))
        wire.send(0, unchecked(commands.Connection.Open, virtual_host=vhost))
        wire.read()


@pytest.mark.covers("B-301", "B-405")
def empty_credentials(talk: Talk) -> None:
    for response in ("\x00guest\x00", "\x00\x00guest", "\x00\x00"):
        wire = _greeted(talk)
        wire.send(0, _start_ok(response=response))
        wire.read()


@pytest.mark.covers("B-005")
def tune_below_the_offer(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(7, 4096, 0), commands.Connection.Open("/"))
    wire.read()
    wire.close()


@pytest.mark.covers("B-005")
def tune_frame_max_too_high(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2047, 131073, 0))
    wire.read()


@pytest.mark.covers("B-005")
def tune_frame_max_too_low(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2047, 4095, 0))
    wire.read()


@pytest.mark.covers("B-005")
def tune_frame_max_without_limit(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2047, 0, 0))
    wire.read()


@pytest.mark.covers("B-005")
def tune_channel_max_too_high(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2048, 131072, 0))
    wire.read()


@pytest.mark.covers("B-005")
def tune_channel_max_without_limit(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(0, 131072, 0))
    wire.read()


@pytest.mark.covers("B-306")
def more_channels_than_tuned(talk: Talk) -> None:
    connection = talk.connection(channel_max=2)
    for number in (1, 2, 3):
        connection.send(number, commands.Channel.Open())
        connection.read()


@pytest.mark.covers("B-306")
def channel_numbers_beyond_what_was_tuned(talk: Talk) -> None:
    connection = talk.connection(channel_max=2)
    for number in (65535, 3, 2048):
        connection.send(number, commands.Channel.Open())
        connection.read()


@pytest.mark.covers("B-309")
def method_out_of_turn_before_tune(talk: Talk) -> None:
    wire = _greeted(talk)
    wire.send(0, commands.Connection.Open("/"))
    wire.read()


@pytest.mark.covers("B-309")
def method_out_of_turn_before_open(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2047, 131072, 0))
    wire.send(0, commands.Connection.TuneOk(2047, 131072, 0))
    wire.read()


@pytest.mark.covers("B-309")
def channel_before_the_connection_is_open(talk: Talk) -> None:
    wire = _tuned(talk)
    wire.send(1, commands.Channel.Open())
    wire.read()


@pytest.mark.covers("B-309")
def second_start_ok(talk: Talk) -> None:
    connection = talk.connection()
    connection.send(0, _start_ok())
    connection.read()


@pytest.mark.covers("B-309")
def second_open(talk: Talk) -> None:
    connection = talk.connection()
    connection.send(0, commands.Connection.Open("/"))
    connection.read()


@pytest.mark.covers("B-011")
def update_secret(talk: Talk) -> None:
    connection = talk.connection()
    connection.send(0, commands.Connection.UpdateSecret("new secret", "because"))
    connection.read()


def hang_up_in_the_middle(talk: Talk) -> None:
    _greeted(talk).hang_up()
    wire = _tuned(talk)
    wire.send(0, commands.Connection.TuneOk(2047, 131072, 0), commands.Connection.Open("/"))
    wire.read()
