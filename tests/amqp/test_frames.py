"""The compiled frame reader against pamqp, and against everything a hostile peer can send.

What the reader makes of a conversation (events, records, settlements) must be what follows from
the frames as pamqp reads them, however the bytes are cut; what it makes of garbage must be the same
error however it is cut, and one of the documented ones.
"""

import ctypes
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from leveret.amqp import frames as compiled
from leveret.amqp.frames import (
    DISCARD,
    PUBLISH_STATISTICS_MAX,
    REJECT,
    RETURN,
    SETTLE,
    FrameReader,
    Publish,
)
from leveret.core.routing.routes import Route, RouteCache
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.records import BatchBuilder, RecordFlag
from leveret.ports.tables import encode_table
from leveret.ports.tags import tag_mask_of
from tests.amqp import strategies
from tests.amqp.strategies import CHANNELS, FRAME_MAX, conversations, cuts, hostile_wire, wire

NOW = 1_700_000_000_000
MESSAGE_SIZE_MAX = 1 << 24
ALL = 2**64 - 1
DOCUMENTED = {501, 502, 503, 504, 505, 540}


class Broker:
    """Builders and the routes to them, as simple as the test's strategies ask for."""

    def __init__(self):
        self.builders = {name: BatchBuilder(name) for name in ("even", "odd", "copy")}

    def route_cache(self, exchange: bytes) -> RouteCache:
        if exchange == b"missing":
            raise ChannelError(404, "no exchange 'missing' in vhost '/'")
        return RouteCache(
            exchange, lambda key: self.resolve(exchange, key), cacheable=exchange != b"headers"
        )

    def collect_settles(self):
        """Asked when a publish follows settlements that may be wrong: here none is."""

    def resolve(self, exchange: bytes, key: bytes) -> Route:
        return Route(self.builders[name] for name in destinations(exchange, key))

    def records(self):
        """Name of the log -> (exchange, key, header, body) of each record."""
        found = {}
        for name, builder in self.builders.items():
            batch = builder.seal(0).records() if builder.count else ()
            found[name] = [record[3:] for record in batch]
        return found


def destinations(exchange: bytes, key: bytes) -> list[str]:
    if key == b"forbidden":
        raise ChannelError(403, "access refused")
    if exchange == b"fanout":
        return ["even", "odd", "copy"]
    if exchange == b"nowhere":
        return []
    return ["odd" if len(key) % 2 else "even"]


@dataclass
class Outcome:
    """All that became of a conversation."""

    events: list = field(default_factory=list)
    records: dict = field(default_factory=dict)
    settles: dict = field(default_factory=dict)
    error: tuple | None = None


def as_event(number, event):
    if isinstance(event, Publish):
        event = (event.mandatory, event.exchange, event.routing_key, event.header, event.body)
    elif isinstance(event, ChannelError):
        event = (event.code, event.explanation)
    return number, event


def read(parts, *, frame_max=FRAME_MAX, stash=False, channels=CHANNELS):
    """Feed `parts` to a fresh reader and collect everything that comes out."""
    broker, outcome = Broker(), Outcome()
    reader = FrameReader(frame_max, MESSAGE_SIZE_MAX)
    slots = {number: reader.open_channel(number, broker) for number in channels}
    outcome.settles = {number: [] for number in channels}
    try:
        for part in parts:
            feed(reader, part, outcome, stash=stash)
    except ConnectionClosingError as error:
        outcome.error = (error.code, error.explanation)
    for number, slot in slots.items():
        outcome.settles[number] = single_steps(slot.take_settles())
    outcome.records = broker.records()
    return outcome


def next_event(reader):
    """Return the next event, however often the reader asks whether there is time."""
    while (event := reader.next()) is None and reader.paused:
        pass
    return event


def feed(reader, part, outcome, *, stash):
    buffer = exact(part)
    reader.receive(buffer, NOW)
    while (event := next_event(reader)) is not None:
        outcome.events.append(as_event(*event))
        if stash:
            reader.stash()
            overwrite(buffer)  # the caller reuses its buffer
    overwrite(buffer)


