"""The keyring: keys survive, wrapped, whatever happens while they change."""

import json
from pathlib import Path

import pytest

from leveret.errors import StorageError
from leveret.storage.files import RealFileSystem
from leveret.storage.keyring import Keyring, KeyState
from leveret.storage.master_key import (
    MasterKeyError,
    generate_master_key_file,
    read_master_key,
)
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.keys import MASTER, NOW_MS, OTHER, Foretold, make_keyring

DATA = Path("/data")
FILE = DATA / "keyring.json"


def empty() -> FaultyFileSystem:
    files = FaultyFileSystem()
    files.make_directory(DATA)
    return files


def test_no_keyring_means_nothing_is_encrypted():
    keyring = make_keyring(empty(), DATA, master=None)
    assert keyring.active("/") is None
    keyring.require_master()


def test_keys_come_back_and_are_not_in_the_file():
    files = empty()
    keyring = make_keyring(files, DATA)
    first = keyring.add("/", NOW_MS)
    second = keyring.add("/", NOW_MS + 1)
    other = keyring.add("other", NOW_MS)
    assert len({first.id, second.id, other.id, 0}) == 4
    secret = keyring.active("/").secret
    assert secret not in bytes(files.files[FILE].cached)
    again = make_keyring(files, DATA)
    assert again.active("/") == keyring.active("/")
    assert again.active("/").id == second.id
    assert [key.state for key in again.of_vhost("/")] == [KeyState.RETIRED, KeyState.ACTIVE]
    assert again.vhosts == ["/", "other"]


def test_a_vhost_that_is_retired_has_no_active_key():
    files = empty()
    keyring = make_keyring(files, DATA)
    key = keyring.add("/", NOW_MS)
    keyring.retire("/")
    assert make_keyring(files, DATA).active("/") is None
    keyring.remove([key.id])
    assert make_keyring(files, DATA, master=OTHER).keys == []


def test_an_active_key_is_never_removed():
    keyring = make_keyring(empty(), DATA)
    key = keyring.add("/", NOW_MS)
    keyring.remove([key.id])
    assert keyring.active("/").id == key.id


def test_without_a_master_key_nothing_is_made_and_nothing_is_opened():
    files = empty()
    with pytest.raises(MasterKeyError, match="no master key"):
        make_keyring(files, DATA, master=None).add("/", NOW_MS)
    make_keyring(files, DATA).add("/", NOW_MS)
    locked = make_keyring(files, DATA, master=None)
    assert len(locked.keys) == 1
    with pytest.raises(MasterKeyError, match=r"virtual host '/' is encrypted.*encryption_key_file"):
        locked.require_master()
    with pytest.raises(MasterKeyError):
        locked.active("/")
    with pytest.raises(MasterKeyError):
        locked.rewrap(OTHER)


def test_another_master_key_is_told_from_damage():
    files = empty()
    make_keyring(files, DATA).add("/", NOW_MS)
    with pytest.raises(MasterKeyError, match=OTHER.fingerprint):
        make_keyring(files, DATA, master=OTHER)


def test_the_master_key_is_replaced():
    files = empty()
    keyring = make_keyring(files, DATA)
    keyring.add("/", NOW_MS)
    keyring.rewrap(OTHER)
    keyring.add("other", NOW_MS)
    again = make_keyring(files, DATA, master=OTHER)
    assert again.active("/") == keyring.active("/")
    with pytest.raises(MasterKeyError):
        make_keyring(files, DATA)


def test_a_wrapped_key_cannot_be_passed_off_as_another_vhosts():
    files = empty()
    make_keyring(files, DATA).add("/", NOW_MS)
    document = json.loads(bytes(files.files[FILE].cached))
    document["keys"][0]["vhost"] = "other"
    files.files[FILE].cached[:] = json.dumps(document).encode()
    with pytest.raises(StorageError, match=r"cannot be unwrapped.*restore it"):
        make_keyring(files, DATA)


