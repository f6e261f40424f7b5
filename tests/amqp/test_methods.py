"""Methods and content headers against pamqp, and what hostile ones are answered with."""

import functools
import struct
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame, header

from leveret.amqp import methods
from leveret.amqp.methods import (
    ARGUMENTS,
    AccessRequest,
    AccessRequestOk,
    body_size,
    decode_method,
    decode_properties,
    encode_content,
    encode_method,
    method_ids,
)
from leveret.errors import ConnectionClosingError
from leveret.ports.tables import RawValue, Timestamp, decode_table
from tests.support import contents
from tests.support.contents import encode_properties

VALUES = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),  # pamqp reads them as signed
    "bit": st.booleans(),
    "shortstr": st.text(max_size=63),
    "longstr": st.binary(max_size=100),
    "table": st.dictionaries(
        st.text(max_size=20), st.text(max_size=20) | st.integers(-(2**63), 2**63 - 1), max_size=4
    ),
    "timestamp": st.integers(0, 2**32 - 1).map(Timestamp),
}


@st.composite
def any_method(draw):
    method_type, names, _ = draw(st.sampled_from(list(ARGUMENTS.values())))
    method = method_type.__new__(method_type)
    for name in names:
        setattr(method, name, draw(VALUES[method.amqp_type(name)]))
    return method


def refusal(read, data):
    """The one kind of error that reading may raise, or None."""
    try:
        read(data)
    except ConnectionClosingError as error:
        return error
    return None


def payload_of(encoded: bytes) -> bytes:
    return encoded[7:-1]


def opened(method):
    """Return a method with the table that is not opened before a login."""
    if isinstance(method, commands.Connection.StartOk):
        encoded = method.client_properties
        method.client_properties = decode_table(len(encoded).to_bytes(4, "big") + encoded)
    return method


def octets(value):
    return value.encode() if isinstance(value, str) else value


@given(any_method(), st.integers(0, 65535))
def test_a_method_reads_back_and_its_frame_is_whole(method, channel):
    encoded = encode_method(channel, method)
    payload = payload_of(encoded)
    assert encoded == struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"
    decoded = decode_method(payload)
    assert type(decoded) is type(method)
    assert dict(opened(decoded)) == dict(method)
    assert method_ids(payload) == (method.index >> 16, method.index & 0xFFFF)


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@given(any_method().filter(lambda method: method.index in commands.INDEX_MAPPING))
def test_pamqp_reads_the_same_method(method):
    encoded = encode_method(1, method)
    size, channel, decoded = frame.unmarshal(encoded)
    assert (size, channel, type(decoded)) == (len(encoded), 1, type(method))
    for name, value in method:
        read = getattr(decoded, name)
        assert (octets(read) if method.amqp_type(name) == "longstr" else read) == value


@given(any_method(), st.data())
def test_mutated_methods_give_a_method_or_the_documented_error(method, data):
    payload = bytearray(payload_of(encode_method(1, method)))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    error = refusal(decode_method, bytes(payload))
    assert error is None or error.code in {501, 502, 503}
    assert error is None or len(error.reply_text.encode()) <= 255


@given(st.binary(max_size=100))
def test_random_payloads_give_a_method_or_the_documented_error(payload):
    for data in (payload, struct.pack(">I", 0x0032000A) + payload):
        error = refusal(decode_method, data)
        assert error is None or error.code in {501, 502, 503}


def declare(table: bytes, queue: bytes = b"wq") -> bytes:
    head = struct.pack(">IHB", 0x0032000A, 0, len(queue)) + queue + b"\x02"
    return head + struct.pack(">I", len(table)) + table


DEEP = functools.reduce(
    lambda inner, _: b"\x01aF" + struct.pack(">I", len(inner)) + inner, [b""] * 901
)

# (payload, code, text): those marked R were answered just so by RabbitMQ 3.10; it drops the
# connection without a word on the others.
REFUSED = {
    "three bytes, R": (b"\0\x3c\0", 501, "type 1, all octets = <<0,60,0>>: unknown_frame"),
    "empty, R": (b"", 501, "type 1, all octets = <<>>: unknown_frame"),
    "truncated ack, R": (b"\0\x3c\0\x50\0", 501, "cannot decode <<0>>"),
    "garbage behind ack, R": (
        b"\0\x3c\0\x50" + bytes(9) + b"zz",
        501,
        "cannot decode <<0,0,0,0,0,0,0,0,0,122,122>>",
    ),
    "queue name not UTF-8, R": (declare(b"", b"\xff\xfe"), 501, "Malformed UTF-8 in shortstr"),
    "table longer than the frame, R": (
        declare(b"")[:-4] + b"\0\0\0d\x01aV",
        501,
        "cannot decode <<0,0,2,119,113,2,0,0,0,100,1,97,86>>",
    ),
    "unknown method": (b"\0\x3c\0\x63", 503, "unimplemented method"),
    "unknown class": (b"\0\x4d\0\x01", 503, "unimplemented method"),
    "unknown letter": (
        declare(b"\x01aZ"),
        501,
        "cannot decode <<0,0,2,119,113,2,0,0,0,3,1,97,90>>",
    ),
    "deep table": (declare(DEEP), 502, "field table nested deeper than 64"),
}


@pytest.mark.covers("B-310", "B-308")
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_rabbitmq_says(case):
    payload, code, text = REFUSED[case]
    with pytest.raises(ConnectionClosingError) as caught:
        decode_method(payload)
    assert (caught.value.code, caught.value.explanation) == (code, text)


