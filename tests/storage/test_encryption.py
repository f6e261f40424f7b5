"""Sealed batches: nothing of them is readable, nothing of them can be changed, all comes back."""

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from leveret.errors import CorruptBatchError
from leveret.ports import Durability
from leveret.ports.records import BatchAttribute, BatchBuilder
from leveret.storage.dump import dump_segment
from leveret.storage.encryption import (
    HEAD_BYTES,
    DataKey,
    MissingKeyError,
    Sealer,
    Unsealer,
    key_id_of,
)
from leveret.storage.files import RealFileSystem
from leveret.storage.scan import verify
from leveret.storage.state import MemoryStateStore
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import abandon, bodies, get, make_store, open_log, put, store_at
from tests.storage.keys import Foretold, encrypted_keyring, make_keyring
from tests.storage.test_damage import kept_bytes, read_all
from tests.support.waiting import eventually

DATA = Path("/data")
KEY = DataKey(0x1234, bytes(32))
LIMITS = {"segment_bytes_max": 2000, "tail_cache_bytes_max": 0}


def unsealer(*keys: DataKey) -> Unsealer:
    return Unsealer({key.id: key.secret for key in keys}.get)


def a_batch(*bodies: bytes, base: int = 7):
    builder = BatchBuilder()
    for body in bodies:
        builder.add(1, 1_700_000_000_000, b"exchange", b"routing.key", b"header", body)
    batch = builder.seal(base)
    batch.set_checksum()
    return batch


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(0, 2**40))
def test_what_is_sealed_comes_back(contents, base):
    batch = a_batch(*contents, base=base)
    sealed = Sealer(KEY).seal(batch)
    verify(sealed)
    assert (sealed.base_offset, sealed.count) == (base, len(contents))
    assert (sealed.first_time, sealed.features) == (batch.first_time, batch.features)
    assert sealed.attributes == batch.attributes | BatchAttribute.ENCRYPTED
    opened = unsealer(KEY).open(sealed)
    assert list(opened.records()) == list(batch.records())
    assert opened.attributes == batch.attributes


def test_nothing_of_the_records_can_be_read():
    sealed = bytes(Sealer(KEY).seal(a_batch(b"the body")))
    for secret in (b"the body", b"routing.key", b"exchange", b"header"):
        assert secret not in sealed


def test_a_batch_that_is_not_sealed_is_handed_on_as_it_is():
    batch = a_batch(b"plain")
    assert unsealer().open(batch) is batch


def test_the_same_batch_is_sealed_differently_each_time():
    batch, sealer = a_batch(b"body"), Sealer(KEY)
    sealed = [bytes(each.seal(batch)) for each in (sealer, sealer, Sealer(KEY))]
    nonces = {each[72:100] for each in sealed}
    assert len(nonces) == 3
    assert len({each[100:] for each in sealed}) == 3
    assert sealed[0][72:88] == sealed[1][72:88] != sealed[2][72:88]  # a salt for each segment


def test_whoever_changes_a_byte_and_the_checksum_is_found_out():
    batch = Sealer(KEY).seal(a_batch(b"body one", b"body two"))
    good, opener = bytes(batch), unsealer(KEY)
    for position in range(len(good)):
        if 16 <= position < 20:
            continue  # the checksum itself: whoever reads the file compares it
        changed = bytearray(good)
        changed[position] ^= 1
        try:
            parsed = type(batch).parse(changed)
            parsed.set_checksum()
            opened = opener.open(parsed)
        except (CorruptBatchError, MissingKeyError):
            continue
        # Without its attribute it passes for a plain batch of records that make no sense.
        assert position == 20
        with pytest.raises(CorruptBatchError):
            list(opened.records())


def test_another_key_opens_nothing():
    sealed = Sealer(KEY).seal(a_batch(b"body"))
    with pytest.raises(CorruptBatchError, match=r"offset 7 is not what was written"):
        unsealer(DataKey(KEY.id, bytes([1]) * 32)).open(sealed)
    with pytest.raises(MissingKeyError, match=r"0000000000001234.*restore keyring\.json"):
        unsealer().open(sealed)


def test_a_key_never_shows():
    assert "secret" not in repr(DataKey(1, b"secret" * 5))


# In a log


