"""Manifests of an archive: which batches of a topic it has, in which files.

    DIR/topic=orders/_manifests/00000003.json
    DIR/topic=orders/date=2026-01-05/batch=00000003/part-00000-….zstd.parquet

A batch is in the archive when its manifest is there; files without one are what an interrupted run
has left, and are replaced by the next. Batches are numbered from 1, and each one continues where
the one before it has ended. A manifest is never changed.

    {"format": "leveret archive", "version": 1,
     "topic": "orders", "vhost": "/", "log": "ea503252eabd3663", "batch": 3,
     "created": "2026-01-05T09:30:00Z", "rows": 2, "next": {"0": 120, "1": 87},
     "ranges": [{"partition": 0, "first": 100, "end": 120, "lost": 0}],
     "files": [{"path": "date=2026-01-05/batch=00000003/part-….parquet", "bytes": 4096,
                "partition": 0, "first": 100, "last": 119, "rows": 2, "record_bytes": 200,
                "first_time": 1767605400000, "last_time": 1767605400001,
                "hash": "0123456789abcdef"}]}

`next` has the offset by partition where the next batch begins, partitions without new messages
included. Of a range [first, end), `lost` offsets at its beginning were gone before they were
archived. `hash` is the exclusive or of the rows' `xxhash64(offset, timestamp, flags, exchange,
routing_key, header, value)`, as Spark has it. Times are milliseconds since 1970.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "MANIFESTS",
    "ArchivedFile",
    "ArchivedRange",
    "BatchManifest",
    "ManifestError",
    "batch_directory",
    "check_sequence",
    "manifest_name",
    "manifest_number",
    "parse_manifest",
    "topic_directory",
]

FORMAT: Final = "leveret archive"
VERSION: Final = 1
MANIFESTS: Final = "_manifests"  # readers of Parquet directories pass over such names
NAME: Final = re.compile(r"(\d{8})\.json")
FILE_PATH: Final = re.compile(r"date=\d{4}-\d\d-\d\d/batch=\d{8}/[\w.-]+")
# As Spark and Hive write them: these would not be read back from a directory's name.
ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f")
OFFSET_MAX: Final = (1 << 63) - 1


class ManifestError(ValueError):
    """A manifest is damaged, or is of a version that is not known here."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file: rows of one partition with offsets from `first` to `last`.

    `path` is below the topic's directory. `record_bytes` are those of all headers and bodies.
    """

    path: str
    bytes: int
    partition: int
    first: int
    last: int
    rows: int
    record_bytes: int
    first_time: int
    last_time: int
    hash: str


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """Offsets [first, end) of a partition, of which the first `lost` could not be archived."""

    partition: int
    first: int
    end: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class BatchManifest:
    """One archived batch of a topic: its files, offsets and counts."""

    topic: str
    vhost: str
    log: str
    batch: int
    created: str
    next: dict[int, int]
    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchivedFile, ...]

    @property
    def rows(self) -> int:
        """Number of messages."""
        return sum(each.rows for each in self.files)

    def to_bytes(self) -> bytes:
        """Return the manifest as its file has it."""
        told = {
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(self, name) for name in ("topic", "vhost", "log", "batch", "created")},
            "rows": self.rows,
            "next": {str(number): self.next[number] for number in sorted(self.next)},
            "ranges": [_fields(each) for each in self.ranges],
            "files": [_fields(each) for each in self.files],
        }
        return json.dumps(told, ensure_ascii=False, indent=1).encode()


def _fields(of: ArchivedFile | ArchivedRange) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__slots__}


def parse_manifest(data: bytes) -> BatchManifest:
    """Return the manifest in a file. Raises ManifestError."""
    try:
        told = json.loads(data)
        _check_version(told["format"], told["version"])
        found = BatchManifest(
            **{name: _text(told[name]) for name in ("topic", "vhost", "log", "created")},
            batch=_number(told["batch"]),
            next={int(number): _number(at) for number, at in told["next"].items()},
            ranges=tuple(_range(each) for each in told["ranges"]),
            files=tuple(_file(each) for each in told["files"]),
        )
        rows = _number(told["rows"])
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"no manifest: {error!r}") from error
    if rows != found.rows:
        raise ManifestError(f"it has {rows} rows, and its files have {found.rows}")
    return found


def _check_version(form: object, version: object) -> None:
    if form != FORMAT or version != VERSION:
        raise ManifestError(f"no '{FORMAT}' of version {VERSION}: it is {form!r} {version!r}")


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= OFFSET_MAX:
        raise ManifestError(f"{value!r} is no number of a manifest")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ManifestError(f"{value!r} is no text")
    return value


def _range(told: dict[str, Any]) -> ArchivedRange:
    found = ArchivedRange(*(_number(told[name]) for name in ArchivedRange.__slots__))
    if not found.first + found.lost <= found.end:
        raise ManifestError(f"a range from {found.first} to {found.end} with {found.lost} lost")
    return found


def _file(told: dict[str, Any]) -> ArchivedFile:
    path, content_hash = _text(told["path"]), _text(told["hash"])
    if not FILE_PATH.fullmatch(path):  # nothing outside of the archive is read
        raise ManifestError(f"{path!r} is no file of an archive")
    numbers = {name: _number(told[name]) for name in ArchivedFile.__slots__[1:-1]}
    return ArchivedFile(path, **numbers, hash=content_hash)


def topic_directory(topic: str) -> str:
    """Return the name of a topic's directory, which Spark reads as a partition's value."""
    escaped = "".join(
        f"%{ord(letter):02X}" if letter in ESCAPED or letter < " " else letter for letter in topic
    )
    return f"topic={escaped}"


def batch_directory(number: int) -> str:
    """Return the name of a batch's directories, of which each date has one."""
    return f"batch={number:08}"