def exact(part):
    """A block without a spare byte behind it, so that a sanitizer sees every overrun."""
    return memoryview((ctypes.c_ubyte * len(part)).from_buffer_copy(part)).cast("B")


def overwrite(buffer):
    buffer[:] = b"\xaa" * len(buffer)


def single_steps(runs):
    """Runs as the settlements they stand for: comparable however they were joined."""
    steps = []
    for kind, first, last, multiple in runs:
        if multiple:
            add_multiple(steps, kind, last)
        else:
            assert 0 <= last - first < 1000
            steps.extend((kind, tag, False) for tag in range(first, last + 1))
    return steps


def add_multiple(steps, kind, tag):
    """A `multiple` swallows those of the same kind just before it that reached less far."""
    while steps and steps[-1][0] == kind and steps[-1][2] and steps[-1][1] <= tag:
        steps.pop()
    steps.append((kind, tag, True))


class Oracle:
    """The reader's conclusions, drawn slowly from pamqp's reading of each frame."""

    def __init__(self):
        self.outcome = Outcome(
            records={"even": [], "odd": [], "copy": []},
            settles={number: [] for number in CHANNELS},
        )
        self.content = {}
        self.closing = set()

    def read(self, data: bytes) -> Outcome:
        while data:
            # pamqp takes an empty body frame for none at all
            empty = data[0] == 3 and not any(data[3:7])
            size, channel, piece = (
                (8, data[2], body.ContentBody(b"")) if empty else frame.unmarshal(data)
            )
            self.take(channel, piece, data[7 : size - 1])
            data = data[size:]
        return self.outcome

    def take(self, channel, piece, payload):
        if channel in self.closing:
            return
        if isinstance(piece, commands.Basic.Publish):
            self.content[channel] = [piece, b"", b"", 0]
        elif isinstance(piece, header.ContentHeader):
            self.content[channel][1] = payload
            self.content[channel][3] = piece.body_size
            self.finish(channel)
        elif isinstance(piece, body.ContentBody):
            self.content[channel][2] += piece.value
            self.finish(channel)
        elif isinstance(piece, commands.Basic.Ack | commands.Basic.Nack | commands.Basic.Reject):
            self.settle(self.outcome.settles[channel], piece)
        elif isinstance(piece, commands.base.Frame):
            self.outcome.events.append((channel, payload))

    def settle(self, steps, piece):
        kind = SETTLE
        if not isinstance(piece, commands.Basic.Ack):
            kind = RETURN if piece.requeue else DISCARD
        if isinstance(piece, commands.Basic.Reject):
            kind |= REJECT
        if getattr(piece, "multiple", False):
            add_multiple(steps, kind, piece.delivery_tag or ALL)
        else:
            steps.append((kind, piece.delivery_tag, False))

    def finish(self, channel):
        method, head, content, size = self.content[channel]
        if len(content) < size:
            return
        exchange, key = method.exchange.encode(), method.routing_key.encode()
        if exchange == b"missing":
            self.refuse(channel, 404, "no exchange 'missing' in vhost '/'")
        elif exchange == b"headers":
            self.hand_out(channel, method, head, content)
        elif key == b"forbidden":
            self.refuse(channel, 403, "access refused")
        elif not destinations(exchange, key) and method.mandatory:
            self.hand_out(channel, method, head, content)
        else:
            for name in destinations(exchange, key):
                self.outcome.records[name].append((exchange, key, head, content))

    def refuse(self, channel, code, text):
        self.closing.add(channel)
        self.outcome.events.append((channel, (code, text)))

    def hand_out(self, channel, method, head, content):
        exchange, key = method.exchange.encode(), method.routing_key.encode()
        event = (method.mandatory, exchange, key, head, content)
        self.outcome.events.append((channel, event))


slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@slow
@given(conversations(), st.data())
def test_a_conversation_means_what_pamqp_says_however_it_is_cut(frames, data):
    sent = wire(frames)
    expected = Oracle().read(sent)
    assert read([sent]) == expected
    assert read(data.draw(cuts(sent)), stash=data.draw(st.booleans())) == expected


