"""Reading of a log's stream: its files one behind the other, batches as they lie (see Segments)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from leveret.ports.records import HEADER_BYTES, Batch, BatchAttribute
from leveret.storage.encryption import ATTRIBUTES, ATTRIBUTES_AT
from leveret.storage.files import read_exactly, storage_error
from leveret.storage.scan import FRONT, batch_bytes, refuse, scan

if TYPE_CHECKING:
    from leveret.storage.segment import Segment
    from leveret.storage.segments import Segments
    from leveret.storage.services import LogServices

__all__ = ["LogStreamReader"]

ON_LOOP_BYTES_MAX = 1 << 20  # more is read in a thread, even if the page cache has it


class LogStreamReader:
    """Reads the stream of one log for its followers. Records are decrypted, checksums not checked.

    Raises CorruptBatchError where no batch stands, StorageError.
    """

    def __init__(self, services: LogServices, segments: Segments) -> None:
        self._files = services.files
        self._loop = services.loop
        self._pool = services.pool
        self._unseal = services.keyring.unsealer.open
        self._segments = segments

    async def read(
        self, segment: Segment, at: int, bytes_max: int
    ) -> tuple[bytes | bytearray, int | None]:
        """Return about `bytes_max` bytes from a place on, and the position behind them."""
        left = segment.size - at
        window = await self._window(segment, at, min(max(bytes_max, HEADER_BYTES), left))
        used, is_sealed = whole_batches(window)
        if not used and window:
            needed = batch_bytes(window, 0)
            if not FRONT.size <= needed <= left:
                refuse(f"{segment.path} ends within the batch at {at}")
            window = await self._window(segment, at, needed)
            used, is_sealed = whole_batches(window)
        del window[used:]
        first = segment.stream_first
        after = None if first is None else first + at + used
        return (self._unsealed(window) if is_sealed else window), after

    async def begin(self, offset: int, bytes_max: int) -> tuple[bytes | bytearray, int | None]:
        """Return control batches that tell the state as of `offset`, and what follows from there.

        They are those of the segment with that offset, from its checkpoint on.
        """
        items = self._segments.items
        segment = self._segments.find(offset) or items[0]
        state, at = await self._loop.run_in_executor(
            self._pool, self._find, segment, segment.size, offset
        )
        place = items.index(segment) if segment in items else -1
        if at == segment.size and -1 < place < len(items) - 1:
            segment, at = items[place + 1], 0
        data, after = await self.read(segment, at, bytes_max)
        return state + data, after

    def _find(self, segment: Segment, size: int, offset: int) -> tuple[bytearray, int]:
        """Return the control batches in front of a record, and the record's position.

        A segment that replaced another has just a checkpoint in front, and says where it ends.
        """
        state = bytearray()
        try:
            handle = self._files.open(segment.path)
            try:
                for at, batch in scan(self._files, handle, 0, size):
                    if batch.is_control:
                        state += batch
                    elif batch.stop_offset > offset:
                        return state, at
                return state, size
            finally:
                self._files.close(handle)
        except OSError as error:
            raise storage_error("read", segment.path, error) from error

    async def _window(self, segment: Segment, at: int, size: int) -> bytearray:
        """Return bytes of a file: from the page cache, else waiting for the device."""
        if size <= 0:
            return bytearray()
        try:
            if segment.handle is not None and size <= ON_LOOP_BYTES_MAX:
                window = bytearray(size)
                try:
                    got = self._files.read(segment.handle, window, at, wait=False)
                except BlockingIOError:
                    got = 0
                if got:
                    del window[got:]
                    return window
            return await self._loop.run_in_executor(self._pool, self._load, segment, at, size)
        except OSError as error:
            raise storage_error("read", segment.path, error) from error

    def _load(self, segment: Segment, at: int, size: int) -> bytearray:
        handle = self._files.open(segment.path)
        try:
            return read_exactly(self._files, handle, at, size)
        finally:
            self._files.close(handle)

    def _unsealed(self, window: bytearray) -> bytearray:
        """Return batches decrypted."""
        data, at = bytearray(), 0
        while at < len(window):
            batch = Batch.parse(window, at)
            at += batch.size
            if batch.attributes & BatchAttribute.ENCRYPTED:
                batch = self._unseal(batch)
                batch.set_checksum(crc32c(batch.checked))
            data += batch
        return data


def whole_batches(window: bytearray) -> tuple[int, bool]:
    """Return the bytes that whole batches take at the front, and whether one is encrypted.

    Raises CorruptBatchError.
    """
    at, is_sealed = 0, False
    while len(window) - at >= HEADER_BYTES:
        length = batch_bytes(window, at)
        if at + length > len(window):
            break
        (attributes,) = ATTRIBUTES.unpack_from(window, at + ATTRIBUTES_AT)
        is_sealed = is_sealed or bool(attributes & BatchAttribute.ENCRYPTED)
        at += length
    return at, is_sealed
