"""Messages with a header field that the broker added, as pamqp reads them."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.amqp.added import NAME_BYTES_MAX, AddedField, CountedFields
from leveret.amqp.deliveries import Outbox
from leveret.amqp.frames import ChannelSlot
from leveret.ports.records import BatchBuilder
from tests.amqp.strategies import header_values, properties
from tests.amqp.test_deliveries import read_back, sealed
from tests.support.contents import encode_properties

FRAME_SIZE_MAX = 131064
NAME = "x-stream-offset"
OTHER_NAMES = ["x-stream-offse", "x-stream-offset-", "X-Stream-Offset", ""]


@st.composite
def headed_properties(draw):
    """Properties whose headers often have the field already, somewhere among others."""
    chosen = draw(properties())
    chosen.timestamp = None
    if draw(st.booleans()):
        names = st.sampled_from([NAME, *OTHER_NAMES]) | st.text(max_size=20)
        chosen.headers = draw(st.dictionaries(names, header_values, max_size=5))
    return chosen


def header_payloads(parts):
    """The payloads of the header frames, which need not be well-formed."""
    data, found = b"".join(map(bytes, parts)), []
    while data:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert (channel, data[7 + size]) == (5, 0xCE)
        if kind == 2:
            found.append(data[7 : 7 + size])
        data = data[8 + size :]
    return found


def delivered(heads, added, *, base=0, frame_size_max=FRAME_SIZE_MAX):
    """The content headers as a consumer gets them, the same from basic.deliver and basic.get-ok."""
    batch = sealed([(b"", b"q", head, b"") for head in heads], base)
    outbox, slot = Outbox(), ChannelSlot(5, None)
    outbox.frame_size_max = frame_size_max
    stop = outbox.deliver(slot, b"t", [batch], base, base + len(heads), False, added)
    assert stop == base + len(heads)
    found = header_payloads(outbox.take())
    for offset in range(base, stop):
        outbox.get_ok(slot, batch, offset, False, 0, added)
    assert header_payloads(outbox.take()) == found
    return found


def properties_of(head):
    content = header.ContentHeader()
    content.unmarshal(head)
    return content.properties


def by_name(chosen):
    return {name: value for name, value in chosen if name != "headers" and value is not None}


@given(st.lists(headed_properties(), min_size=1, max_size=3), st.integers(0, 2**62))
def test_every_record_gets_its_offset_and_keeps_all_else(chosen, base):
    heads = [encode_properties(one, 0) for one in chosen]
    for number, head in enumerate(delivered(heads, AddedField(NAME), base=base)):
        before, after = properties_of(heads[number]), properties_of(head)
        assert after.headers == {**(before.headers or {}), NAME: base + number}
        assert by_name(after) == by_name(before)
        assert not before.headers or list(after.headers)[1:] == [
            name for name in before.headers if name != NAME
        ]


COUNTS = st.dictionaries(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1))


@pytest.mark.covers("B-129")
@given(headed_properties(), COUNTS, COUNTS)
def test_only_what_was_counted_gets_a_count(chosen, counts, others):
    head = encode_properties(chosen, 0)
    fields = {NAME: counts, "x-acquired-count": others}
    found = delivered([head] * 4, CountedFields(fields))
    for offset in range(4):
        added = {name: kept[offset] for name, kept in fields.items() if offset in kept}
        if not added:
            assert found[offset] == head
            continue
        rest = {n: value for n, value in (chosen.headers or {}).items() if n not in fields}
        after = properties_of(found[offset])
        assert after.headers == {**added, **rest}
        assert by_name(after) == by_name(chosen)


def with_table(table, *, tail=b""):
    """A content header whose table has these bytes for fields."""
    return struct.pack(">HHQHI", 60, 0, 0, 1 << 13 | (1 << 12 if tail else 0), len(table)) + (
        table + tail
    )


FIELD = b"\x0fx-stream-offsetl" + bytes(7) + b"\x07"


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        (b"", b""),
        (FIELD, b""),
        (FIELD + b"\x01at\x01" + FIELD, b"\x01at\x01"),
        (b"\x0fx-stream-offsetV\x01aV", b"\x01aV"),
        (b"\x01aF\x00\x00\x00\x12" + FIELD[:18], b"\x01aF\x00\x00\x00\x12" + FIELD[:18]),
        (b"\x01a?" + FIELD, b"\x01a?" + FIELD),  # no such letter: copied as it lies
        (b"\x01aS\xff\xff\xff\xff", b"\x01aS\xff\xff\xff\xff"),
        (FIELD + b"\xffa", b"\xffa"),
        (b"\x01aD" + bytes(5), b"\x01aD" + bytes(5)),
    ],
)
def test_fields_of_the_same_name_go_and_the_rest_stays(table, kept):
    (head,) = delivered([with_table(table, tail=b"\x02")], AddedField(NAME), base=7)
    assert head == with_table(FIELD + kept, tail=b"\x02")


@given(st.binary(max_size=60))
@example(b"\x00")
@example(b"\x01a")
@example(b"\x01aS\x00\x00\x00")
def test_any_bytes_may_stand_in_a_table(table):
    (head,) = delivered([with_table(table)], AddedField(NAME), base=7)
    if b"x-stream-offset" not in table:
        assert head == with_table(FIELD + table)


@given(st.binary(max_size=40))
@example(struct.pack(">HHQH", 60, 0, 0, 0x8000))
@example(struct.pack(">HHQH", 60, 0, 0, 0xC000) + b"\x00")
@example(struct.pack(">HHQHI", 60, 0, 0, 0x2000, 1))
@example(struct.pack(">HHQHH", 60, 0, 0, 1, 0))
def test_content_headers_that_make_no_sense_are_passed_on(head):
    (found,) = delivered([head], AddedField(NAME))
    assert found == head or FIELD[:17] in found


@pytest.mark.parametrize("room", [28, 29])
def test_a_header_that_would_fit_into_no_frame_stays_as_it_is(room):
    head = encode_properties(commands.Basic.Properties(correlation_id="x" * 100), 0)
    (found,) = delivered([head], AddedField(NAME), frame_size_max=len(head) + room)
    assert (found != head) == (room == 29)


def test_a_message_with_a_body_is_followed_by_the_next():
    builder = BatchBuilder()
    for content in (b"x" * 5000, b"y" * 20_000, b"z"):
        head = encode_properties(commands.Basic.Properties(), len(content))
        builder.add(0, 1, b"", b"q", head, content)
    outbox, slot = Outbox(), ChannelSlot(5, None)
    outbox.deliver(slot, b"t", [builder.seal(0)], 0, 3, False, AddedField(NAME))
    found = read_back(outbox.take(), 4088)
    assert [len(content) for _, _, content in found] == [5000, 20_000, 1]
    assert [properties_of(head).headers[NAME] for _, head, _ in found] == [0, 1, 2]


def test_a_name_has_a_limit():
    AddedField("é" * (NAME_BYTES_MAX // 2))
    with pytest.raises(ValueError, match="128 bytes"):
        AddedField("x" * (NAME_BYTES_MAX + 1))