def manifest_name(number: int) -> str:
    """Return the name of a batch's manifest."""
    return f"{number:08}.json"


def manifest_number(name: str) -> int | None:
    """Return the number of the batch whose manifest has this name, None for another name."""
    found = NAME.fullmatch(name)
    return None if found is None else int(found[1])


def check_sequence(manifests: Sequence[BatchManifest]) -> list[str]:
    """Return what is wrong with a topic's manifests, in the order of their batches.

    Nothing is, if they are numbered from 1 on, are of one log, and each range begins where the
    ranges before it have ended.
    """
    wrong: list[str] = []
    ends: dict[int, int] = {}
    for expected, each in enumerate(manifests, 1):
        if each.batch != expected:
            return [*wrong, f"batch {expected} has no manifest, and batch {each.batch} has one"]
        first = manifests[0]
        if (each.topic, each.vhost, each.log) != (first.topic, first.vhost, first.log):
            wrong.append(f"batch {each.batch} is of another topic than batch 1")
        wrong += _gaps(each, ends)
        wrong += _strays(each)
    return wrong


def _gaps(manifest: BatchManifest, ends: dict[int, int]) -> Iterable[str]:
    """Yield where ranges do not continue those before them, and move `ends` on."""
    for each in manifest.ranges:
        before = ends.get(each.partition, each.first)
        if each.first != before:
            kind = "are missing" if each.first > before else "are there twice"
            low, high = sorted((before, each.first))
            yield (
                f"batch {manifest.batch}: offsets {low} to {high} of partition "
                f"{each.partition} {kind}"
            )
        ends[each.partition] = each.end
    for number, at in ends.items():
        if manifest.next.get(number) != at:
            yield (
                f"batch {manifest.batch}: partition {number} ends at {at}, and the next batch "
                f"begins at {manifest.next.get(number)}"
            )


def _strays(manifest: BatchManifest) -> Iterable[str]:
    """Yield files with offsets that are in none of the manifest's ranges."""
    ranges = {each.partition: each for each in manifest.ranges}
    for file in manifest.files:
        its = ranges.get(file.partition)
        if its is None or not its.first + its.lost <= file.first <= file.last < its.end:
            yield f"batch {manifest.batch}: {file.path} has offsets that are not of the batch"
