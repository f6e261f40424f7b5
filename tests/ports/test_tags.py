"""The mask of a message's tags, from its header and through builders into batches."""

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from leveret.ports.records import Batch, BatchBuilder, RecordFlag
from leveret.ports.tags import tag_bit_of, tag_mask_of
from tests.support.contents import encode_properties

FLAGS = RecordFlag.HAS_HEADERS


def header_of(headers) -> bytes:
    return encode_properties(commands.Basic.Properties(headers=headers, content_type="t"), 0)


def joined(tags) -> int:
    mask = 0
    for tag in tags:
        mask |= tag_bit_of(tag.encode())
    return mask


@given(st.lists(st.text(max_size=20), max_size=32), st.dictionaries(st.text(max_size=8), st.text()))
def test_a_mask_has_the_bit_of_each_tag(tags, others):
    others.pop("x-tags", None)
    assert tag_mask_of(header_of({**others, "x-tags": tags})) == joined(tags)
    assert tag_mask_of(header_of({"x-tags": tags, **others})) == joined(tags)
    assert tag_mask_of(header_of(others)) == 0


def test_one_string_is_one_tag():
    assert tag_mask_of(header_of({"x-tags": "a"})) == tag_bit_of(b"a")


@given(st.binary(max_size=200))
def test_any_bytes_have_some_mask(data):
    for header in (
        data,
        data[:12] + b"\x20\0" + data[12:],
        header_of({"x-tags": ["a", "b"]})[: len(data)],
    ):
        assert 0 <= tag_mask_of(header) < 1 << 64


def test_bits_are_what_is_on_disk_already():
    tags = [b"", b"a", b"b", b"checkout", b"refund", "ключ".encode()]
    assert [tag_bit_of(tag).bit_length() - 1 for tag in tags] == [33, 32, 18, 28, 40, 49]


def test_bits_are_spread_evenly():
    counts = [0] * 64
    for i in range(64_000):
        counts[tag_bit_of(b"tag-%d" % i).bit_length() - 1] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_records_packed_from_python_have_their_tags():
    builder = BatchBuilder()
    builder.add(FLAGS, 1, b"", b"k", header_of({"x-tags": ["a"]}), b"")
    builder.add(FLAGS | RecordFlag.HAS_TAGS, 1, b"", b"k", header_of({"a": "b"}), b"")
    builder.add(0, 1, b"", b"k", header_of(None), b"")
    assert builder.tag_mask == tag_bit_of(b"a")
    batch = builder.seal(0)
    assert batch.tag_mask == tag_bit_of(b"a")
    assert [record[1] for record in batch.records()] == [FLAGS | RecordFlag.HAS_TAGS, FLAGS, 0]
    assert Batch.parse(bytes(batch)).tag_mask == tag_bit_of(b"a")
    builder.add(0, 1, b"", b"k", header_of(None), b"")
    assert builder.seal(0).tag_mask == 0


def test_what_a_queue_refuses_keeps_its_tags():
    builder = BatchBuilder()
    for tag in "ab":
        builder.add(FLAGS, 1, b"", b"k", header_of({"x-tags": tag}), b"")
    _, refused = builder.refuse(1, 100, True)
    assert refused.tag_mask & tag_bit_of(b"b")
    assert builder.tag_mask & tag_bit_of(b"a")
