"""Adapter around pamqp: methods and content headers, from and to the wire.

pamqp names the methods and their arguments; reading and writing the values is `tables`' work,
because pamqp trusts lengths and nesting and refuses names that RabbitMQ allows. Differences to
pamqp's own decoding: long strings are `bytes`, timestamps are `Timestamp`, integers in tables are
written as 64 bits.

Any input raises only `ConnectionClosingError`. The codes and texts are RabbitMQ's where it has an
answer. Where its connection process crashes instead (an unknown method, a broken table, broken
properties: it cuts the socket or says 541), the peer gets the code the specification has for it.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pamqp import base, commands

from leveret.errors import AmqpError, ConnectionClosingError
from leveret.ports import contents, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FRAME_BODY",
    "FRAME_END",
    "FRAME_HEADER",
    "FRAME_HEARTBEAT",
    "FRAME_METHOD",
    "FRAME_OVERHEAD_BYTES",
    "HEARTBEAT",
    "NO_METHOD",
    "AccessRequest",
    "AccessRequestOk",
    "body_size",
    "build",
    "closing",
    "decode_method",
    "decode_properties",
    "decode_raw_table",
    "decode_raw_value",
    "encode_content",
    "encode_method",
    "encode_payload",
    "method_ids",
]

FrameT = TypeVar("FrameT", bound=base.Frame)

#   type:8  channel:16  size:32  payload  0xCE
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
FRAME_OVERHEAD_BYTES = 8
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
NO_METHOD = (0, 0)  # for errors that no method has caused

#   class:16  weight:16  body size:64  property flags:16  properties
CONTENT_HEADER_BYTES = 14
# Number of values in a method's table, checked first: more than arguments' limits can allow.
METHOD_VALUES_MAX = 4096
SHOWN_BYTES_MAX = 128  # of an undecodable payload in a reply text, which holds 255 characters


class AccessRequest(base.Frame):
    """access.request: dropped by AMQP 0-9-1, still sent by old clients, answered with ticket 1."""

    __slots__: ClassVar[list[str]] = [  # noqa: RUF023 - the order is the wire's
        "realm",
        "exclusive",
        "passive",
        "active",
        "write",
        "read",
    ]
    frame_id = 10
    index = 0x001E000A
    name = "Access.Request"
    synchronous = True
    valid_responses: ClassVar[list[str]] = ["Access.RequestOk"]
    _realm = "shortstr"
    _exclusive = _passive = _active = _write = _read = "bit"


class AccessRequestOk(base.Frame):
    """access.request-ok."""

    __slots__: ClassVar[list[str]] = ["ticket"]
    frame_id = 11
    index = 0x001E000B
    name = "Access.RequestOk"
    _ticket = "short"

    def __init__(self, ticket: int = 1) -> None:
        """Build an access.request-ok; its `ticket` has no meaning any more."""
        self.ticket = ticket


KINDS = {
    "bit": "b",
    "long": "l",
    "longlong": "q",
    "longstr": "S",
    "octet": "o",
    "short": "h",
    "shortstr": "s",
    "table": "t",
    "timestamp": "T",
}
# RabbitMQ looks at the text of every short string except where messages pass.
CARRIERS = {
    commands.Basic.Publish,
    commands.Basic.Return,
    commands.Basic.Deliver,
    commands.Basic.GetOk,
}


def _kinds(method: type[base.Frame], *, any_text: bool) -> str:
    kinds = "".join(KINDS[method.amqp_type(name)] for name in method.attributes())
    return kinds.replace("s", "r") if any_text else kinds


METHODS: dict[int, type[base.Frame]] = {
    **commands.INDEX_MAPPING,
    AccessRequest.index: AccessRequest,
    AccessRequestOk.index: AccessRequestOk,
}
ARGUMENTS = {
    index: (method, tuple(method.attributes()), _kinds(method, any_text=method in CARRIERS))
    for index, method in METHODS.items()
}
# The client has not logged in when it sends start-ok: its table is not decoded but passed on as
# the octets of a long string, which is the same on the wire (leveret.amqp.client_properties).
UNOPENED = {commands.Connection.StartOk.index}


def decode_method(payload: bytes) -> base.Frame:
    """Decode a method frame's payload: class id, method id, arguments.

    The client-properties of a start-ok are the octets of its table (`decode_raw_table`). Raises
    ConnectionClosingError 501 for arguments that are truncated, too long or not UTF-8 where they
    must be, 502 for a table beyond the limits, 503 for an unknown class or method.
    """
    if len(payload) < 4:
        shown = _octets(payload)
        raise ConnectionClosingError(501, f"type 1, all octets = {shown}: unknown_frame")
    entry = ARGUMENTS.get(int.from_bytes(payload[:4], "big"))
    if entry is None:
        raise ConnectionClosingError(503, "unimplemented method")
    method_type, names, kinds = entry
    if method_type.index in UNOPENED:
        kinds = kinds.replace("t", "S")
    method = method_type.__new__(method_type)
    for name, value in zip(names, _decode(payload, 4, kinds, METHOD_VALUES_MAX), strict=True):
        setattr(method, name, value)
    return method


def build(method_type: type[FrameT], **values: object) -> FrameT:
    """Build a method without pamqp's checks, which refuse names that RabbitMQ allows.

    Every argument must be given.
    """
    method = method_type.__new__(method_type)
    for name in method_type.attributes():
        setattr(method, name, values[name])
    return method


def closing(
    method_type: type[commands.Connection.Close | commands.Channel.Close], error: AmqpError
) -> base.Frame:
    """Build the connection.close or channel.close for `error`."""
    class_id, method_id = error.method_ids or NO_METHOD
    return build(
        method_type,
        reply_code=error.code,
        reply_text=error.reply_text,
        class_id=class_id,
        method_id=method_id,
    )


def method_ids(payload: bytes) -> tuple[int, int]:
    """Return class and method id of a method frame's payload, zeros if it has none."""
    if len(payload) < 4:
        return 0, 0
    return int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")


