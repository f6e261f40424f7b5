"""Enabling, rotating, disabling: on logs that are open, and with keys that files still need."""

import pytest

from leveret.errors import StorageError
from leveret.storage.files import RealFileSystem
from leveret.storage.key_administration import KeyAdministration
from leveret.storage.key_usage import key_usage
from leveret.storage.keyring import Keyring
from leveret.storage.master_key import MasterKeyError, generate_master_key_file
from tests.storage.harness import bodies, open_log, put, store_at
from tests.storage.keys import MASTER, NOW_MS, make_keyring
from tests.support.waiting import eventually

FILES = RealFileSystem()


def administration(keyring: Keyring, data, store=None) -> KeyAdministration:
    changed = store.use_key_of if store is not None else lambda vhost: None
    return KeyAdministration(keyring, FILES, data, lambda: NOW_MS, changed)


async def states(keys: KeyAdministration, vhost: str = "/") -> list[tuple[object, ...]]:
    rows = await keys.status([vhost])
    return [(row["state"], row["segments"], row["removable"]) for row in rows]


async def test_a_vhost_is_encrypted_rotated_and_plain_again_while_its_logs_are_open(tmp_path):
    keyring = make_keyring(FILES, tmp_path)
    async with store_at(tmp_path, keyring=keyring, tail_cache_bytes_max=0) as store:
        keys = administration(keyring, tmp_path, store)
        log = open_log(store)
        assert await states(keys) == [("plain", 0, False)]
        put(log, b"plain one")
        assert await states(keys) == [("plain", 1, False)]
        assert await keys.enable("/")
        assert not await keys.enable("/")
        put(log, b"sealed two")
        assert await states(keys) == [("active", 1, False), ("plain", 1, False)]
        key_id = await keys.rotate("/")
        put(log, b"sealed three")
        rows = await keys.status(["/"])
        assert [(row["state"], row["segments"]) for row in rows] == [
            ("retired", 1),
            ("active", 1),
            ("plain", 1),
        ]
        assert rows[1]["key"] == key_id
        assert rows[1]["created_ms"] == NOW_MS
        assert await keys.disable("/")
        assert not await keys.disable("/")
        put(log, b"plain four")
        raw = b"".join(path.read_bytes() for path in log.directory.glob("*.log"))
        assert [b"plain" in raw, b"sealed" in raw] == [True, False]
        expected = [b"plain one", b"sealed two", b"sealed three", b"plain four"]
        assert await bodies(log) == dict(enumerate(expected))


async def test_a_key_is_removed_when_no_segment_needs_it_any_more(tmp_path):
    keyring = make_keyring(FILES, tmp_path)
    async with store_at(tmp_path, keyring=keyring, segment_bytes_max=2000) as store:
        keys = administration(keyring, tmp_path, store)
        await keys.enable("/")
        log = open_log(store)
        put(log, b"one")
        await keys.rotate("/")
        assert len(keyring.keys) == 2  # the first is needed
        put(log, b"two")
        log.settle([(0, 1)])
        log.write_settlements()
        await eventually(lambda: len(list(tmp_path.rglob("*.log"))) == 1)
    keys = administration(make_keyring(FILES, tmp_path), tmp_path)
    assert await states(keys) == [("retired", 0, True), ("active", 1, False)]
    await keys.remove_unneeded()
    assert await states(keys) == [("active", 1, False)]


async def test_what_was_set_aside_may_need_any_key(tmp_path):
    keyring = make_keyring(FILES, tmp_path)
    keys = administration(keyring, tmp_path)
    await keys.enable("/")
    async with store_at(tmp_path, keyring=keyring) as store:
        directory = open_log(store).directory
    directory.mkdir(parents=True)
    kept = directory / "00000000000000000000.log.damaged-1"
    kept.write_bytes(b"anything")
    (directory / "00000000000000000007.log").write_bytes(b"short")
    await keys.rotate("/")
    assert await states(keys) == [
        ("retired", 0, False),
        ("active", 0, False),
        ("damaged", 2, False),
    ]
    kept.unlink()
    (directory / "00000000000000000007.log").unlink()
    await keys.rotate("/")
    assert await states(keys) == [("active", 0, False)]


async def test_segments_whose_key_is_missing_are_told(tmp_path):
    keyring = make_keyring(FILES, tmp_path)
    async with store_at(tmp_path, keyring=keyring) as store:
        keys = administration(keyring, tmp_path, store)
        await keys.enable("/")
        put(open_log(store), b"one")
    (tmp_path / "keyring.json").unlink()
    keys = administration(make_keyring(FILES, tmp_path, master=None), tmp_path)
    (row,) = await keys.status(["/"])
    assert (row["state"], row["segments"]) == ("missing", 1)
    assert len(row["key"]) == 16


async def test_what_is_not_encrypted_cannot_be_rotated(tmp_path):
    keys = administration(make_keyring(FILES, tmp_path), tmp_path)
    with pytest.raises(StorageError, match=r"not encrypted: `leveret encryption enable`"):
        await keys.rotate("/")
    with pytest.raises(MasterKeyError, match="no master key"):
        await administration(make_keyring(FILES, tmp_path, master=None), tmp_path).enable("/")


async def test_the_master_key_is_replaced(tmp_path):
    keyring = make_keyring(FILES, tmp_path)
    keys = administration(keyring, tmp_path)
    await keys.enable("/")
    new = generate_master_key_file(tmp_path / "new")
    assert await keys.rotate_master(tmp_path / "new") == new.fingerprint
    assert keyring.master == new
    with pytest.raises(MasterKeyError, match=MASTER.fingerprint):
        make_keyring(FILES, tmp_path)
    assert make_keyring(FILES, tmp_path, master=new).active("/") == keyring.active("/")


async def test_a_segment_that_goes_while_it_is_counted_is_no_error(tmp_path):
    class Vanishing(RealFileSystem):
        def open(self, path, *, create=False):
            path.unlink()
            return super().open(path, create=create)

    directory = tmp_path / "topics" / "%2F" / "orders~~i1" / "0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").write_bytes(b"x" * 100)
    usage = key_usage(Vanishing(), tmp_path, "/")
    assert (dict(usage.segments), usage.unknown) == ({}, 0)
