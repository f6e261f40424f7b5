"""Snapshot of the logs of a running node: hard links, made while the node goes on.

    DATA/snapshot/topics/VHOST/TOPIC/PARTITION/…    links to the segments
    DATA/snapshot/keyring.json                      a link, if there is one
    DATA/snapshot/lengths.json                      how much of each growing file counts

All logs are cut at one instant of the event loop: what was written before is in the snapshot,
nothing that came after it is. So a message that moved from one queue to another is in one of them
at least, and a transaction is there whole or not at all. What is in the snapshot is what a crash of
the process at that instant would have left, and recovers as that does.

Links cost nothing until the node removes a segment; then the snapshot keeps its space. It is
removed by whoever asked for it, by the next snapshot, and at the next start.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import TYPE_CHECKING, TypeAlias

from leveret.errors import StorageError
from leveret.storage.files import storage_error
from leveret.storage.segment import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from leveret.storage.held_files import HeldFiles
    from leveret.storage.segment import Segment
    from leveret.storage.store import FileTopicStore

    Written: TypeAlias = Mapping[Path, tuple[Segment, int] | None]

__all__ = ["LENGTHS", "SNAPSHOT", "Snapshots", "remove_snapshot"]

SNAPSHOT = "snapshot"  # in the data directory
LENGTHS = "lengths.json"  # in the snapshot


def remove_snapshot(data: Path) -> None:
    """Remove an existing snapshot. Raises StorageError."""
    try:
        shutil.rmtree(data / SNAPSHOT)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise storage_error("remove", data / SNAPSHOT, error) from error


class Snapshots:
    """Takes snapshots of `topics`, whose files are `files`; at most one exists at a time."""

    def __init__(self, data: Path, topics: FileTopicStore, files: HeldFiles) -> None:
        self._data = data
        self._topics = topics
        self._files = files
        self._alone = asyncio.Lock()

    async def take(self) -> Path:
        """Return the directory of a new snapshot; an older one is removed. Raises StorageError."""
        if self._alone.locked():
            raise StorageError("another snapshot is being taken: try again when it is done")
        async with self._alone:
            await asyncio.to_thread(remove_snapshot, self._data)
            self._files.hold()
            written = self._topics.begin_snapshot()
            try:
                await asyncio.to_thread(self._link, written)
            except OSError as error:
                raise storage_error("make hard links in", self._data / SNAPSHOT, error) from error
            finally:
                self._topics.end_snapshot()
                await asyncio.to_thread(self._files.release)
        return self._data / SNAPSHOT

    async def release(self) -> None:
        """Remove the snapshot. Raises StorageError."""
        async with self._alone:
            await asyncio.to_thread(remove_snapshot, self._data)

    def _link(self, written: Written) -> None:
        target = self._data / SNAPSHOT
        target.mkdir(mode=0o700)
        keyring = self._data / "keyring.json"
        if keyring.exists():
            os.link(keyring, target / keyring.name)
        lengths: dict[str, int] = {}
        topics = self._data / "topics"
        for directory, cut in written.items():
            if cut is not None and directory.is_relative_to(topics):
                self._link_log(directory, *cut, lengths)
        for directory in self._others(topics, written):
            self._link_other(directory, lengths)
        (target / LENGTHS).write_text(json.dumps(lengths))

    def _link_log(self, directory: Path, last: Segment, size: int, lengths: dict[str, int]) -> None:
        """Link the files of a log as of its end at `size` bytes of segment `last`."""
        relative = directory.relative_to(self._data)
        target = self._data / SNAPSHOT / relative
        target.mkdir(mode=0o750, parents=True)
        place = self._files.place(directory)
        for name in [entry.name for entry in place.iterdir()]:
            if name.endswith(".log.new"):
                continue  # compaction is writing it, and what it is made of is there
            match = NAME.fullmatch(name.partition(".")[0] + ".log")
            at = (int(match[1]), int(match[2] or 0)) if match else None
            if at is not None and at > last.file:
                continue
            if at == last.file:
                if not name.endswith(".log"):
                    continue  # an index of more than counts
                lengths[str(relative / name)] = size
            self._link_file(place, name, directory, target)

    def _link_file(self, place: Path, name: str, directory: Path, target: Path) -> None:
        try:
            os.link(place / name, target / name)
        except FileNotFoundError:  # moved meanwhile, or a draft that has its name now
            moved = self._files.place(directory) / name
            if moved.exists():
                os.link(moved, target / name)

    @staticmethod
    def _others(topics: Path, written: Written) -> list[Path]:
        """Return the logs that were not open then: of idle queues, orphans, and new ones."""
        if not topics.exists():
            return []
        found = []
        for vhost in (path for path in topics.iterdir() if not path.name.startswith(".")):
            found += [path for path in vhost.glob("*/*") if path not in written]
        return found

    def _link_other(self, directory: Path, lengths: dict[str, int]) -> None:
        """Link the files of a log that was not open then, and may be opened at any time."""
        sizes = {path.name: path.stat().st_size for path in directory.glob("*.log")}
        # Not before the sizes were read: what is opened after that has not grown yet.
        opened = self._topics.opened_since
        assert opened is not None, "the snapshot is being taken"
        if directory in opened:
            cut = opened[directory]
            if cut is not None:  # otherwise it is new
                self._link_log(directory, *cut, lengths)
            return
        relative = directory.relative_to(self._data)
        target = self._data / SNAPSHOT / relative
        target.mkdir(mode=0o750, parents=True)
        for path in directory.iterdir():
            if path.is_file():
                self._link_file(directory, path.name, directory, target)
        lengths.update({str(relative / name): size for name, size in sizes.items()})