@slow
@given(conversations())
def test_byte_by_byte_is_the_same_as_whole(frames):
    sent = wire([piece for piece in frames if len(piece) < 1000])
    parts = [sent[index : index + 1] for index in range(len(sent))]
    assert read(parts) == read([sent])


@slow
@given(hostile_wire(), st.data())
def test_hostile_bytes_give_the_same_documented_error_however_they_are_cut(sent, data):
    whole = read([sent])
    assert whole.error is None or whole.error[0] in DOCUMENTED
    assert read(data.draw(cuts(sent)), stash=data.draw(st.booleans())) == whole


def method(class_id, method_id, arguments=b""):
    return struct.pack(">HH", class_id, method_id) + arguments


def framed(kind, channel, payload, end=b"\xce"):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def publish(key=b"k", exchange=b""):
    address = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return framed(1, 1, method(60, 40, b"\0\0" + address + b"\0"))


def head(size, flags=b"\0\0", rest=b"", class_id=60, weight=0):
    return framed(2, 1, struct.pack(">HHQ", class_id, weight, size) + flags + rest)


NO_METHOD = "expected method frame, got non method frame instead"
NO_HEADER = "expected content header for class 60, got non content header frame instead"
NO_BODY = "expected content body, got non content body frame instead"
ACK = method(60, 80, bytes(9))

# What RabbitMQ 3.10 answers, read from a running one.
ANSWERS = {
    "method of three bytes": (
        framed(1, 1, b"\0\x3c\0"),
        501,
        "type 1, all octets = <<0,60,0>>: unknown_frame",
    ),
    "method without ids": (framed(1, 1, b""), 501, "type 1, all octets = <<>>: unknown_frame"),
    "short ack": (framed(1, 1, method(60, 80, b"\0")), 501, "cannot decode <<0>>"),
    "long ack": (
        framed(1, 1, ACK + b"zz"),
        501,
        "cannot decode <<0,0,0,0,0,0,0,0,0,122,122>>",
    ),
    "header of another class": (
        publish() + head(0, class_id=61),
        505,
        "expected content header for class 60, got one for class 61 instead",
    ),
    "header with a weight": (publish() + head(0, weight=1), 505, NO_HEADER),
    "header too short": (
        publish() + framed(2, 1, b"\0\x3c\0\0"),
        501,
        "type 2, all octets = <<0,60,0,0>>: unknown_frame",
    ),
    "method instead of header": (publish() + publish(), 505, NO_HEADER),
    "body instead of header": (publish() + framed(3, 1, b"abc"), 505, NO_HEADER),
    "method instead of body": (publish() + head(2) + publish(), 505, NO_BODY),
    "header instead of body": (publish() + head(2) + head(2), 505, NO_BODY),
    "body first": (framed(3, 1, b"abc"), 505, NO_METHOD),
    "header first": (head(0), 505, NO_METHOD),
    "body on a channel not open": (framed(3, 9, b"abc"), 505, NO_METHOD),
    "content of two channels": (
        publish() + head(3) + framed(3, 2, b"abc"),
        505,
        NO_METHOD,
    ),
    "header on another channel": (
        publish() + framed(2, 2, b"\0\x3c" + bytes(12)),
        505,
        NO_METHOD,
    ),
    "body on channel 0": (framed(3, 0, b"abc"), 505, 'type 3, all octets = <<"abc">>'),
    "header on channel 0": (
        framed(2, 0, bytes(2)),
        501,
        "type 2, all octets = <<0,0>>: unknown_frame",
    ),
    "whole header on channel 0": (
        framed(2, 0, b"\0\x3c" + bytes(12)),
        505,
        "type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,0,0,0>>",
    ),
    "type 4": (framed(4, 1, b"abc"), 501, 'type 4, all octets = <<"abc">>: unknown_frame'),
    "type 0": (framed(0, 1, b""), 501, "type 0, all octets = <<>>: unknown_frame"),
    "heartbeat on a channel": (framed(8, 1, b""), 505, "type 8, all octets = <<>>"),
    "heartbeat with a payload": (
        framed(8, 0, b"abc"),
        501,
        'type 8, all octets = <<"abc">>: unknown_frame',
    ),
    "wrong frame end": (
        framed(3, 1, b"x" * 40, b"\xcd"),
        501,
        'type 3, first 16 octets = <<"xxxxxxxxxxxxxxxx">>: {invalid_frame_end_marker,205}',
    ),
    "frame of 4 GiB": (
        struct.pack(">BHI", 3, 1, 2**32 - 1),
        501,
        "type 3, all octets = <<>>: {frame_too_large,4294967295,4088}",
    ),
    "protocol header again": (
        b"AMQP\0\0\x09\x01",
        501,
        "type 65, all octets = <<>>: {frame_too_large,1342177289,4088}",
    ),
}


