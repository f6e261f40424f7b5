"""Ordered key-value state: LMDB on disk, a sorted dictionary for nodes that keep nothing."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import subprocess
import sys
import threading
from bisect import bisect_left, insort
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from heapq import merge
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from leveret.errors import DiskFullError, NewerFormatError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["LmdbStateStore", "MemoryStateStore", "open_read_only"]

MAP_BYTES_FIRST = 64 << 20  # address space, not memory or disk; doubled whenever it is used up
ENTRIES_CHECKED_MAX = 100_000  # when it is opened: some tens of milliseconds
DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
TRIAL = b"trial"  # a key that is written and removed when it is opened
META_PAGES = (0, mmap.PAGESIZE)  # where LMDB writes down what the file is, twice
META = struct.Struct("=16xII")  # behind the page's header: magic and version
META_MAGIC = 0xBEEFC0DE
META_VERSION = 1
DAMAGED = "damaged"  # a file beside LMDB's: what was read is no good, begin anew at the next start
WAITING_COUNT_MAX = 10_000  # changes that wait for a durable write; more are written at once


class MemoryStateStore:
    """StateStore in memory, lost at the end of the process."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None (see ports.StateStore)."""
        return self._values.get(key)

    def write(self, changes: Sequence[tuple[bytes, bytes | None]], *, durable: bool) -> None:  # noqa: ARG002
        """Apply changes (see ports.StateStore)."""
        for key, value in changes:
            known = key in self._values
            if value is None:
                if known:
                    del self._values[key]
                    del self._keys[bisect_left(self._keys, key)]
                continue
            if not known:
                insort(self._keys, key)
            self._values[key] = value

    def scan(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Return the entries with a prefix (see ports.StateStore)."""
        found = []
        for key in self._keys[bisect_left(self._keys, prefix) :]:
            if not key.startswith(prefix):
                break
            found.append((key, self._values[key]))
        return found

    def range(self, first: bytes, stop: bytes, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """Return at most `count_max` entries of a range (see ports.StateStore)."""
        return [(key, self._values[key]) for key in islice(self.keys(first, stop), count_max)]

    def keys(self, first: bytes, stop: bytes) -> Sequence[bytes]:
        """Return the keys of a range (see ports.StateStore)."""
        return self._keys[bisect_left(self._keys, first) : bisect_left(self._keys, stop)]

    async def fetch(
        self, first: bytes, stop: bytes, count_max: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """Return at most `count_max` entries of a range (see ports.StateStore)."""
        return self.range(first, stop, count_max)

    async def write_behind(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Apply changes (see ports.StateStore)."""
        self.write(changes, durable=True)

    def close(self) -> None:
        """Do nothing (see ports.StateStore)."""


def _is_newer(file: Path) -> bool:
    """Whether both meta pages have the same newer version, which damage does not cause."""
    versions = set()
    with suppress(OSError), file.open("rb") as opened:
        for position in META_PAGES:
            opened.seek(position)
            content = opened.read(META.size)
            magic, version = META.unpack(content) if len(content) == META.size else (0, 0)
            versions.add(version if magic == META_MAGIC else 0)
    return len(versions) == 1 and max(versions) > META_VERSION


def _close_on_exec(file: Path) -> None:
    """Have a file closed when another program replaces this one, which LMDB does not see to.

    A node that begins anew would have one more open each time.
    """
    there, opened = file.stat(), []
    with suppress(OSError):  # there is no /proc
        opened = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    for number in opened:
        with suppress(OSError):  # it was closed meanwhile
            if os.path.samestat(os.fstat(number), there):
                os.set_inheritable(number, False)


class LmdbStateStore:
    """StateStore in an LMDB environment. May be called from any thread.

    Writes that need not be durable wait in memory for the next one that must, because LMDB is only
    safe against the machine's death when every commit is flushed; reads see them.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """Open or create. A damaged environment is quarantined and a new one begun.

        Damage that shows later raises StorageError where it is met, and is quarantined by the next
        start. Raises StorageError, NewerFormatError.
        """
        self._path = path
        self._map_bytes = MAP_BYTES_FIRST
        self._waiting: dict[bytes, bytes | None] = {}
        self._writing = threading.Lock()  # one writer at a time; held while LMDB flushes
        self._reading = threading.Lock()  # no reader while the map is resized; held briefly
        self._pool = ThreadPoolExecutor(1, "leveret-state")  # starts its thread when it is used
        try:
            self._environment = self._open()
        except DAMAGE as error:
            if _is_newer(path / "data.mdb"):
                raise NewerFormatError(str(path)) from error
            aside = self._set_aside()
            warn(
                f"{path} is damaged ({error}); it was quarantined as {aside.name} and a new one "
                "begun: queues may deliver again what was settled shortly before the end"
            )
            self._environment = self._open()

    def _open(self) -> lmdb.Environment:
        if (self._path / DAMAGED).exists():
            raise lmdb.CorruptedError("an earlier run has met pages that make no sense")
        environment = self._opened()
        try:
            self._check(environment)
        except BaseException:
            environment.close()
            raise
        return environment

    def _check(self, environment: lmdb.Environment) -> None:
        """Raise one of DAMAGE for what a machine crash, or an incomplete copy, leaves."""
        pages = environment.info()["last_pgno"] + 1
        needed = pages * environment.stat()["psize"]
        # LMDB maps the file: to read behind its end kills the process, while pages of zeros are
        # taken for damage. The last pages of a sound one may never have been written.
        file = self._path / "data.mdb"
        if file.stat().st_size < needed:
            os.truncate(file, needed)
            if not self._survives_use():
                raise lmdb.CorruptedError("its file was cut")
        with environment.begin() as transaction:
            for _ in islice(transaction.cursor(), ENTRIES_CHECKED_MAX):
                pass
        # The list of free pages is in pages, too, which only a write reads.
        with suppress(lmdb.DiskError), environment.begin(write=True) as transaction:
            transaction.put(TRIAL, b"")
            transaction.delete(TRIAL)

    def _survives_use(self) -> bool:
        """Whether another process that uses all of it survives: LMDB aborts at some damage."""
        command = [sys.executable, "-m", "leveret.storage.state_check", str(self._path), "use"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  # ourselves

    def _opened(self) -> lmdb.Environment:
        try:
            self._path.mkdir(mode=0o750, parents=True, exist_ok=True)
            environment = lmdb.open(
                str(self._path), map_size=self._map_bytes, mode=0o640, max_spare_txns=4
            )
            _close_on_exec(self._path / "data.mdb")
            self._map_bytes = max(self._map_bytes, environment.info()["map_size"])
        except DAMAGE:
            raise
        except (lmdb.Error, OSError) as error:
            if _is_newer(self._path / "data.mdb"):
                raise NewerFormatError(str(self._path)) from error
            raise StorageError(
                f"cannot open {self._path}: {error}; check owner and mode"
            ) from error
        return environment

    def _set_aside(self) -> Path:
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        self._path.rename(aside)
        return aside

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        """Open a read transaction. Raises StorageError for damage."""
        try:
            with self._environment.begin() as transaction:
                yield transaction
        except DAMAGE as error:
            raise self._met_damage(error) from error

    def _met_damage(self, error: lmdb.Error) -> StorageError:
        with suppress(OSError):
            (self._path / DAMAGED).touch()
        return StorageError(
            f"{self._path} is damaged ({error}): start the node again, which quarantines it and "
            "makes it anew from the logs"
        )

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None (see ports.StateStore)."""
        with self._reading:
            if key in self._waiting:
                return self._waiting[key]
            with self._reader() as transaction:
                value: bytes | None = transaction.get(key)
                return value

    def scan(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Return the entries with a prefix (see ports.StateStore)."""
        found: dict[bytes, bytes] = {}
        with self._reading:
            with self._reader() as transaction:
                cursor = transaction.cursor()
                if cursor.set_range(prefix):
                    for key, value in cursor:
                        if not key.startswith(prefix):
                            break
                        found[key] = value
            for key, changed in self._waiting.items():
                if not key.startswith(prefix):
                    continue
                if changed is None:
                    found.pop(key, None)
                else:
                    found[key] = changed
        return sorted(found.items())

    def range(self, first: bytes, stop: bytes, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """Return at most `count_max` entries of a range (see ports.StateStore)."""
        with self._reading, self._reader() as transaction:
            cursor = transaction.cursor()
            kept = self._unchanged(cursor.iternext, cursor.set_range(first), stop)
            return list(islice(merge(kept, self._changed(first, stop)), max(count_max, 0)))

    def keys(self, first: bytes, stop: bytes) -> Sequence[bytes]:
        """Return the keys of a range (see ports.StateStore)."""
        with self._reading, self._reader() as transaction:
            found = []
            cursor = transaction.cursor()
            if cursor.set_range(first):
                for key in cursor.iternext(keys=True, values=False):
                    if key >= stop:
                        break
                    if key not in self._waiting:
                        found.append(key)
            changed = [key for key, _ in self._changed(first, stop)]
        return list(merge(found, changed)) if changed else found

    def _unchanged(
        self,
        iterate: Callable[[], Iterator[tuple[bytes, bytes]]],
        found: bool,
        stop: bytes,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield LMDB's entries from the cursor up to `stop`, except those with a waiting change."""
        if not found:
            return
        for key, value in iterate():
            if key >= stop:
                return
            if key not in self._waiting:
                yield key, value

    def _changed(self, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """Return the waiting changes of a range that have a value, ordered by key."""
        return sorted(
            (key, value)
            for key, value in self._waiting.items()
            if value is not None and first <= key < stop
        )

    async def fetch(
        self, first: bytes, stop: bytes, count_max: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """Return the entries of a range, read in a thread (see ports.StateStore)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.range, first, stop, count_max)

    async def write_behind(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Apply changes durably in a thread (see ports.StateStore)."""
        ordered = sorted(dict(changes).items())
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, lambda: self.write(ordered, durable=True))

    def write(self, changes: Sequence[tuple[bytes, bytes | None]], *, durable: bool) -> None:
        """Apply changes (see ports.StateStore). Raises StorageError; they then stay waiting."""
        with self._reading:
            self._waiting.update(changes)
            if not durable and len(self._waiting) < WAITING_COUNT_MAX:
                return
        self._write_waiting()

    def _write_waiting(self) -> None:
        with self._writing:
            with self._reading:
                changes = dict(self._waiting)
            if not changes:
                return
            try:
                self._commit(changes)
            except DAMAGE as error:
                raise self._met_damage(error) from error
            except lmdb.DiskError as error:
                raise DiskFullError(f"cannot write {self._path}: {error}; free space") from error
            except lmdb.Error as error:
                raise StorageError(f"cannot write {self._path}: {error}") from error
            with self._reading:
                for key, value in changes.items():
                    if self._waiting.get(key, b"") is value:
                        del self._waiting[key]

    def _commit(self, changes: dict[bytes, bytes | None]) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in changes.items():
                        if value is None:
                            transaction.delete(key)
                        else:
                            transaction.put(key, value)
            except lmdb.MapFullError:
                with self._reading:
                    self._map_bytes *= 2
                    self._environment.set_mapsize(self._map_bytes)
            else:
                return

    def close(self) -> None:
        """Write the waiting changes and close (see ports.StateStore). Raises StorageError."""
        try:
            self._pool.shutdown()
            self._write_waiting()
        finally:
            self._environment.close()


@contextmanager
def open_read_only(path: Path) -> Iterator[Callable[[bytes], Iterator[tuple[bytes, bytes]]]]:
    """Open an environment that no node uses. Yields a function: all entries with a prefix.

    Nothing is written. Damaged pages may kill the process: check it before, by `check_state`.
    """
    with (
        lmdb.open(str(path), readonly=True, lock=False, create=False) as environment,
        environment.begin() as transaction,
    ):

        def entries(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
            cursor = transaction.cursor()
            if cursor.set_range(prefix):
                yield from takewhile(lambda entry: entry[0].startswith(prefix), cursor)

        yield entries
