"""Reading of one log's batches from its files: from the page cache, or waiting in a thread."""

from __future__ import annotations

import errno
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError, NewerFormatError, StorageError
from leveret.ports.records import HEADER_BYTES, Batch, BatchAttribute
from leveret.ports.replication import LogPlace, PlaceGoneError, RawBatches
from leveret.storage.batch_walk import whole_batches
from leveret.storage.encryption import MissingKeyError
from leveret.storage.files import read_exactly, storage_error
from leveret.storage.scan import FRONT, batch_bytes, refuse, verify
from leveret.storage.times import TimeSearch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor
    from typing import TypeAlias

    from leveret.storage.files import FileSystem
    from leveret.storage.index import SparseIndex
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments

    Unseal: TypeAlias = Callable[[Batch], Batch]

__all__ = ["LogReader", "OpenFiles"]

WINDOW_BYTES_MIN = 64 * 1024  # one read: below this the call costs more than the bytes
# A longer batch is read and checked in a thread, even if the page cache has it: a large message
# would hold the event loop for milliseconds.
ON_LOOP_BYTES_MAX = 1024 * 1024
CURSORS_MAX = 32  # places remembered per log: as many consumers read it at once without the index


@dataclass(frozen=True, slots=True)
class Request:
    """Batches with records in [offset, stop), from bytes [position, limit) of a file.

    `begin` is the offset at `position` where each batch must follow the one before, else None. In
    front of a compacted batch offsets may be missing.
    `unseal` decrypts. It raises CorruptBatchError, MissingKeyError.
    """

    begin: int | None
    position: int
    limit: int
    offset: int
    stop: int
    bytes_max: int
    unseal: Unseal


CHANCES_MAX = 8  # logs that are written to and looked at in vain before one more stays open


class OpenFiles:
    """Open files of all logs: sealed segments that were read, and last segments.

    The most recently read `count_max` sealed ones, and the last segments of `written_max` logs; of
    these more for a moment, where all are being flushed.
    """

    def __init__(self, files: FileSystem, count_max: int, written_max: int) -> None:
        self._files = files
        self._count_max = count_max
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self._written_max = written_max
        self._written: OrderedDict[Segments, int] = OrderedDict()  # their positions, when looked at
        self.is_crowded = False  # whether too many last segments are open

    def use(self, segment: Segment) -> None:
        """Note that a sealed segment was read; close the least recently read one if too many."""
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        if len(self._segments) > self._count_max:
            oldest, _ = self._segments.popitem(last=False)
            oldest.release(self._files)
            oldest.index = None

    def forget(self, segment: Segment) -> None:
        """Drop a segment that is removed or whose log is closed."""
        self._segments.pop(segment, None)

    def opened(self, segments: Segments) -> None:
        """Note that a log's last segment was opened; an idle log's may be closed."""
        self._written[segments] = segments.position
        self._written.move_to_end(segments)
        self.shrink()

    def shrink(self) -> None:
        """Close idle last segments if too many are open; call it when some may have become idle.

        The one opened last stays: it is about to be used.
        """
        excess = len(self._written) - self._written_max
        if excess > 0:
            for _ in range(min(excess + CHANCES_MAX, len(self._written) - 1)):
                if len(self._written) <= self._written_max:
                    break
                self._close_or_keep()
        self.is_crowded = len(self._written) > self._written_max

    def _close_or_keep(self) -> None:
        """Close the last segment that was checked longest ago, if it was not written since."""
        segments, position = self._written.popitem(last=False)
        if segments.position != position or not segments.rest():
            self._written[segments] = segments.position

    def closed(self, segments: Segments) -> None:
        """Drop the last segment of a log that is closed or deleted."""
        self._written.pop(segments, None)


