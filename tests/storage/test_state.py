"""The state store beyond its contract: damage."""

import shutil

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
