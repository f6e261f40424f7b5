"""Contract of every StateStore, whatever it is made of."""

import mmap
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.errors import StorageError
from leveret.storage import state as state_module
from leveret.storage.state import LmdbStateStore, MemoryStateStore
from tests.support.examples import examples


def refuse(text):
    raise AssertionError(text)


@pytest.fixture(params=["memory", "lmdb"])
def make(request, tmp_path):
    """A function that opens the store; the one on disk keeps what was written."""
    if request.param == "memory":
        kept = MemoryStateStore()
        return lambda: kept
    return lambda: LmdbStateStore(tmp_path / "state.lmdb", refuse)


def test_get_write_delete(make):
    store = make()
    assert store.get(b"a") is None
    store.write([(b"a", b"1"), (b"b", b"2")], durable=True)
    store.write([(b"a", None), (b"b", b"3"), (b"gone", None)], durable=False)
    assert (store.get(b"a"), store.get(b"b")) == (None, b"3")
    store.close()


def test_the_last_change_of_a_key_counts(make):
    store = make()
    store.write([(b"a", b"1"), (b"a", None), (b"a", b"2")], durable=True)
    assert store.get(b"a") == b"2"
    store.write([(b"a", None)], durable=True)
    assert store.scan(b"") == []
    store.close()


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=3),
            st.one_of(st.none(), st.binary(max_size=5)),
            st.booleans(),
        ),
        max_size=30,
    ),
    st.binary(max_size=2),
)
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_scan_is_ordered_and_sees_every_write(tmp_path_factory, kind, changes, prefix):
    path = tmp_path_factory.mktemp("state") / "state.lmdb"
    store = MemoryStateStore() if kind == "memory" else LmdbStateStore(path, refuse)
    model = {}
    for key, value, durable in changes:
        store.write([(key, value)], durable=durable)
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value
    found = [(key, model[key]) for key in sorted(model) if key.startswith(prefix)]
    assert list(store.scan(prefix)) == found
    store.close()


def test_what_was_written_is_there_after_a_close(make):
    store = make()
    store.write([(b"durable", b"1")], durable=True)
    store.write([(b"waiting", b"2")], durable=False)
    store.close()
    store = make()
    assert list(store.scan(b"")) == [(b"durable", b"1"), (b"waiting", b"2")]
    store.close()


def test_the_map_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(state_module, "MAP_BYTES_FIRST", 64 * 1024)
    store = LmdbStateStore(tmp_path / "state.lmdb", refuse)
    for i in range(40):
        store.write([(b"%02d" % i, b"x" * 20_000)], durable=True)
    assert len(store.scan(b"")) == 40
    store.close()
    store = LmdbStateStore(tmp_path / "state.lmdb", refuse)
    assert store.get(b"39") == b"x" * 20_000
    store.close()


def test_a_damaged_environment_is_set_aside(tmp_path):
    path = tmp_path / "state.lmdb"
    path.mkdir()
    (path / "data.mdb").write_bytes(b"nonsense" * 2000)
    warnings = []
    store = LmdbStateStore(path, warnings.append)
    store.write([(b"a", b"1")], durable=True)
    store.close()
    assert (tmp_path / "state.lmdb.damaged-1" / "data.mdb").read_bytes().startswith(b"nonsense")
    assert "quarantined" in warnings[0]


def fill(path):
    store = LmdbStateStore(path, refuse)
    store.write([(b"key %03d" % number, bytes(500)) for number in range(200)], durable=True)
    store.close()
    return path / "data.mdb"


@pytest.mark.usefixtures("processes")
def test_an_environment_that_was_cut_is_set_aside_and_does_not_kill(tmp_path):
    """In a process of its own: what is read behind the end of a mapped file ends it."""
    data = fill(tmp_path / "state.lmdb")
    os.truncate(data, 3 * mmap.PAGESIZE)
    program = (
        "import sys; from pathlib import Path; from leveret.storage.state import LmdbStateStore;"
        "LmdbStateStore(Path(sys.argv[1]), print).close()"
    )
    command = [sys.executable, "-c", program, str(data.parent)]
    opened = subprocess.run(command, capture_output=True, text=True, check=False)
    assert opened.returncode == 0, opened
    assert "quarantined" in opened.stdout


def test_damage_that_is_met_later_is_an_error_now_and_set_aside_next_time(tmp_path, monkeypatch):
    data = fill(tmp_path / "state.lmdb")
    with data.open("r+b") as file:
        file.seek(2 * mmap.PAGESIZE)
        file.write(bytes(data.stat().st_size - 2 * mmap.PAGESIZE))
    with monkeypatch.context() as patched:
        patched.setattr(LmdbStateStore, "_check", lambda *_: None)  # as if it were far behind
        store = LmdbStateStore(data.parent, refuse)
    for ask in (
        lambda: store.get(b"key 001"),
        lambda: store.scan(b"key"),
        lambda: store.range(b"key", b"l", 9),
        lambda: store.keys(b"key", b"l"),
        lambda: store.write([(b"key 001", b"x")], durable=True),
    ):
        with pytest.raises(StorageError, match="start the node again"):
            ask()
    with pytest.raises(StorageError):
        store.close()
    warnings = []
    store = LmdbStateStore(data.parent, warnings.append)
    assert "quarantined" in warnings[0]
    assert store.scan(b"") == []
    store.close()


def test_a_path_that_cannot_be_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        LmdbStateStore(tmp_path / "file" / "state.lmdb", refuse)


def test_threads_write_side_by_side(tmp_path):
    store = LmdbStateStore(tmp_path / "state.lmdb", refuse)

    def work(name: int) -> None:
        for i in range(20):
            store.write([(b"%d-%02d" % (name, i), b"x")], durable=i % 5 == 0)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.scan(b"")) == 80
    store.close()


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=2),
            st.one_of(st.none(), st.binary(max_size=5)),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.binary(max_size=2),
    st.binary(max_size=2),
    st.integers(0, 10),
)
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_range_is_ordered_and_sees_every_write(
    tmp_path_factory, kind, changes, first, stop, count_max
):
    path = tmp_path_factory.mktemp("state") / "state.lmdb"
    store = MemoryStateStore() if kind == "memory" else LmdbStateStore(path, refuse)
    model = {}
    for key, value, durable in changes:
        store.write([(key, value)], durable=durable)
        model[key] = value
    found = sorted(
        (key, value) for key, value in model.items() if value is not None and first <= key < stop
    )
    assert list(store.range(first, stop, count_max)) == found[:count_max]
    assert list(store.keys(first, stop)) == [key for key, _ in found]
    store.close()


async def test_many_are_written_behind_and_fetched(make):
    store = make()
    store.write([(b"000", b"waits")], durable=False)
    changes = [(b"%03d" % number, b"x" * number) for number in range(500, 0, -1)]
    await store.write_behind([*changes, (b"500", None)])
    assert await store.fetch(b"000", b"003", 2) == [(b"000", b"waits"), (b"001", b"x")]
    assert len(await store.fetch(b"", b"9", 1000)) == 500
    store.close()
    store = make()
    assert len(store.keys(b"", b"9")) == 500
    store.close()