class LogReader:
    """Finds offsets in a log's segments; remembers where sequential readers go on."""

    __slots__ = (
        "_cursors",
        "_files",
        "_loop",
        "_open_files",
        "_pool",
        "_segments",
        "_unseal",
        "gapless",
    )

    def __init__(
        self,
        files: FileSystem,
        segments: Segments,
        open_files: OpenFiles,
        loop: asyncio.AbstractEventLoop,
        pool: ThreadPoolExecutor,
        *,
        gapless: bool,
        unseal: Unseal,
    ) -> None:
        """`gapless`: whether each batch of the log begins where the one before it ends.

        `unseal` returns a batch decrypted, or as it is if it was not encrypted.
        """
        self._unseal = unseal
        self.gapless = gapless
        self._files = files
        self._segments = segments
        self._open_files = open_files
        self._loop = loop
        self._pool = pool
        self._cursors: OrderedDict[int, tuple[Segment, int]] = OrderedDict()

    def read(self, offset: int, stop: int, bytes_max: int) -> list[Batch] | None:
        """Return batches from the page cache; None if a device would have to be read.

        Raises CorruptBatchError, StorageError.
        """
        segment = self._segment(offset)
        place = self._place(segment, offset)
        if segment.handle is None or place is None:
            return None
        request = self._request(segment, place, offset, stop, bytes_max)
        try:
            batches, position = walk(self._files, segment.handle, request, wait=False)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _reading_error(segment, error) from error
        self._remember(segment, batches, position)
        return batches

    async def fetch(self, offset: int, stop: int, bytes_max: int) -> list[Batch]:
        """Return batches, waiting for the device. Raises CorruptBatchError, StorageError."""
        segment = self._segment(offset)
        place = self._place(segment, offset)
        segment.pins += 1
        try:
            if segment.handle is None or place is None:
                place = await self._open(segment, offset)
            request = self._request(segment, place, offset, stop, bytes_max)
            handle = segment.handle
            assert handle is not None
            batches, behind = await self._loop.run_in_executor(
                self._pool, lambda: walk(self._files, handle, request, wait=True)
            )
        except OSError as error:
            raise _reading_error(segment, error) from error
        finally:
            self._segments.unpin(segment)
        self._remember(segment, batches, behind)
        return batches

    def read_raw(self, place: LogPlace, offset: int, bytes_max: int) -> RawBatches | None:
        """Return batches as they stand in a file (see ports.ReplicatedLog)."""
        segment = self._segment_at(place)
        if segment.handle is None:
            return None
        try:
            read = read_whole(
                *(self._files, segment.handle, place.position, segment.size, offset, bytes_max),
                wait=False,
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise _reading_error(segment, error) from error
        return self._raw_batches(segment, place, *read)

    async def fetch_raw(self, place: LogPlace, offset: int, bytes_max: int) -> RawBatches:
        """Return batches as they stand in a file, waiting for the device. Raises StorageError."""
        segment = self._segment_at(place)
        position, limit = place.position, segment.size
        segment.pins += 1
        try:
            if segment.handle is None:
                await self._open(segment, segment.base)
            handle = segment.handle
            assert handle is not None
            read = await self._loop.run_in_executor(
                self._pool,
                lambda: read_whole(
                    self._files, handle, position, limit, offset, bytes_max, wait=True
                ),
            )
        except OSError as error:
            raise _reading_error(segment, error) from error
        finally:
            self._segments.unpin(segment)
        return self._raw_batches(segment, place, *read)

    def _segment_at(self, place: LogPlace) -> Segment:
        segment = self._segments.find(place.base, place.revision)
        if segment is None or segment.size < place.position:
            raise PlaceGoneError(f"{self._segments.directory} has no {place} any more")
        return segment

    def _raw_batches(
        self, segment: Segment, place: LogPlace, data: bytearray, offset: int
    ) -> RawBatches:
        """Return what was read of a segment; of a sealed one's end, where the next one begins."""
        stop = place.position + len(data)
        after = self._segments.after(segment) if stop == segment.size else None
        if after is not None:
            self._open_files.use(segment)
            return RawBatches(data, LogPlace(after.base, after.revision), offset)
        return RawBatches(data, LogPlace(segment.base, segment.revision, stop), offset)

    async def offset_at(self, time_ms: int, end: int) -> int:
        """Return the first offset at or after a time (see ports.TopicLog). Raises StorageError."""
        segments = list(self._segments.items)
        search = TimeSearch(self._files, segments, time_ms, end, self._unseal)
        for segment in segments:
            segment.pins += 1
        try:
            return await self._loop.run_in_executor(self._pool, search.run)
        except OSError as error:
            raise storage_error("read the log in", self._segments.directory, error) from error
        finally:
            for segment in segments:
                self._segments.unpin(segment)

    def forget(self) -> None:
        """Drop all remembered positions: the log was truncated, or segments were removed."""
        self._cursors.clear()

    def _segment(self, offset: int) -> Segment:
        segment = self._segments.holding(offset)
        if segment is None:
            raise CorruptBatchError(f"no file holds offset {offset} any more")
        return segment

    def _place(self, segment: Segment, offset: int) -> tuple[int, int] | None:
        """Return offset and position to begin at; None if the index is not in memory."""
        found = self._cursors.get(offset)
        if found is not None and found[0] is segment:
            return offset, found[1]
        if segment.index is not None:
            return segment.index.find(offset) or (segment.base, 0)
        return (offset, 0) if offset == segment.base else None

    def _request(
        self, segment: Segment, place: tuple[int, int], offset: int, stop: int, bytes_max: int
    ) -> Request:
        begin, position = place
        return Request(
            begin if self.gapless else None,
            position,
            segment.size,
            offset,
            min(stop, segment.stop),
            bytes_max,
            self._unseal,
        )

    async def _open(self, segment: Segment, offset: int) -> tuple[int, int]:
        """Open the file and load the index in a thread; the results are stored on the loop."""
        handle, index = await self._loop.run_in_executor(self._pool, self._load, segment)
        if segment.handle is None:
            segment.handle = handle
        elif handle != segment.handle:
            self._files.close(handle)
        if segment.index is None:
            segment.index = index
        if segment is self._segments.active:
            self._open_files.opened(self._segments)
        place = self._place(segment, offset)
        assert place is not None
        return place

    def _load(self, segment: Segment) -> tuple[int, SparseIndex]:
        handle = segment.handle
        opened = self._files.open(segment.path) if handle is None else handle
        try:
            return opened, segment.index or segment.load_index(self._files, opened)
        except OSError:
            if handle is None:
                self._files.close(opened)
            raise

    def _remember(self, segment: Segment, batches: list[Batch], position: int) -> None:
        self._cursors[batches[-1].stop_offset] = segment, position
        if len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)
        if segment is not self._segments.active:
            self._open_files.use(segment)