@pytest.mark.covers("B-310", "B-311")
@pytest.mark.parametrize("case", ANSWERS)
def test_mistakes_are_answered_as_rabbitmq_answers_them(case):
    sent, code, text = ANSWERS[case]
    assert read([sent]).error == (code, text)
    assert read([bytes([byte]) for byte in sent]).error == (code, text)


# RabbitMQ says 541 INTERNAL_ERROR to these, or takes them and lets the consumer fail.
BROKEN_CONTENT = {
    "properties cut off": publish() + head(0, b"\x80\0", b"\x09ab"),
    "bytes behind the properties": publish() + head(0, b"\0\0", b"abc"),
    "second flag word": publish() + head(0, b"\0\x01", b"\0\0"),
    "table longer than the header": publish() + head(0, b"\x20\0", b"\xff\xff\xff\xff"),
    "table size cut off": publish() + head(0, b"\x20\0", b"\0\0\0"),
    "table size missing": publish() + head(0, b"\x20\0"),
    "table size that comes round to the end": publish()
    + head(0, b"\x20\x40", b"\xff\xff\xff\xfc" + bytes(4)),
    "bytes behind the last property": publish() + head(0, b"\x08\0", b"\0\0"),
    "priority missing": publish() + head(0, b"\x08\0"),
    "timestamp cut off": publish() + head(0, b"\0\x40", bytes(7)),
}


@pytest.mark.parametrize("case", BROKEN_CONTENT)
def test_broken_properties_close_the_connection(case):
    outcome = read([BROKEN_CONTENT[case]])
    assert outcome.error[0] == 501
    assert outcome.error[1].startswith("cannot decode <<")
    assert not any(outcome.records.values())


ADDRESS = b"\0\0\x03fan\x02ab\0"


@pytest.mark.parametrize("size", range(len(ADDRESS)))
def test_a_publish_cut_short_closes_the_connection(size):
    arguments = ADDRESS[:size]
    text = f"cannot decode <<{','.join(map(str, arguments))}>>"
    assert read([framed(1, 1, method(60, 40, arguments))]).error == (501, text)
    arguments = ADDRESS + bytes(1 + size)
    assert read([framed(1, 1, method(60, 40, arguments))]).error[0] == 501


def short(text):
    return bytes([len(text)]) + text


@pytest.mark.covers("B-212")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"soon", "no_integer"),
        (b"", "no_integer"),
        (b"1.5", '{leftover_string,".5"}'),
        (b"-1", "{value_negative,-1}"),
        (b"4294967296", "{value_too_large,4294967296}"),
    ],
)
def test_a_wrong_expiration_closes_the_channel(text, fault):
    sent = publish() + head(0, b"\x01\0", short(text))
    error = (406, f"invalid expiration '{text.decode()}': {fault}")
    assert read([sent + publish() + head(0)]).events == [(1, error)]
    assert read([sent[:20], sent[20:]]).events == [(1, error)]


@pytest.mark.parametrize("text", [b"0", b"999999999", b"4294967295", b"+5", b"0000000000005"])
def test_an_expiration_is_any_number_of_milliseconds(text):
    outcome = read([publish() + head(0, b"\x01\0", short(text))])
    assert (outcome.events, len(outcome.records["odd"])) == ([], 1)