def encode_method(channel: int, method: base.Frame) -> bytes:
    """Encode a method frame. Raises ValueError for a value that its field cannot hold."""
    return _frame(FRAME_METHOD, channel, encode_payload(method))


def encode_payload(method: base.Frame) -> bytes:
    """Encode a method without the frame around it, otherwise as `encode_method`."""
    _, names, kinds = ARGUMENTS[method.index]
    arguments = tables.encode_fields(kinds, [getattr(method, name) for name in names])
    return method.index.to_bytes(4, "big") + arguments


def encode_content(
    channel: int, method: base.Frame, header_payload: bytes, body: bytes, frame_max: int
) -> bytes:
    """Encode a message's frames: method, content header as stored, body cut to `frame_max` bytes.

    `frame_max` 0 means no limit. The header is never split: the specification has no way to.
    """
    frames = [encode_method(channel, method), _frame(FRAME_HEADER, channel, header_payload)]
    step = frame_max - FRAME_OVERHEAD_BYTES if frame_max else max(len(body), 1)
    frames += [
        _frame(FRAME_BODY, channel, body[start : start + step])
        for start in range(0, len(body), step)
    ]
    return b"".join(frames)


def decode_properties(header_payload: bytes) -> dict[str, Any]:
    """Return the properties in a content header by name. Raises ConnectionClosingError 501, 502."""
    if len(header_payload) < CONTENT_HEADER_BYTES:
        raise _undecodable(header_payload)
    with _refusing(header_payload, CONTENT_HEADER_BYTES):
        return contents.decode_properties(header_payload)


def decode_raw_table(fields: bytes) -> dict[str, bytes]:
    """Read a table without its length; its values stay as they are on the wire.

    Raises ConnectionClosingError 501 or 502.
    """
    table: dict[str, bytes]
    (table,) = _decode(len(fields).to_bytes(4, "big") + fields, 0, "w")
    return table


def decode_raw_value(value: bytes) -> Any:
    """Read one value of a raw table. Raises ConnectionClosingError 501."""
    try:
        return tables.decode_value(value)
    except tables.MalformedFieldError as error:
        raise _undecodable(value) from error


def body_size(header_payload: bytes) -> int:
    """Return the body size that a content header announces, in bytes."""
    return int.from_bytes(header_payload[4:12], "big")


def _decode(
    payload: bytes, position: int, kinds: str, values_max: int = tables.TABLE_VALUES_MAX
) -> list[Any]:
    with _refusing(payload, position):
        return tables.decode_fields(payload, position, kinds, values_max)


@contextmanager
def _refusing(payload: bytes, position: int) -> Iterator[None]:
    """Turn the errors of fields, from `position` of a payload on, into those for the client."""
    try:
        yield
    except tables.MalformedTextError as error:
        malformed = ConnectionClosingError(501, str(error))
        malformed.method_ids = NO_METHOD  # unlike for other fields, RabbitMQ blames none
        raise malformed from error
    except tables.TableLimitError as error:
        raise ConnectionClosingError(502, str(error)) from error
    except tables.MalformedFieldError as error:
        raise _undecodable(payload[position:]) from error


def _undecodable(payload: bytes) -> ConnectionClosingError:
    return ConnectionClosingError(501, f"cannot decode {_octets(payload)}")


def _octets(payload: bytes) -> str:
    """Format bytes as Erlang does; more than a reply text has room for is left out."""
    return f"<<{','.join(map(str, payload[:SHOWN_BYTES_MAX]))}>>"


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END
