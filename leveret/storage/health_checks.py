"""Checks of the files of a data directory: `leveret doctor`.

Reads only, and synchronously: for a process of its own. The directory may belong to a running node;
files that a node has open for writing are then left out, by the parameters.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.check_results import CheckResult, Severity
from leveret.ports.definitions import Definitions, is_internal
from leveret.storage.cluster_file import ClusterFile
from leveret.storage.damage import survey
from leveret.storage.database_checksum import verify_checksum
from leveret.storage.decisions import DECISIONS_INCARNATION, DECISIONS_TOPIC
from leveret.storage.encryption import HEAD_BYTES, key_id_of, key_id_text
from leveret.storage.files import ReadOnlyFiles, RehearsalFiles, read_exactly
from leveret.storage.lineage import (
    DEFINITIONS_LOG,
    has_shared_definitions,
    noted_changes,
    older_than_noted,
)
from leveret.storage.marks import LogMarks, boot_id
from leveret.storage.names import INCARNATION_BYTES_MAX, encode_name, log_key
from leveret.storage.recovery import recover
from leveret.storage.scan import scan
from leveret.storage.schema import MIGRATIONS, TABLES
from leveret.storage.segment import OFFSET_MAX, list_segments
from leveret.storage.sqlite_file import read_only_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from leveret.ports import StateStore
    from leveret.storage.files import FileSystem
    from leveret.storage.segment import Segment

__all__ = [
    "LogCheck",
    "check_cluster_file",
    "check_database",
    "check_definitions_age",
    "check_records",
    "check_records_age",
    "check_set_aside",
    "check_state",
    "has_definitions_in_log",
    "readable",
]

BESIDE_SEGMENTS: Final = (".index", ".index.new", ".doubtful", ".log.new")
DO_RESTORE: Final = "restore the files from a backup, if there is one, before the node starts"
WITHOUT_RECORDS: Final = "no node starts here: users, queues and all others cannot be loaded"


def readable(path: Path, results: Iterator[CheckResult]) -> Iterator[CheckResult]:
    """Yield a check's results, and one more where the system denies access."""
    try:
        yield from results
    except OSError as error:
        subject = path if error.filename is None else Path(os.fsdecode(error.filename))
        why = "its contents could not be checked"
        remedy = "run this as the node's user, and see that it may read all of its directory"
        what = f"cannot be looked at: {error.strerror}"
        yield _error("directory.unreadable", subject, what, why, remedy)


def has_definitions_in_log(data: Path) -> bool:
    """Whether the definitions are those in the log of a cluster, of which leveret.db is a copy.

    That copy may be as old as the node's last reign. Where the file that names the cluster cannot
    be read, there may be one.
    """
    try:
        is_member = ClusterFile(ReadOnlyFiles(), data).state.cluster is not None
    except StorageError:
        return True
    return is_member or has_shared_definitions(data)


def check_cluster_file(data: Path) -> Iterator[CheckResult]:
    """Check that the file by which a node remembers its cluster can be read, if there is one."""
    try:
        ClusterFile(ReadOnlyFiles(), data)
    except StorageError as error:
        why = "no node starts here: what it once acknowledged to its cluster is unknown"
        remedy = "if another node leads, move it away and start this node with `--replace`: it "
        remedy += "copies all anew. If a newer release has written it, start that release instead"
        yield _error("cluster.unreadable", data / "cluster.json", str(error), why, remedy)


def check_database(path: Path, *, deep: bool) -> tuple[list[CheckResult], Definitions]:
    """Return results about the definitions' database, and the definitions as far as readable."""
    definitions, found = Definitions(), []
    remedy = "restore it from a backup; without one, start once with `leveret serve --accept-loss "
    remedy += "definitions`, and import what was exported before: `leveret definitions import FILE`"
    try:
        with closing(_opened(path)) as database:
            found += _check_pages(database, path, deep=deep, why=WITHOUT_RECORDS)
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > len(MIGRATIONS):
                what = f"was written by a newer release (schema {version})"
                newer = "start the release that wrote it, or restore a backup from before it"
                found.append(_error("definitions.version", path, what, WITHOUT_RECORDS, newer))
            else:
                _read_definitions(database, definitions)
    except (sqlite3.Error, ValueError) as error:
        what = f"cannot be read: {error}"
        found.append(_error("definitions.unreadable", path, what, WITHOUT_RECORDS, remedy))
    return found, definitions