@pytest.mark.covers("B-107", "B-223")
@pytest.mark.parametrize(
    ("user", "claimed", "taken"),
    [
        ("guest", b"guest", True),
        ("guest", b"guesT", False),
        ("guest", b"gues", False),
        ("guest", b"", False),
        ("é", "é".encode(), True),
        (None, b"anybody", True),
    ],
)
def test_a_user_id_must_be_the_users(user, claimed, taken):
    broker, reader = Broker(), FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    reader.accept_user_id(user)
    reader.open_channel(1, broker)
    reader.receive(publish() + head(0, b"\0\x10", short(claimed)), NOW)
    event = next_event(reader)
    assert len(broker.records()["odd"]) == taken
    if not taken:
        text = f"user_id property set to '{claimed.decode()}' but authenticated user was '{user}'"
        assert as_event(*event) == (1, (406, text))


def test_every_cut_of_a_message_gives_the_same_message():
    sent = publish(b"a") + head(3) + framed(3, 1, b"abc") + publish(b"b") + head(0)
    whole = read([sent])
    assert [record[3] for record in whole.records["odd"]] == [b"abc", b""]
    for stop in range(len(sent)):
        assert read([sent[:stop], sent[stop:]]) == whole


@pytest.mark.covers("B-310")
def test_more_body_than_announced_closes_the_connection():
    for sent in (
        publish() + head(2) + framed(3, 1, b"abc"),
        publish() + head(4) + framed(3, 1, b"abc") + framed(3, 1, b"de"),
    ):
        outcome = read([sent])
        assert outcome.error == (501, "content body frame exceeds remaining content size")
        assert not any(outcome.records.values())


@pytest.mark.covers("B-018", "B-214")
@pytest.mark.parametrize("size", [MESSAGE_SIZE_MAX + 1, 2**32, 2**63, 2**64 - 8, 2**64 - 1])
def test_a_message_too_large_closes_its_channel_and_costs_nothing(size):
    sent = publish() + head(size) + framed(3, 1, b"abc") + framed(1, 2, method(85, 10, b"\0"))
    text = f"message size {size} is larger than max size {MESSAGE_SIZE_MAX}"
    assert read([sent]).events == [(1, (406, text)), (2, method(85, 10, b"\0"))]


MIB = 1 << 20


def half_a_message(reader, number, size, broker):
    """Announce a message of twice `size` on a new channel and send the first half."""
    reader.open_channel(number, broker)
    parts = [publish(), head(2 * size), framed(3, 1, b"x" * size)]
    for part in parts:
        reader.receive(part[:1] + struct.pack(">H", number) + part[3:], NOW)
        assert next_event(reader) is None


def test_unfinished_messages_of_all_channels_have_a_limit():
    broker = Broker()
    reader = FrameReader(2 * MIB, 4 * MIB, 16 * MIB)

    def fill(numbers):
        for number in numbers:
            half_a_message(reader, number, MIB, broker)

    fill(range(1, 16))
    with pytest.raises(ConnectionClosingError) as caught:
        fill(range(16, 21))  # what is kept is counted every 4 MiB
    assert caught.value.code == 506
    assert caught.value.explanation == (
        "unfinished messages of more than 16777216 bytes on this connection"
    )


def test_finished_and_dropped_messages_do_not_count_as_unfinished():
    broker = Broker()
    reader = FrameReader(2 * MIB, 4 * MIB, 8 * MIB)
    for _ in range(20):
        half_a_message(reader, 1, MIB, broker)
        reader.receive(framed(3, 1, b"x" * MIB), NOW)
        assert next_event(reader) is None
        half_a_message(reader, 2, MIB, broker)
        reader.close_channel(2)
    assert len(broker.records()["odd"]) == 20


def test_one_message_of_any_size_may_be_unfinished():
    assert FrameReader(FRAME_MAX, 512 * MIB, 0).unfinished_bytes_max > 512 * MIB


@pytest.mark.covers("B-314")
def test_immediate_is_not_implemented():
    sent = framed(1, 1, method(60, 40, b"\0\0\0\0\x02"))
    assert read([sent]).error == (540, "immediate=true")


@pytest.mark.covers("B-310")
def test_the_largest_frame_is_taken_and_one_byte_more_is_not():
    largest = FRAME_MAX  # eight bytes of overhead are forgiven, as RabbitMQ does
    sent = publish(b"a") + head(largest) + framed(3, 1, b"x" * largest)
    assert read([sent]).records["odd"][0][3] == b"x" * largest
    sent = publish(b"a") + head(largest + 1) + framed(3, 1, b"x" * (largest + 1))
    assert read([sent]).error[0] == 501