def test_a_large_undecodable_payload_makes_a_short_reply():
    with pytest.raises(ConnectionClosingError) as caught:
        decode_method(b"\0\x3c\0\x50" + b"\xff" * 100_000)
    assert len(caught.value.reply_text) == 255
    assert caught.value.reply_text.endswith("...")


def test_routing_keys_of_any_octets_pass():
    payload = struct.pack(">IHB", 0x003C0028, 0, 0) + b"\x02\xff\xfe\x01"
    method = decode_method(payload)
    assert isinstance(method, commands.Basic.Publish)
    assert method.mandatory
    assert payload_of(encode_method(1, method)) == payload


def test_names_that_pamqp_would_refuse_are_written():
    queue = "jobs, übrig? / " + "x" * 150
    method = commands.Queue.DeclareOk.__new__(commands.Queue.DeclareOk)
    method.queue, method.message_count, method.consumer_count = queue, 0, 0
    assert decode_method(payload_of(encode_method(1, method))).queue == queue


def test_access_request_is_known():
    request = decode_method(b"\0\x1e\0\x0a\x01/\x10")
    assert isinstance(request, AccessRequest)
    assert (request.realm, request.read, request.exclusive) == ("/", True, False)
    assert payload_of(encode_method(1, AccessRequestOk())) == b"\0\x1e\0\x0b\0\x01"


def test_a_method_of_our_own_that_does_not_fit_is_a_bug_and_says_so():
    with pytest.raises(ValueError, match="short string of 256 bytes"):
        encode_method(1, commands.Basic.ConsumeOk("x" * 256))


def test_method_ids_of_a_payload_without_any():
    assert method_ids(b"\0\x3c\0") == (0, 0)


property_values = {
    name: VALUES[commands.Basic.Properties.amqp_type(name)]
    for name in commands.Basic.Properties.attributes()
}


@st.composite
def any_properties(draw):
    properties = commands.Basic.Properties()
    for name, values in property_values.items():
        if draw(st.booleans()):
            setattr(properties, name, draw(values))
    return properties


def plain(properties, *, empty=None):
    """pamqp leaves empty values out and reads moments."""
    values = {}
    for name, value in properties:
        if value in ("", None):
            values[name] = empty
        elif isinstance(value, datetime):
            values[name] = int(value.timestamp())
        else:
            values[name] = value
    return values


@pytest.mark.covers("properties")
@given(any_properties(), st.integers(0, 2**64 - 1))
def test_properties_read_back(properties, size):
    wire = encode_properties(properties, size)
    assert body_size(wire) == size
    assert dict(contents.decode_properties(wire)) == dict(properties)


@pytest.mark.covers("properties")
@given(any_properties(), st.integers(0, 2**64 - 1))
def test_pamqp_reads_the_same_properties(properties, size):
    read = header.ContentHeader()
    read.unmarshal(encode_properties(properties, size))
    assert (read.class_id, read.weight, read.body_size) == (60, 0, size)
    assert plain(read.properties) == plain(properties)


@given(any_properties())
def test_raw_headers_keep_every_octet(properties):
    wire = encode_properties(properties, 0)
    raw = contents.decode_properties(wire, raw_headers=True)
    assert all(isinstance(value, RawValue) for value in (raw.headers or {}).values())
    assert encode_properties(raw, 0) == wire


@given(any_properties(), st.data())
def test_mutated_properties_give_properties_or_the_documented_error(properties, data):
    wire = bytearray(encode_properties(properties, 0))
    position = data.draw(st.integers(0, len(wire) - 1))
    wire[position] = data.draw(st.integers(0, 255))
    wire = wire[: data.draw(st.integers(0, len(wire)))]
    error = refusal(decode_properties, bytes(wire))
    assert error is None or error.code in {501, 502}


HEAD = struct.pack(">HHQ", 60, 0, 0)


@pytest.mark.parametrize(
    "wire",
    [b"", HEAD, HEAD + b"\x80", HEAD + b"\x80\0\x09ab", HEAD + b"\0\0abc", HEAD + b"\0\x01\0\0"],
)
def test_malformed_properties_are_refused(wire):
    with pytest.raises(ConnectionClosingError, match="cannot decode") as caught:
        decode_properties(wire)
    assert caught.value.code == 501


def test_text_of_properties_and_their_low_flags_are_not_judged():
    properties = decode_properties(HEAD + b"\x80\x03\x02\xff\xfe")
    assert properties["content_type"].encode(errors="surrogateescape") == b"\xff\xfe"


@given(st.binary(max_size=300), st.sampled_from([0, 9, 10, 64, 4096]))
def test_content_is_split_into_frames_that_fit(body, frame_max):
    header_payload = encode_properties(commands.Basic.Properties(), len(body))
    method = commands.Basic.Deliver("tag", 7, True, "", "key")
    data = encode_content(3, method, header_payload, body, frame_max)
    read = []
    while data:
        size, channel, piece = frame.unmarshal(data)
        assert channel == 3
        read.append((size, piece))
        data = data[size:]
    assert isinstance(read[0][1], commands.Basic.Deliver)
    assert read[1][1].body_size == len(body)
    assert b"".join(piece.value for _, piece in read[2:]) == body
    assert all(0 < size <= (frame_max or 1 << 20) for size, _ in read[2:])


def test_heartbeat_is_a_frame_of_its_own():
    size, channel, beat = frame.unmarshal(methods.HEARTBEAT)
    assert (size, channel, type(beat).__name__) == (8, 0, "Heartbeat")
