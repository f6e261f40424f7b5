"""The compiled part of compaction: hashes, the map of keys, what goes, and the parts of a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchAttribute, BatchBuilder
from leveret.storage.key_map import KeyMap, Sieve, parts_of, sip_hash
from tests.storage.harness import keyed

SECRET = bytes(range(16))
NOW = 1_700_000_000_000
HOUR = 3_600_000


def batch_of(*records, base=0, step_ms=0) -> Batch:
    """A batch of (key, body); None is no key at all."""
    builder = BatchBuilder()
    for number, (key, body) in enumerate(records):
        builder.add(1, NOW + number * step_ms, b"x", b"k", keyed(key), body)
    return builder.seal(base)


def all_of(batch: Batch) -> RangeSet:
    return RangeSet([(batch.base_offset, batch.stop_offset)])


def test_hashes_are_those_of_the_reference_implementation():
    assert sip_hash(b"", SECRET).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert sip_hash(b"\0", SECRET).hex() == "da87c1d86b99af44347659119b22fc45"


def test_hashes_differ():
    keys = [bytes(range(size)) for size in range(40)]
    found = {sip_hash(key, secret) for key in keys for secret in (SECRET, bytes(16))}
    assert len(found) == 80


def test_a_map_is_a_power_of_two_within_its_memory():
    keys = KeyMap(1 << 20, SECRET)
    assert keys.held_bytes == 24 << 15
    assert keys.count_max == 24 << 10
    assert KeyMap(0, SECRET).count_max == 12
    with pytest.raises(ValueError, match="16 bytes"):
        KeyMap(1000, b"short")


def test_a_full_map_says_where():
    keys = KeyMap(0, SECRET)
    batch = batch_of(*[(b"%d" % (i % 20), b"v") for i in range(40)], base=100)
    assert keys.note(batch, all_of(batch), 0) == 112
    assert len(keys) == keys.count_max == 12
    again = batch_of(*[(b"%d" % i, b"v") for i in range(12)], base=200)
    assert keys.note(again, all_of(again), 0) == 212  # keys that it has find room


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 5), st.sampled_from([b"", b"v"])), max_size=40),
    st.sets(st.integers(0, 39)),
    st.integers(0, 40),
)
def test_what_goes_is_superseded_or_not_live(records, settled, first):
    records = [(None if key is None else b"%d" % key, body) for key, body in records]
    if not records:
        return
    batch = batch_of(*records)
    live = all_of(batch)
    for offset in settled:
        live.remove(offset, offset + 1)
    keys = KeyMap(1000, SECRET)
    assert keys.note(batch, live, first) == len(records)
    sieve = Sieve(keys, live, len(records), NOW)
    sieve.look(batch)
    latest = {
        key: offset
        for offset, (key, _) in enumerate(records)
        if key is not None and offset >= first and offset not in settled
    }
    stays = {
        offset
        for offset, (key, _) in enumerate(records)
        if offset not in settled and (key is None or latest.get(key, -1) <= offset)
    }
    assert {offset for offset in range(len(records)) if offset not in sieve.removed} == stays
    assert sieve.kept == len(stays)
    assert sieve.superseded.count == len(set(range(len(records))) - settled - stays)
    assert sieve.undated == sum(
        1 for offset in stays if records[offset][0] is not None and not records[offset][1]
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=5)), min_size=1, max_size=30),
    st.sets(st.integers(0, 29)),
    st.booleans(),
    st.integers(0, 30),
)
def test_parts_have_the_records_that_stay_as_they_were(records, removed, follows, covered):
    batch = batch_of(*[(b"%d" % key, body) for key, body in records], base=7, step_ms=10)
    gone = RangeSet([(7 + offset, 8 + offset) for offset in removed])
    parts = parts_of(batch, gone, follows, 7 + covered, NOW + HOUR)
    found, expected = [], 7
    for part in parts:
        raw = bytes(part)
        copy = Batch.parse(raw)
        assert len(raw) == part.size
        assert part.count > 0
        assert bool(part.attributes & BatchAttribute.COMPACTED) == (
            part.base_offset != expected or (part.base_offset == 7 and not follows)
        )
        its = list(copy.records())
        assert copy.last_time == its[-1][2]
        has_tombstone = any(not record[6] for record in its)
        is_dated = bool(part.attributes & BatchAttribute.DATED)
        assert not is_dated or has_tombstone
        if part is not batch and part.stop_offset <= 7 + covered:
            assert is_dated == has_tombstone
        found += its
        expected = part.stop_offset
    assert found == [record for record in batch.records() if record[0] not in gone]


def test_a_batch_that_stays_as_it_is_is_not_copied():
    batch = batch_of((b"a", b"1"), (b"b", b""), base=5)
    assert parts_of(batch, RangeSet(), True, 5, NOW) == [batch]
    [dated] = parts_of(batch, RangeSet(), True, 7, NOW)
    assert dated is not batch
    dated.set_checksum()
    assert parts_of(dated, RangeSet(), True, 7, NOW + HOUR) == [dated]


def test_a_batch_of_a_transaction_is_one_like_any_other_afterwards():
    batch = batch_of((b"a", b"1"), base=5)
    batch.set_pending(77)
    [part] = parts_of(batch, RangeSet(), True, 6, NOW)
    assert part.transaction == 0
    assert bytes(part)[48:56] == bytes(8)


def test_a_tombstone_goes_when_its_time_has_come():
    [dated] = parts_of(batch_of((b"a", b"")), RangeSet(), True, 1, NOW + HOUR)
    keys = KeyMap(0, SECRET)
    for now_ms, goes in [(NOW, False), (NOW + HOUR - 1, False), (NOW + HOUR, True)]:
        sieve = Sieve(keys, all_of(dated), 1, now_ms)
        sieve.look(dated)
        assert (0 in sieve.removed) == goes
        assert sieve.undated == 0
        assert sieve.due_ms == (0 if goes else NOW + HOUR)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"header",
        bytes(14),
        keyed(b"a")[:-1],
        keyed(b"a")[:20],
        keyed(b"a").replace(b"x-partition-key", b"x-partition-kex"),
    ],
)
def test_a_header_without_a_key_has_none(header):
    builder = BatchBuilder()
    builder.add(0, NOW, b"", b"a", header, b"1")
    builder.add(0, NOW, b"", b"a", header, b"")
    batch = builder.seal(0)
    keys = KeyMap(0, SECRET)
    assert keys.note(batch, all_of(batch), 0) == 2
    assert len(keys) == 0
    sieve = Sieve(keys, all_of(batch), 2, NOW)
    sieve.look(batch)
    assert not sieve.removed
    assert sieve.undated == 0