@pytest.mark.covers("B-015")
def test_after_a_channel_error_only_its_close_comes_through():
    refused = framed(1, 1, method(60, 40, b"\0\0\x07missing\x00\0")) + head(0)
    close_ok = framed(1, 1, method(20, 41))
    outcome = read([refused + framed(1, 1, ACK) + publish() + head(3) + close_ok])
    assert outcome.events[1:] == [(1, method(20, 41))]
    assert outcome.settles[1] == []


def test_tags_at_the_end_of_their_range_do_not_join_across_it():
    tags = [ALL - 1, ALL, 0, 1]
    acks = [framed(1, 1, method(60, 80, struct.pack(">QB", tag, 0))) for tag in tags]
    assert read([wire(acks)]).settles[1] == [(SETTLE, tag, False) for tag in tags]


def test_a_publish_deposited_later_is_the_same_record():
    broker = Broker()
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    slot = reader.open_channel(1, broker)
    slot.one_by_one = True
    reader.receive(publish(b"a") + head(3) + framed(3, 1, b"abc"), NOW)
    _, event = next_event(reader)
    assert broker.records()["odd"] == []
    reader.deposit(slot, [broker.builders["odd"]], event)
    assert broker.records()["odd"] == [(b"", b"a", event.header, b"abc")]


def test_bytes_of_an_unfinished_frame_do_not_pile_up():
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    reader.open_channel(1, Broker())
    reader.receive(struct.pack(">BHI", 3, 1, FRAME_MAX - 8), NOW)
    for _ in range(FRAME_MAX - 8):
        assert next_event(reader) is None
        reader.receive(b"x", NOW)
    assert next_event(reader) is None  # all but the frame's last byte are there
    reader.receive(b"x", NOW)
    with pytest.raises(ConnectionClosingError, match="invalid_frame_end_marker"):
        next_event(reader)


def test_without_a_frame_max_there_is_a_limit_still():
    size = compiled.FRAME_SIZE_UNLIMITED + 9
    assert read([struct.pack(">BHI", 3, 1, size)], frame_max=0).error[0] == 501


def test_each_channel_names_every_builder_that_its_confirms_wait_for():
    broker = Broker()
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    slots = [reader.open_channel(number, broker) for number in (1, 2)]
    for slot in slots:
        slot.confirms = object()
    here = publish() + head(0)
    there = b"".join(
        framed(kind, 2, payload)
        for kind, payload in ((1, method(60, 40, b"\0\0\0\x01k\0")), (2, b"\0\x3c" + bytes(12)))
    )
    reader.receive(here + there + here + there, NOW)  # of one queue, taking turns
    assert next_event(reader) is None
    both = {broker.builders["odd"]}
    assert slots[0].take_touched() == both
    reader.receive(here + there, NOW)
    assert next_event(reader) is None
    assert [slot.take_touched() for slot in slots] == [both, both]
    assert [slot.take_touched() for slot in slots] == [set(), set()]


def test_whoever_packs_into_a_parked_builder_is_told_once():
    broker = Broker()
    first, second = readers = [FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX) for _ in range(2)]
    for reader in readers:
        reader.open_channel(1, broker)
        reader.receive(publish() + head(0), NOW)
        assert next_event(reader) is None
    odd = broker.builders["odd"]
    assert (first.take_filled(), second.take_filled()) == ([odd], [])
    odd.parked = True
    second.receive((publish() + head(0)) * 2, NOW)
    assert next_event(second) is None
    assert second.take_filled() == [odd]
    assert not odd.parked


def test_a_large_header_is_work_for_each_queue_that_gets_it():
    broker = Broker()
    reader = FrameReader(131_072, MESSAGE_SIZE_MAX)
    reader.open_channel(1, broker)
    value = b"\x01xS" + struct.pack(">I", 40_000) + bytes(40_000)
    large = head(0, b"\x20\x00", struct.pack(">I", len(value)) + value)
    reader.receive((publish() + large) * 450, NOW)
    for _ in range(2):  # the first time for the route, which it had to ask for
        assert reader.next() is None
        assert reader.paused
    assert 300 < broker.builders["odd"].count < 450


