"""Chunks that are uploaded: what they hold is packed as it would come by AMQP, or refused."""

import struct
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.batch_writer import PERSISTENT_HEADER, pack_chunk, repeated, row_bytes
from leveret.errors import ChannelError
from leveret.features.range_reads.columns import ColumnPacker
from leveret.features.staged_batches.chunk_rows import (
    ROWS_MAX,
    ChunkRows,
    InvalidChunkError,
    RowStager,
    chunk_size,
)
from leveret.ports.records import BatchBuilder, RecordFlag
from tests.support.chunks import Row, chunk

NAMES = st.text(max_size=20)
ROWS = st.lists(st.tuples(NAMES, st.binary(max_size=40), NAMES), max_size=8)


class Checks:
    """Let everything pass, and remember it."""

    def __init__(self, *, each_key=False):
        self.each_key = each_key
        self.exchanges, self.keys, self.contents = [], [], []
        self.error = None

    def exchange(self, name):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.exchanges.append(name)
        return self.each_key

    def key(self, exchange, key):
        self.keys.append((exchange, key))

    def content(self, flags, exchange, header):
        self.contents.append((flags, exchange))


def packed(data, checks=None, *, user=None, work_max=1 << 30, body_bytes_max=1 << 20):
    """Return the records that a chunk becomes."""
    stager = RowStager(checks or Checks(), user, body_bytes_max)
    builder, rows = BatchBuilder(), ChunkRows(data)
    while stager.pack(rows, builder, 5, work_max):
        pass
    assert rows.row == rows.rows == stager.rows == builder.count
    if not builder.count:
        return []
    batch = builder.seal(0)
    assert stager.packed_bytes == batch.size - 64
    return [record[1:] for record in batch.records()]


def whole(header, body):
    """A content header with the body's size."""
    return header[:4] + len(body).to_bytes(8, "big") + header[12:]


@given(ROWS, st.integers(1, 9))
def test_rows_become_records(values, work_max):
    rows = [Row(*each) for each in values]
    found = packed(chunk(*rows), work_max=work_max)
    assert found == [
        (
            RecordFlag.PERSISTENT,
            5,
            row.exchange.encode(),
            row.key.encode(),
            whole(PERSISTENT_HEADER, row.value),
            row.value,
        )
        for row in rows
    ]


def test_flags_are_those_of_a_publish():
    headers = {"x-delay": 5, "CC": ["a"], "x-tags": ["t"], "x-message-group": "g"}
    checks = Checks()
    rows = [
        Row(properties={"headers": headers, "priority": 3, "expiration": "60", "reply_to": "r"}),
        Row(header=struct.pack(">HHQH", 60, 0, 7, 0), value=b"other size"),
    ]
    first, second = packed(chunk(*rows), checks)
    flags = RecordFlag.PERSISTENT | RecordFlag.HAS_HEADERS | RecordFlag.HAS_PRIORITY
    flags |= RecordFlag.HAS_EXPIRATION | RecordFlag.HAS_REPLY_TO | RecordFlag.HAS_TAGS
    flags |= RecordFlag.HAS_GROUP | RecordFlag.SELECTS_KEYS | RecordFlag.WANTS_DELAY
    assert first[0] == flags
    assert checks.contents == [(first[0], b"")]
    assert second[0] == 0
    assert second[4] == struct.pack(">HHQH", 60, 0, 10, 0)


def test_addresses_are_checked_where_they_change():
    checks = Checks(each_key=True)
    rows = [Row("a"), Row("a"), Row("b"), Row("b", exchange="x"), Row("b", exchange="x"), Row("b")]
    packed(chunk(*rows), checks)
    assert checks.exchanges == [b"", b"x", b""]
    assert checks.keys == [(b"", b"a"), (b"", b"b"), (b"x", b"b"), (b"", b"b")]


def test_a_check_that_has_to_wait_is_made_again_and_nothing_is_lost():
    checks = Checks()
    stager, builder = RowStager(checks, None, 100), BatchBuilder()
    rows = ChunkRows(chunk(Row("a"), Row("b", exchange="x"), Row("c", exchange="x")))
    stager.pack(rows, builder, 1, 1)
    checks.error = RuntimeError("ask somebody")
    with pytest.raises(RuntimeError):
        stager.pack(rows, builder, 1, 100)
    assert (rows.row, builder.count) == (1, 1)
    assert not stager.pack(rows, builder, 1, 100)
    assert [record[4] for record in builder.seal(0).records()] == [b"a", b"b", b"c"]
    assert checks.exchanges == [b"", b"x"]