def one_key(**changed):
    key = {"id": "1", "vhost": "/", "created_ms": 1, "state": "active", "wrapped": ""} | changed
    return json.dumps({"version": 1, "master": "", "keys": [key]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"version": 2, "master": "", "keys": []}',
        b'{"version": 1, "master": "", "keys": [{}]}',
        b'{"version": 1, "master": "", "keys": 7}',
        b'{"version": 1, "master": "", "keys": [{"id": "zz"}]}',
        *(one_key(id=key_id, state=state) for key_id, state in (("0", "active"), ("1", "odd"))),
        one_key(vhost=7),
        one_key(created_ms="1"),
        one_key(wrapped="!"),
        b"\xff\xfe",
    ],
)
def test_a_damaged_keyring_is_refused_with_what_to_do(content):
    files = empty()
    make_keyring(files, DATA).add("/", NOW_MS)
    files.files[FILE].cached[:] = content
    with pytest.raises(StorageError, match=r"is damaged .*: restore it from a backup"):
        make_keyring(files, DATA)


CHANGES = {
    "rotate": lambda keyring: keyring.add("/", NOW_MS),
    "disable": lambda keyring: keyring.retire("/"),
    "rotate master": lambda keyring: keyring.rewrap(OTHER),
    "remove": lambda keyring: keyring.remove([keyring.keys[0].id]),
}


def two_keys():
    files = empty()
    keyring = make_keyring(files, DATA)
    keyring.add("/", NOW_MS)
    keyring.add("/", NOW_MS)
    return files, keyring


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_dies_anywhere_leaves_the_old_keys_or_the_new_ones(change):
    _, keyring = two_keys()
    before = secrets(keyring)
    change(keyring)
    after = secrets(keyring)
    refusals = 0
    for fail_at in range(1, 10):
        for power_cut in (False, True):
            files, keyring = two_keys()
            files.fail_at = files.calls + fail_at
            try:
                change(keyring)
                allowed = [after]
            except StorageError:
                refusals += 1
                assert secrets(keyring) == before
                allowed = [before, after]
            found = reopened(files.lose_machine() if power_cut else files.lose_process())
            assert found in allowed, (fail_at, power_cut)
    assert refusals >= 8


def secrets(keyring: Keyring) -> list[object]:
    return [(key.id, key.state, keyring._secret(key.id)) for key in keyring.keys]


def reopened(files) -> list[object]:
    try:
        return secrets(make_keyring(files, DATA))
    except MasterKeyError:
        return secrets(make_keyring(files, DATA, master=OTHER))


def test_an_id_that_is_taken_or_zero_is_drawn_again():
    draws = iter([bytes(8), b"\1" + bytes(7)])
    foretold = Foretold()
    keyring = make_keyring(
        empty(), DATA, random_bytes=lambda size: next(draws) if size == 8 else foretold(size)
    )
    assert keyring.add("/", NOW_MS).id == 1


# The master key


def test_a_generated_key_is_read_and_only_its_owner_may(tmp_path):
    file = tmp_path / "key"
    made = generate_master_key_file(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_master_key(file, "").secret == made.secret
    with pytest.raises(MasterKeyError, match="File exists"):
        generate_master_key_file(file)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o622])
def test_a_file_that_others_may_read_is_refused(tmp_path, mode):
    file = tmp_path / "key"
    generate_master_key_file(file)
    file.chmod(mode)
    with pytest.raises(MasterKeyError, match=f"{mode:04o}.*chmod 600"):
        read_master_key(file, "")


def test_a_key_comes_from_text_too():
    assert read_master_key(None, MASTER.secret.hex()).secret == MASTER.secret
    assert read_master_key(None, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").secret
    assert read_master_key(None, "") is None


@pytest.mark.parametrize("text", ["short", "A" * 43, "zz" * 32, "é" * 44, "AAAA" * 20])
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path, text):
    with pytest.raises(MasterKeyError, match="holds no master key") as refusal:
        read_master_key(None, text)
    assert text not in str(refusal.value)
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text(text)
    with pytest.raises(MasterKeyError, match="holds no master key"):
        read_master_key(file, "")


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(MasterKeyError, match="No such file"):
        read_master_key(tmp_path / "none", "")
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_bytes(b"A" * 5000)
    with pytest.raises(MasterKeyError, match="holds no master key"):
        read_master_key(file, "")


def test_no_key_shows_in_a_representation(tmp_path):
    assert "secret" not in repr(MASTER)
    assert repr(MASTER.secret) not in repr(MASTER)
    keyring = Keyring(RealFileSystem(), tmp_path, MASTER)
    keyring.add("/", NOW_MS)
    assert "secret" not in repr(keyring.active("/"))
