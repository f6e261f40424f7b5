"""Compiled writes to real files: what the system refuses or cuts short is noticed."""

import os
import resource
from contextlib import contextmanager

import pytest

from leveret.errors import StorageError
from leveret.storage.files import RealFileSystem
from leveret.storage.segment_writer import UNLOCKED_BYTES_MIN
from tests.storage.harness import bodies, open_log, put, store_at

SIZES = [100, UNLOCKED_BYTES_MIN]  # with and without the interpreter's lock


@contextmanager
def files_end_at(size: int):
    """Have the system write no byte of any file at or behind `size`."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("room", [0, 50])
async def test_a_write_without_room_is_taken_back(tmp_path, size, room):
    async with store_at(tmp_path, tail_cache_bytes_max=0) as store:
        log = open_log(store)
        put(log, b"first")
        segment, position = log.written
        with files_end_at(position + room), pytest.raises(StorageError, match="cannot write to"):
            put(log, b"refused" * size)
        assert (log.end, log.committed) == (1, 1)
        assert log.written == (segment, position)
        assert segment.path.stat().st_size == segment.size == position
        assert put(log, b"second" * size) == 1
        assert await bodies(log) == {0: b"first", 1: b"second" * size}
    async with store_at(tmp_path) as store:
        assert open_log(store).end == 2


@pytest.mark.parametrize("size", SIZES)
async def test_a_write_that_is_cut_short_is_completed(tmp_path, size):
    files, calls = RealFileSystem(), []

    def write_with_room(handle, data, position):
        calls.append(position)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        return os.pwrite(handle, data, position)

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with store_at(tmp_path, files, tail_cache_bytes_max=0) as store:
        log = open_log(store)
        put(log, b"first")
        _, position = log.written
        files.pwrite = write_with_room
        with files_end_at(position + 50):
            put(log, b"second" * size)
        assert calls == [position]
        assert await bodies(log) == {0: b"first", 1: b"second" * size}
    async with store_at(tmp_path) as store:
        assert await bodies(open_log(store)) == {0: b"first", 1: b"second" * size}


async def test_each_batch_passes_through_a_file_system_that_writes_otherwise(tmp_path):
    files, positions = RealFileSystem(), []

    def write(handle, data, position):
        positions.append(position)
        return os.pwrite(handle, data, position)

    files.pwrite = write
    async with store_at(tmp_path, files) as store:
        log = open_log(store)
        put(log, b"first")
        _, second = log.written
        put(log, b"second")
        assert len(positions) == 3, "the segment's checkpoint and two batches"
        assert positions[-1] == second
