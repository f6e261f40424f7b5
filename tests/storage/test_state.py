"""The state store beyond its contract: damage, and changes while it is written."""

import os
import shutil
from pathlib import Path

import pytest

from leveret.storage.state import LmdbStateStore


@pytest.mark.parametrize("deleted", [0, 300])
@pytest.mark.usefixtures("processes")
def test_state_that_was_cut_is_begun_anew_at_once(tmp_path, deleted):
    """A start may not fail because of what the same start can make anew."""
    path = tmp_path / "state.lmdb"
    state = LmdbStateStore(path, lambda _: None)
    state.write([(b"%05d" % number, bytes(200)) for number in range(2000)], durable=True)
    state.write([(b"%05d" % number, None) for number in range(deleted)], durable=True)
    state.close()
    raw = (path / "data.mdb").read_bytes()
    for size in range(0, len(raw), 5 * 4096):
        shutil.rmtree(path)
        path.mkdir()
        (path / "data.mdb").write_bytes(raw[:size])
        warned = []
        again = LmdbStateStore(path, warned.append)
        again.write([(b"%05d" % number, b"new") for number in range(2000)], durable=True)
        assert again.get(b"00700") == b"new"
        again.close()
        for aside in tmp_path.glob("*.damaged-*"):
            shutil.rmtree(aside)


def test_what_changes_while_it_is_written_stays_changed(tmp_path, monkeypatch):
    state = LmdbStateStore(tmp_path / "state.lmdb", lambda _: None)
    commit = state._commit

    def commit_slowly(changes):
        commit(changes)
        state.write([(b"key", b"newer")], durable=False)

    monkeypatch.setattr(state, "_commit", commit_slowly)
    state.write([(b"key", b"new")], durable=True)
    assert state.get(b"key") == b"newer"
    monkeypatch.undo()
    state.close()
    again = LmdbStateStore(tmp_path / "state.lmdb", lambda _: None)
    assert again.get(b"key") == b"newer"
    again.close()


def test_a_program_that_replaces_this_one_has_no_file_of_it_open(tmp_path):
    """Else each time that a node begins anew would leave it one more."""
    state = LmdbStateStore(tmp_path / "state.lmdb", lambda _: None)
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        if entry.exists() and entry.resolve().is_relative_to(tmp_path):
            found.setdefault(entry.resolve().name, set()).add(os.get_inheritable(int(entry.name)))
    state.close()
    assert found == {"data.mdb": {False}, "lock.mdb": {False}}