def _reading_error(segment: Segment, error: OSError) -> StorageError:
    """Return the error of a failed read; EIO counts as damage, like wrong bytes."""
    told = storage_error("read", segment.path, error)
    return CorruptBatchError(str(told)) if error.errno == errno.EIO else told


def walk(
    files: FileSystem, handle: int, request: Request, *, wait: bool
) -> tuple[list[Batch], int]:
    """Return the requested batches, checksums verified, and the position behind them.

    Raises CorruptBatchError if not even the first is sound, BlockingIOError if it would have to
    wait and may not, OSError, MissingKeyError, NewerFormatError.
    """
    position, begin = request.position, request.begin
    wanted = max(request.bytes_max, WINDOW_BYTES_MIN)
    while position < request.limit:
        size = min(wanted, request.limit - position)
        window, got = _window(files, handle, position, size, wait=wait)
        taken, used, done, begin = _parse(window, got, request, begin)
        if taken or done:
            return _checked(taken, request), position + used
        if got < size and used == 0:
            if not wait:
                raise BlockingIOError
            raise CorruptBatchError(f"nothing can be read at {position + got}")
        length = batch_bytes(window, used) if got - used >= FRONT.size else 0
        if used == 0 and (length <= got or position + length > request.limit):
            raise CorruptBatchError(f"the batch at {position} does not fit into its file")
        if length > ON_LOOP_BYTES_MAX and not wait:
            raise BlockingIOError
        position += used
        wanted = max(wanted, length)
    return _checked([], request), position


def read_whole(  # noqa: PLR0917  # where to read, and how much
    files: FileSystem,
    handle: int,
    position: int,
    limit: int,
    offset: int,
    bytes_max: int,
    *,
    wait: bool,
) -> tuple[bytearray, int]:
    """Return whole batches from a position on, and the offset behind them; the first has `offset`.

    They have at most `bytes_max` bytes if that is not one. Raises CorruptBatchError if no batch
    begins there, BlockingIOError if it would have to wait and may not, OSError.
    """
    wanted = min(max(bytes_max, HEADER_BYTES), limit - position)
    while wanted:
        window, got = _window(files, handle, position, wanted, wait=wait)
        whole, stop = whole_batches(memoryview(window)[:got], offset)
        if whole:
            del window[whole:]
            return window, stop
        if got < wanted and not wait:
            raise BlockingIOError
        length = batch_bytes(window, 0)
        if length <= got or position + length > limit:
            raise CorruptBatchError(f"the batch at {position} does not fit into its file")
        wanted = length
    return bytearray(), offset


def _window(
    files: FileSystem, handle: int, position: int, size: int, *, wait: bool
) -> tuple[bytearray, int]:
    if wait:
        try:
            window = read_exactly(files, handle, position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # A single read gives what stands before a bad sector, and fails only right at it.
        else:
            return window, len(window)
    window = bytearray(size)
    return window, files.read(handle, window, position, wait=wait)


def _parse(
    window: bytearray, got: int, request: Request, begin: int | None
) -> tuple[list[Batch], int, bool, int | None]:
    """Return the wanted batches of a window, the bytes used, whether to stop, and the next offset.

    `begin` is the offset that must come first, None if unknown.
    """
    taken: list[Batch] = []
    taken_bytes = used = 0
    try:
        while got - used >= FRONT.size:
            length = batch_bytes(window, used)
            if used + length > got:
                break
            batch = Batch.parse(window, used)
            if not batch.is_control and batch.base_offset >= request.stop:
                return taken, used, True, begin
            if begin is not None and not batch.is_control:
                if batch.base_offset != begin and not (
                    batch.attributes & BatchAttribute.COMPACTED and batch.base_offset > begin
                ):
                    refuse(f"offset {batch.base_offset} where {begin} follows")
                begin = batch.stop_offset
            if not batch.is_control and batch.stop_offset > request.offset:
                verify(batch)
                taken.append(request.unseal(batch))
                taken_bytes += length
            used += length
            if taken_bytes >= request.bytes_max and taken:
                break
    except (CorruptBatchError, MissingKeyError, NewerFormatError):
        if not taken:
            raise
    return taken, used, False, begin


def _checked(taken: list[Batch], request: Request) -> list[Batch]:
    if not taken or taken[0].base_offset > request.offset:
        raise CorruptBatchError(
            f"offset {request.offset} is not in its file: it was damaged or cut"
        )
    return taken