async def sealed_log(files=None, durability=Durability.OS):
    """A cleanly closed log over several segments, two records in each batch, and its keyring."""
    files, state = files or FaultyFileSystem(), MemoryStateStore()
    keyring = encrypted_keyring(files, DATA)
    async with store_at(DATA, files, state, keyring, **LIMITS) as store:
        log = open_log(store, durability)
        for i in range(0, 60, 2):
            put(log, b"%03d" % i * 20, b"%03d" % (i + 1) * 20)
    paths = sorted(path for path in files.files if path.suffix == ".log")
    return files, state, keyring, paths


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("cached", [0, 1 << 20])
async def test_an_encrypted_log_is_read_and_no_file_tells_what_it_holds(
    tmp_path, durability, cached
):
    files = RealFileSystem()
    keyring = encrypted_keyring(files, tmp_path)
    async with store_at(tmp_path, keyring=keyring, tail_cache_bytes_max=cached) as store:
        log = open_log(store, durability)
        for i in range(20):
            put(log, b"body %d of many" % i)
        await eventually(lambda: log.committed == 20)
        expected = {i: b"body %d of many" % i for i in range(20)}
        assert await bodies(log) == expected
        log.settle([(2, 5)])
        log.write_settlements()
        raw = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert (len(raw) > 1000) is (durability is not Durability.NONE or not cached)
        for secret in (b"of many", b"header"):
            assert secret not in raw
    if durability is not Durability.NONE:
        async with store_at(tmp_path, keyring=make_keyring(files, tmp_path)) as store:
            assert await bodies(open_log(store)) == expected


async def test_recovery_needs_no_key():
    files, _, _, _ = await sealed_log()
    async with store_at(DATA, files.lose_process(), keyring=make_keyring(files, DATA)) as store:
        log = open_log(store)
        assert log.unclean
        assert log.end == 60
    locked = make_keyring(files, DATA, master=None)
    locked.keys.clear()  # a vhost that is encrypted no more, and whose key nobody has
    async with store_at(DATA, files, keyring=locked, **LIMITS) as store:
        log = open_log(store)
        assert log.end == 60
        with pytest.raises(MissingKeyError):
            await get(log, 0)
        assert await log.offset_at(1_700_000_000_000) == 0


async def test_every_byte_of_a_sealed_segment_flipped_with_a_checksum_that_fits():
    files, state, _, paths = await sealed_log()
    path = paths[1]
    entries = [e for e in dump_segment(files, path) if e.batch is not None and e.batch.count]
    entry = entries[1]
    for at in range(64, entry.batch.size, 7):
        after, marks = files.lose_process(), MemoryStateStore()
        marks.write(state.scan(b""), durable=True)
        damaged = bytearray(bytes(entry.batch))
        damaged[at] ^= 0xFF
        damaged[16:20] = crc32c(damaged[20:]).to_bytes(4, "little")
        place = slice(entry.position, entry.position + entry.batch.size)
        after.files[path].cached[place] = damaged
        store = make_store(DATA, after, marks, make_keyring(after, DATA), **LIMITS)
        log = open_log(store)
        lost = range(entry.batch.base_offset, entry.batch.stop_offset)
        if at < 72:  # the key's id: another key is asked for, which may come back
            with pytest.raises(MissingKeyError):
                await get(log, lost[0])
            assert not kept_bytes(after)
        else:
            found = await read_all(log)
            assert set(range(60)) - set(found) == set(lost), at
            assert kept_bytes(after) == [damaged], at
        abandon(store)


async def test_a_missing_key_stops_at_its_own_batches():
    files, state, keyring, _ = await sealed_log()
    (first,) = keyring.of_vhost("/")
    async with store_at(DATA, files, state, keyring, **LIMITS) as store:
        log = open_log(store)
        keyring.add("/", 0)
        store.use_key_of("/")
        put(log, b"under the second key")
        keyring.remove([first.id])
    state = MemoryStateStore()
    async with store_at(DATA, files, state, make_keyring(files, DATA), **LIMITS) as store:
        log = open_log(store)
        assert await bodies(log, 60) == {60: b"under the second key"}
        with pytest.raises(MissingKeyError):
            await get(log, 59)