def _read_definitions(database: sqlite3.Connection, definitions: Definitions) -> None:
    """Add all definitions, perhaps of an older release: the next start brings them up to date."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    for table in TABLES.values():
        if table.name not in tables:
            continue
        rows = database.execute(f"SELECT * FROM {table.name}")  # noqa: S608  # our own names
        columns = [column for column, *_ in rows.description]
        getattr(definitions, table.name).extend(
            table.definition_of(table.row_in(dict(zip(columns, row, strict=True)))) for row in rows
        )


def check_records(path: Path, *, deep: bool) -> list[CheckResult]:
    """Return results about a SQLite file beside the definitions, if there is one."""
    why = "nothing is written to it any more; messages and definitions are not touched"
    if not path.exists():
        return []
    try:
        with closing(_opened(path)) as database:
            return _check_pages(database, path, deep=deep, why=why)
    except sqlite3.Error as error:
        what, remedy = (
            f"cannot be read: {error}",
            f"move it away: `mv {quote(str(path))} {quote(str(path))}.old`",
        )
        return [CheckResult("records.unreadable", Severity.WARNING, str(path), what, why, remedy)]


def _opened(path: Path) -> sqlite3.Connection:
    """Open a database for reading, an existing journal included; nothing is created."""
    if path.exists() and not path.is_file():
        raise sqlite3.OperationalError("it is no file")  # SQLite would wait for a pipe
    return sqlite3.connect(read_only_uri(path), uri=True)


def _check_pages(
    database: sqlite3.Connection, path: Path, *, deep: bool, why: str
) -> list[CheckResult]:
    (answer,) = database.execute(f"PRAGMA {'integrity' if deep else 'quick'}_check(1)").fetchone()
    if answer == "ok":
        return []
    remedy = f"stop the node and restore {path.name} from a backup"
    return [_error("definitions.damaged", path, f"is damaged: {answer}", why, remedy)]


def check_state(path: Path, *, deep: bool) -> tuple[list[CheckResult], dict[bytes, bytes]]:
    """Return results about the LMDB environment, and its entries about logs and definitions.

    No node may run.
    """
    if not path.exists():
        return [], {}
    # In a process of its own: LMDB maps the file into memory and trusts its content, so
    # that damage can kill the process that reads it.
    command = [sys.executable, "-m", "leveret.storage.state_check", str(path), *["deep"] * deep]
    looked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # ourselves
    if looked.returncode:
        error = looked.stdout.strip() or "its pages make no sense"
        why = "the next start quarantines it and rebuilds it from the logs, which takes longer; "
        why += "what was settled shortly before the end is delivered again"
        remedy = "start the node; check the disk if this comes back"
        what = f"cannot be read: {error}"
        return [CheckResult("state.unreadable", Severity.WARNING, str(path), what, why, remedy)], {}
    lines = (line.partition(" ") for line in looked.stdout.splitlines())
    return [], {bytes.fromhex(key): bytes.fromhex(value) for key, _, value in lines}


def check_definitions_age(path: Path, state: StateStore) -> Iterator[CheckResult]:
    """Check that readable definitions belong to the logs and are not older than noted.

    Those of a cluster are taken from its log, whatever their copy is.
    """
    if has_definitions_in_log(path.parent):
        return
    try:
        with closing(_opened(path)) as database:
            row = database.execute("SELECT identity, changes FROM store").fetchone()
    except sqlite3.Error:
        return  # it is older than that, or reported as damaged
    what = None if row is None else older_than_noted(state, bytes(row[0]), int(row[1]))
    if what is None and not verify_checksum(path):
        what = "is not the file that the last stop has left"
    if what is not None:
        why = "no node starts here: queues, users or changes of them are missing"
        remedy = "restore the latest one; without it, `leveret serve --accept-loss definitions`"
        yield _error("definitions.older", path, what, why, remedy)


def check_records_age(path: Path, state: StateStore) -> Iterator[CheckResult]:
    """Check that a file of records exists and has all the changes that were noted of it."""
    noted = noted_changes(state, path.name)
    found = 0
    with suppress(sqlite3.Error):
        if path.exists():
            with closing(_opened(path)) as database:
                (found,) = database.execute("SELECT max(changes) FROM store").fetchone()
    if found < noted:
        what = f"lacks its last {noted - found} changes: it is missing, damaged or an older one"
        why = "the next start says so and goes on with what there is"
        yield _error("records.older", path, what, why, "restore it from a backup")


def check_set_aside(data: Path) -> Iterator[CheckResult]:
    """Report files quarantined by earlier runs, and segments whose flush has failed."""
    kept = sorted(data.glob("*.damaged-*")) + sorted(data.glob("topics/*/*/*/*.damaged-*"))
    if kept:
        size = sum(path.stat().st_size for path in kept if path.is_file())
        yield CheckResult(
            "damage.kept",
            Severity.WARNING,
            str(kept[0]),
            f"{len(kept)} damaged files ({size:,} bytes) are quarantined; this is the first",
            "they may hold what was lost; nothing removes them but you, or the queue's deletion",
            _look_into(kept[0]),
        )
    doubtful = sorted(data.glob("topics/*/*/*/*.doubtful"))
    if doubtful:
        yield CheckResult(
            "flush.failed",
            Severity.WARNING,
            str(doubtful[0]),
            f"{len(doubtful)} segments could not be flushed to the disk; this marks the first",
            "what they should have held was written anew, but the disk does not keep its word",
            "look for errors of the device in the kernel's log (`dmesg`), and check it",
        )


def _look_into(kept: Path) -> str:
    """Return what an operator can do with a quarantined file, by its kind."""
    name = quote(str(kept))
    if ".log.damaged-" in kept.name:
        return f"look what they hold with `leveret dump {name}`, then move them away"
    if ".db.damaged-" in kept.name:
        return f"see what can be read of it with `sqlite3 {name} .recover`, then move it away"
    return f"nothing else needs it: move it away, `mv {name} ELSEWHERE`"


class LogCheck:
    """Checks the logs of a data directory.

    `deep` reads every batch, else the first of each segment. `last` says whether the segments that
    a running node writes to are checked, too, and whether each log belongs to a queue: that is not
    known where the definitions are in a cluster's log. `key_ids` are the available keys,
    `advance(bytes)` is called with the progress. With a stopped node's `state`, losses that the
    next start would report are found.
    """

    def __init__(
        self,
        files: FileSystem,
        data: Path,
        definitions: Definitions,
        key_ids: Collection[int],
        *,
        deep: bool,
        last: bool,
        state: StateStore | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._files = files
        self._topics = data / "topics"
        self._deep = deep
        self._last = last
        self._key_ids = key_ids
        self._advance = advance
        self._marks = None if state is None else LogMarks(state, boot_id())
        decisions = "", DECISIONS_TOPIC, DECISIONS_INCARNATION, 0
        keys = log_key(*decisions), log_key(*DEFINITIONS_LOG[:4])
        self._own = [(self._topics / key).parent for key in keys]
        self._knows_queues = not has_definitions_in_log(data)
        self._known: dict[str, set[str]] = {}
        of_vhosts = [(vhost.name, vhost.incarnation) for vhost in definitions.vhosts]
        of_queues = [(queue.vhost, queue.incarnation) for queue in definitions.queues]
        of_groups = [(group.vhost, group.incarnation) for group in definitions.groups]
        for vhost, named in of_vhosts + of_queues + of_groups:
            incarnation = encode_name(named, INCARNATION_BYTES_MAX)
            self._known.setdefault(encode_name(vhost), set()).add(incarnation)

    @property
    def total_bytes(self) -> int:
        """Size of all log files in bytes; dangling links are counted by their own size."""
        return sum(path.lstat().st_size for path in self._topics.glob("*/*/*/*.log"))

    def run(self) -> Iterator[CheckResult]:
        """Yield all results."""
        for vhost in self._below(self._topics):
            if vhost.name.startswith("."):
                continue  # being removed
            yield from readable(vhost, self._check_vhost(vhost))
        if self._marks is not None:
            for key in self._marks.unopened:
                path = self._topics / os.fsdecode(key)
                if self._marks.tells_of(key) and self._is_known(path.parent):
                    yield from self._rehearse(path, self._marks)

    def _check_vhost(self, vhost: Path) -> Iterator[CheckResult]:
        for topic in sorted(vhost.iterdir()):
            # A running node may have declared its queue since the definitions were read.
            if self._last and self._knows_queues and not self._is_known(topic):
                yield self._orphan(topic)
            yield from readable(topic, self._check_topic(topic))

    def _check_topic(self, topic: Path) -> Iterator[CheckResult]:
        for partition in sorted(topic.iterdir()):
            yield from readable(partition, self._check_partition(partition))

    @staticmethod
    def _below(topics: Path) -> list[Path]:
        return sorted(topics.iterdir()) if topics.exists() else []

    def _is_known(self, topic: Path) -> bool:
        incarnation = topic.name.rpartition("~~")[2]
        if topic.parent.name in self._known:
            return incarnation in self._known[topic.parent.name]
        return is_internal(incarnation) or topic in self._own

    def _orphan(self, topic: Path) -> CheckResult:
        owner = "virtual host" if is_internal(topic.name.rpartition("~~")[2]) else "queue"
        remedy = "`leveret dump` shows what it holds. Remove it only if nothing in it is needed"
        if owner == "queue":
            name = quote("/".join(topic.parts[-2:]))
            remedy = f"make a queue of it again: `leveret adopt {name} --queue NAME`; {remedy}"
        return CheckResult(
            "log.orphan",
            Severity.WARNING,
            str(topic),
            f"belongs to no {owner} that is defined",
            f"it takes disk space, and nobody reads it: left by a crash while its {owner} was "
            "deleted, or by definitions that were lost",
            remedy,
        )

    def _check_partition(self, partition: Path) -> Iterator[CheckResult]:
        if self._marks is not None:
            yield from self._rehearse(partition, self._marks)
        segments = list_segments(self._files, partition)
        named = {segment.path.name for segment in segments}
        for name in self._files.list_names(partition):
            if name not in named and not _is_ours(name):
                what = "is no file of a log"
                why = "nothing reads or removes it"
                remedy = f"move it away: `mv {quote(str(partition / name))} ELSEWHERE`"
                yield CheckResult(
                    "log.foreign", Severity.WARNING, str(partition / name), what, why, remedy
                )
        for segment in segments if self._last else segments[:-1]:
            try:
                yield from self._check_segment(segment)
            except OSError as error:
                remedy = "look for errors of the device in the kernel's log (`dmesg`)"
                why = "its messages cannot be delivered"
                what = f"cannot be read: {error.strerror}"
                yield _error("log.unreadable", segment.path, what, why, remedy)
            self._advance(segment.size)

    @staticmethod
    def _rehearse(partition: Path, marks: LogMarks) -> Iterator[CheckResult]:
        """Report what the next start would find missing in a log, without changing any file."""
        key = os.fsencode(partition.relative_to(partition.parents[2]))
        try:
            found = recover(RehearsalFiles(), partition, marks.known(key))
        except StorageError as error:
            yield _error("log.unreadable", partition, str(error), "no node starts here", DO_RESTORE)
            return
        finally:
            marks.forget([key])
        for loss in found.losses:
            why = "the next start says so, and goes on without them"
            yield _error("log.missing", partition, str(loss), why, DO_RESTORE)

    def _check_segment(self, segment: Segment) -> Iterator[CheckResult]:
        if not segment.size:
            return  # the process died in the moment after it was made
        handle = self._files.open(segment.path)
        try:
            indexed = segment.read_index(self._files)
            whole_stop = None if indexed is None else indexed.stop  # where it was whole and flushed
            damage = self._damage(segment, handle, whole_stop)
            missing = self._missing_key(handle)
        finally:
            self._files.close(handle)
        if damage is not None:
            yield _damaged(segment, damage, was_whole=whole_stop is not None)
        elif missing:
            why = "its messages cannot be read: a consumer that comes to them gets none"
            remedy = "restore keyring.json from a backup of this data directory"
            what = f"is encrypted with the key {key_id_text(missing)}, which is not in the keyring"
            yield _error("keys.missing", segment.path, what, why, remedy)

    def _damage(self, segment: Segment, handle: int, whole_stop: int | None) -> int | None:
        """Return the byte position of the first damage, or None.

        `whole_stop`: the offset behind the segment, which is known where it was whole once.
        """
        if not self._deep:
            try:
                next(scan(self._files, handle, 0, segment.size))
            except CorruptBatchError:
                return 0
            return None
        stop = segment.stop if whole_stop is None else whole_stop
        gapless = whole_stop is not None
        found = survey(
            self._files, handle, segment.base, stop, segment.size, gapless=gapless
        ).damaged
        return found[0].position if found else None

    def _missing_key(self, handle: int) -> int:
        """Return the id of the key that a segment needs and that is missing; 0 if there is none."""
        try:
            key_id = key_id_of(read_exactly(self._files, handle, 0, HEAD_BYTES))
        except CorruptBatchError:
            return 0
        return key_id if key_id and key_id not in self._key_ids else 0


def _is_ours(name: str) -> bool:
    return name.endswith(BESIDE_SEGMENTS) or ".log.damaged-" in name


def _damaged(segment: Segment, position: int, *, was_whole: bool) -> CheckResult:
    look = f"`leveret dump --batches {quote(str(segment.path))}` shows where"
    what = f"is damaged from byte {position} of {segment.size} on"
    if segment.stop == OFFSET_MAX and not was_whole:
        why = "after a crash that is what was being written: the next start quarantines it, and "
        why += "nothing that was confirmed is in it; otherwise the disk has lost something"
        return CheckResult(
            "log.damaged", Severity.WARNING, str(segment.path), what, why, f"start the node; {look}"
        )
    why = "the messages in it are lost; the node passes over them and says so"
    remedy = f"check the disk, and restore the file from a backup if there is one; {look}"
    return _error("log.damaged", segment.path, what, why, remedy)


def _error(check: str, path: Path, what: str, why: str, remedy: str) -> CheckResult:
    return CheckResult(check, Severity.ERROR, str(path), what, why, remedy)