def test_what_was_read_can_be_staged_as_it_is():
    builder = BatchBuilder()
    header = whole(PERSISTENT_HEADER, b"body")
    for key in (b"a", b"b"):
        builder.add(1, 5, b"x", key, header, b"body")
    packer = ColumnPacker(range(8))
    packer.add(builder.seal(7), 7, 9, 10, 1 << 20)
    parts = packer.finish(
        offset=7, next_offset=9, first=0, end=9, missing=0, log=1, partition=0, flags=0
    )
    found = packed(b"".join(parts))
    assert [record[2:] for record in found] == [
        (b"x", key, header, b"body") for key in (b"a", b"b")
    ]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"", "class 60"),
        (bytes(14), "class 60"),
        (struct.pack(">HHQH", 60, 1, 0, 0), "class 60"),
        (struct.pack(">HHQH", 60, 0, 0, 0)[:13], "class 60"),
        (struct.pack(">HHQH", 60, 0, 0, 1), "do not fill"),
        (struct.pack(">HHQH", 60, 0, 0, 1 << 12), "do not fill"),
        (PERSISTENT_HEADER + b"x", "do not fill"),
        (struct.pack(">HHQHI", 60, 0, 0, 1 << 13, 5), "do not fill"),
        (struct.pack(">HHQH", 60, 0, 0, 1 << 13) + b"\0\2\0\0" + bytes(1 << 17), "class 60"),
    ],
)
def test_content_headers_are_checked(header, text):
    with pytest.raises(InvalidChunkError, match=text):
        packed(chunk(Row(), Row(header=header)))


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"expiration": "soon"}, "invalid expiration 'soon'"),
        ({"user_id": "other"}, "authenticated user was 'me'"),
        ({"reply_to": "amq.rabbitmq.reply-to"}, "fast reply consumer"),
        ({"headers": {"x-tags": 5}}, "x-tags"),
        ({"headers": {"x-prepare": True}}, "neither prepared nor numbered"),
        ({"headers": {"x-producer-id": "p"}}, "neither prepared nor numbered"),
    ],
)
def test_properties_are_checked_as_by_amqp(properties, text):
    with pytest.raises(ChannelError, match=text):
        packed(chunk(Row(), Row(properties=properties)), user=b"me")


def test_large_bodies_and_long_keys_are_refused():
    with pytest.raises(ChannelError, match="message size 6 is larger than max size 5"):
        packed(chunk(Row(value=b"123456")), body_bytes_max=5)
    for row in (Row("k" * 256), Row(exchange="e" * 256)):
        with pytest.raises(InvalidChunkError, match="longer than 255"):
            packed(chunk(row))
    rows = pack_chunk(
        1,
        exchange=repeated(b"", 1),
        routing_key=row_bytes([b"\xff"]),
        header=repeated(PERSISTENT_HEADER, 1),
        value=repeated(b"", 1),
    )
    with pytest.raises(InvalidChunkError, match="no UTF-8"):
        packed(rows)


DATA = chunk(Row("a", b"one"), Row("key", b"two", "x"), Row("b", b"", "x"))
PLACES = {3: 80, 4: 112, 6: 144, 7: 176}


def changed(at, new):
    return DATA[:at] + new + DATA[at + len(new) :]


@pytest.mark.parametrize(
    "data",
    [
        DATA[:-1],
        DATA + b"x",
        DATA[:79],
        changed(0, b"LVRX"),
        changed(4, b"\2"),
        changed(6, struct.pack("<H", 80)),
        changed(6, struct.pack("<H", 60_000)),
        changed(12, struct.pack("<I", ROWS_MAX + 1)),
        changed(12, struct.pack("<I", 2)),
        changed(12, struct.pack("<I", 4)),
        changed(16, struct.pack("<Q", 1 << 40)),
        changed(76, struct.pack("<I", 65)),
        changed(76, struct.pack("<I", 3)),
        changed(80, struct.pack("<H", 4)),
        changed(82, struct.pack("<H", 0)),
        changed(84, struct.pack("<I", 8)),
        changed(88, struct.pack("<Q", len(DATA))),
        changed(88, struct.pack("<Q", (1 << 64) - 8)),
        changed(88, struct.pack("<Q", 209)),
        changed(96, struct.pack("<Q", (1 << 64) - 8)),
        changed(104, struct.pack("<Q", 1 << 63)),
        changed(104, struct.pack("<Q", (1 << 64) - 1)),
    ],
)
def test_places_are_checked(data):
    with pytest.raises(InvalidChunkError):
        packed(data)


@pytest.mark.parametrize("entry", [-1, 1 << 30, 0, 6, -(1 << 31)])
def test_tables_are_checked(entry):
    (table,) = struct.unpack_from("<Q", DATA, PLACES[4] + 8)
    with pytest.raises(InvalidChunkError):
        packed(changed(table + 8, struct.pack("<i", entry)))


@given(st.integers(0, len(DATA) - 1), st.binary(min_size=1, max_size=8))
@example(0, b"")
def test_no_bytes_break_anything(at, new):
    data = changed(at, new)[: len(DATA)]
    with suppress(InvalidChunkError, ChannelError):
        packed(data)


@given(st.binary(max_size=300))
def test_no_other_bytes_break_anything(data):
    with pytest.raises(InvalidChunkError):
        packed(data)
    with pytest.raises(InvalidChunkError):
        chunk_size(b"LVRC\1" + data[:19])