def test_what_there_is_to_collect_is_named_once():
    broker = Broker()
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    slots = [reader.open_channel(number, broker) for number in (1, 2)]
    ended = reader.open_channel(3, broker)
    reader.receive(framed(1, 3, ACK), NOW)
    assert next_event(reader) is None
    ended.end()
    assert reader.take_dirty() == []
    slots[0].confirms = object()
    other = framed(1, 2, method(60, 40, b"\0\0\0\x02aa\0")) + framed(2, 2, b"\0\x3c" + bytes(12))
    nowhere = framed(1, 1, method(60, 40, b"\0\0\x07nowhere\0\0")) + head(0)
    reader.receive((publish() + head(0)) * 2 + other + nowhere + framed(1, 1, ACK) * 2, NOW)
    assert next_event(reader) is None
    odd, even = broker.builders["odd"], broker.builders["even"]
    assert reader.take_filled() == [odd, even]
    assert reader.take_dirty() == [slots[0]]
    assert slots[0].take_touched() == {odd}
    assert [slot.published for slot in slots] == [3, 1]
    assert [slot.counters.counted() for slot in slots] == [
        {"publish": 3, "drop_unroutable": 1},
        {"publish": 1},
    ]
    counted = {"publish": 4, "publish_out": 3, "drop_unroutable": 1, "received_confirm": 3}
    assert {name: reader.vhost.counted()[name] for name in counted} == counted
    assert slots[0].take_settles() == [(SETTLE, 0, 0, False)] * 2
    assert (reader.take_filled(), reader.take_dirty()) == ([], [])
    assert (slots[0].take_touched(), slots[0].take_settles()) == (set(), [])
    assert reader.frames == 11


def test_a_changed_route_counts_for_the_very_next_message():
    broker, caches = Broker(), []
    cached = broker.route_cache
    broker.route_cache = lambda exchange: caches.append(cached(exchange)) or caches[-1]
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    reader.open_channel(1, broker)

    def send():
        reader.receive(publish(b"a") + head(0), NOW)
        assert next_event(reader) is None

    send()
    broker.resolve = lambda *_: Route([broker.builders["copy"]])
    send()
    caches[0].clear()
    send()
    reader.forget_routes()
    send()
    assert {name: len(records) for name, records in broker.records().items()} == {
        "even": 0,
        "odd": 2,
        "copy": 2,
    }
    assert len(caches) == 2


def published_by_exchange(slot):
    return {
        name: publish_statistics.counted()
        for name, publish_statistics in slot.publish_statistics_by_exchange.items()
    }


def test_publishes_are_counted_by_exchange():
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    slot = reader.open_channel(1, Broker())

    def send(*exchanges):
        for exchange in exchanges:
            reader.receive(publish(b"a", exchange) + head(0), NOW)
            while next_event(reader) is not None:
                pass

    send(b"", b"", b"fanout", b"", b"headers")
    counted = {b"": {"publish": 3}, b"fanout": {"publish": 1}, b"headers": {"publish": 1}}
    assert published_by_exchange(slot) == counted
    reader.forget_routes()
    send(b"")
    counted[b""] = {"publish": 4}
    assert published_by_exchange(slot) == counted
    reader.receive((publish(b"a", b"fanout") + head(0)) * 2 + publish(b"a") + head(0), NOW)
    assert next_event(reader) is None
    counted |= {b"": {"publish": 5}, b"fanout": {"publish": 3}}
    assert published_by_exchange(slot) == counted
    assert slot.counters.counted() == {"publish": 9}


def test_what_goes_nowhere_is_counted_for_its_exchange():
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    slot = reader.open_channel(1, Broker())
    reader.receive((publish(b"a", b"nowhere") + head(0)) * 2, NOW)
    assert next_event(reader) is None
    reader.unroutable(slot, b"nowhere", True)
    counted = {"publish": 2, "drop_unroutable": 2, "return_unroutable": 1}
    assert published_by_exchange(slot) == {b"nowhere": counted}