async def test_a_segment_has_one_key_and_its_first_bytes_tell_it(tmp_path):
    files = RealFileSystem()
    keyring = encrypted_keyring(files, tmp_path)

    def heads(log):
        paths = sorted(log.directory.glob("*.log"))
        return [key_id_of(path.read_bytes()[:HEAD_BYTES]) for path in paths]

    first = keyring.active("/").id
    async with store_at(tmp_path, keyring=keyring) as store:
        log = open_log(store)
        put(log, b"one")
        second = keyring.add("/", 0).id
        store.use_key_of("/")
        put(log, b"two")
        keyring.retire("/")
        store.use_key_of("/")
        put(log, b"three")
        assert heads(log) == [first, second, 0]
    async with store_at(tmp_path, keyring=keyring) as store:
        log = open_log(store)
        put(log, b"four")
        assert heads(log) == [first, second, 0]
    third = keyring.add("/", 0).id
    async with store_at(tmp_path, keyring=keyring) as store:
        log = open_log(store)
        put(log, b"five")
        assert heads(log) == [first, second, 0, third]
    async with store_at(tmp_path, keyring=keyring) as store:
        log = open_log(store)
        put(log, b"six")
        assert heads(log) == [first, second, 0, third]
        numbers = [b"one", b"two", b"three", b"four", b"five", b"six"]
        assert await bodies(log) == dict(enumerate(numbers))


@pytest.mark.parametrize("committed", [True, False])
async def test_what_a_transaction_holds_is_sealed_and_recovered_without_a_key(tmp_path, committed):
    files = RealFileSystem()
    keyring, state = encrypted_keyring(files, tmp_path), MemoryStateStore()
    store = make_store(tmp_path, state=state, keyring=keyring, tail_cache_bytes_max=0)
    log = open_log(store)
    put(log, b"before")
    records = BatchBuilder()
    records.add(1, 1_700_000_000_000, b"x", b"key", b"header", b"within it")
    log.prepare(7, records, [(0, 1)], lambda error: None)
    if committed:
        log.resolve(7, committed=True)
        log.write_settlements()
    abandon(store)
    raw = b"".join(path.read_bytes() for path in tmp_path.rglob("*.log"))
    assert b"within it" not in raw
    async with store_at(tmp_path, state=state, keyring=make_keyring(files, tmp_path)) as store:
        log = open_log(store)
        assert (1 in log.settled, 0 in log.settled) == (not committed, committed)
        if committed:
            assert await bodies(log, 1) == {1: b"within it"}


async def test_another_vhosts_logs_stay_as_they_are(tmp_path):
    keyring = encrypted_keyring(RealFileSystem(), tmp_path, "secret")
    async with store_at(tmp_path, keyring=keyring, tail_cache_bytes_max=0) as store:
        plain = open_log(store)
        sealed = store.open("secret", "orders", "i1", 0, Durability.OS)
        put(plain, b"for all to see")
        put(sealed, b"for nobody")
        store.use_key_of("secret")
        put(plain, b"once more")
        assert b"for all to see" in b"".join(p.read_bytes() for p in plain.directory.iterdir())
        assert len(list(plain.directory.glob("*.log"))) == 1
        assert b"nobody" not in b"".join(p.read_bytes() for p in sealed.directory.iterdir())


async def test_a_flush_that_fails_is_written_anew_under_another_nonce():
    files = FaultyFileSystem()
    keyring = encrypted_keyring(files, DATA)
    async with store_at(DATA, files, keyring=keyring, tail_cache_bytes_max=0) as store:
        log = open_log(store, Durability.FSYNC)
        put(log, b"first")
        await eventually(lambda: log.committed == 1)
        files.fail_at, files.error = files.calls + 2, 5  # the write, then its flush
        put(log, b"second")
        await eventually(lambda: log.committed == 2)
        assert await bodies(log) == {0: b"first", 1: b"second"}
    written = b"".join(bytes(c.cached) for p, c in files.files.items() if p.suffix == ".log")
    assert b"second" not in written


def test_a_salt_and_a_nonce_are_drawn_for_each():
    drawn: list[int] = []
    foretold = Foretold()

    def random_bytes(size):
        drawn.append(size)
        return foretold(size)

    sealer = Sealer(KEY, random_bytes)
    sealer.seal(a_batch(b"a"))
    sealer.seal(a_batch(b"b"))
    assert drawn == [16, 12, 12]