def test_exchanges_that_come_and_go_do_not_grow_a_channel():
    reader = FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    slot = reader.open_channel(1, Broker())
    for number in range(2 * PUBLISH_STATISTICS_MAX):
        reader.forget_routes()
        reader.receive(publish(b"a", b"%d" % number) + head(0), NOW)
        while next_event(reader) is not None:
            pass
        assert len(slot.publish_statistics_by_exchange) <= PUBLISH_STATISTICS_MAX


def test_strategies_use_every_exchange_that_the_broker_knows():
    assert {"", "fanout", "nowhere", "headers", "missing"} == set(strategies.EXCHANGES)


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ({"x-tags": ["a"]}, RecordFlag.HAS_TAGS),
        ({"x-message-group": "g"}, RecordFlag.HAS_GROUP),
        ({"x-other": 1, "x-delay": 5}, RecordFlag.WANTS_DELAY),
        ({"x-deliver-at": 5}, RecordFlag.WANTS_DELAY),
        ({"x-delay-level": 1}, RecordFlag.WANTS_DELAY),
        ({"x-repeat-every": 1}, RecordFlag.WANTS_DELAY),
        ({"x-cron": "* * * * *"}, RecordFlag.WANTS_DELAY),
        ({"x-producer-id": "p"}, RecordFlag.WANTS_ORDER),
        ({"x-prepare": True}, RecordFlag.WANTS_PREPARE),
        ({"x-retry-delays": [1], "CC": []}, RecordFlag.HAS_RETRY | RecordFlag.SELECTS_KEYS),
        ({"x-retry-max-attempts": 1}, RecordFlag.HAS_RETRY),
        ({"X-Delay": 1, "x-dela": 1, "x-delays": 1, "delay": 2, "x-": 1, "x": 1}, 0),
    ],
)
def test_headers_that_ask_for_something_are_noted(headers, asked):
    broker, reader = Broker(), FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    reader.open_channel(1, broker)
    reader.receive(publish() + head(0, b"\x20\0", encode_table(headers)), NOW)
    event = next_event(reader)
    if asked & ~(RecordFlag.HAS_TAGS | RecordFlag.HAS_GROUP):
        _, left = event
        assert left.flags | left.requests == asked | RecordFlag.HAS_HEADERS
        assert left.requests == asked & ~RecordFlag.STORED
        reader.deposit(reader.slots[1], [broker.builders["odd"]], left)
    else:
        assert event is None
    (record,) = broker.builders["odd"].seal(0).records()
    assert record[1] == (asked & RecordFlag.STORED) | RecordFlag.HAS_HEADERS


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        (1, "expected a string or an array of strings"),
        ({"a": "b"}, "expected a string or an array of strings"),
        (["a", 1], "expected an array of strings only"),
        (["a"] * 33, "more than 32 tags"),
        (["a" * 129], "a tag of 129 bytes is longer than 128"),
        ("a" * 129, "a tag of 129 bytes is longer than 128"),
    ],
)
def test_tags_that_cannot_be_are_refused_before_anything_is_stored(tags, problem):
    broker, reader = Broker(), FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    reader.open_channel(1, broker)
    reader.receive(publish() + head(0, b"\x20\0", encode_table({"x-tags": tags})), NOW)
    _, error = next_event(reader)
    assert (error.code, error.explanation) == (406, f"invalid header 'x-tags': {problem}")
    assert not any(broker.records().values())


@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_mask_of_the_tags_is_stored(one_by_one):
    broker, reader = Broker(), FrameReader(FRAME_MAX, MESSAGE_SIZE_MAX)
    reader.open_channel(1, broker).one_by_one = one_by_one
    tags = ["a" * 128, *map(str, range(31))]
    reader.receive(publish() + head(0, b"\x20\0", encode_table({"x-tags": tags})), NOW)
    event = next_event(reader)
    if one_by_one:
        reader.deposit(reader.slots[1], [broker.builders["odd"]], event[1])
    mask = tag_mask_of(bytes(12) + b"\x20\0" + encode_table({"x-tags": tags}))
    assert mask
    assert broker.builders["odd"].seal(0).tag_mask == mask
