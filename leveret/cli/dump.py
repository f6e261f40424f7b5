"""`leveret dump`: the content of a segment file."""

from __future__ import annotations

import json as json_text
import os
from enum import StrEnum
from pathlib import Path  # read when the command is built
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.group import with_json
from leveret.cli.output import iso, printable, show_json
from leveret.cli.session import as_json, fail
from leveret.errors import CorruptBatchError, LeveretError

if TYPE_CHECKING:
    from enum import IntFlag

    from leveret.ports.records import Batch
    from leveret.storage.dump import DumpedBatch, DumpedRecord
    from leveret.storage.encryption import Unsealer
    from leveret.storage.files import FileSystem

__all__ = ["dump"]

OFFSET_MAX = (1 << 63) - 1
SHOWN_BODY_BYTES = 200  # enough to recognise a message; --body-bytes shows more
SHOWN_RANGES = 20  # of a batch of settlements; JSON has them all


class _Body(StrEnum):
    TEXT = "text"
    HEX = "hex"
    LENGTH = "length"


@with_json
def dump(
    segment_file: Annotated[
        Path,
        typer.Argument(help="A segment (*.log), or the quarantined part of one (*.damaged-N)"),
    ],
    batches: Annotated[
        bool, typer.Option("--batches", help="Only the batches, not their messages.")
    ] = False,
    first: Annotated[int, typer.Option("--from", min=0, help="From this offset on.")] = 0,
    last: Annotated[
        int | None, typer.Option("--to", min=0, help="Up to this offset, which is included.")
    ] = None,
    body: Annotated[_Body, typer.Option("--body", help="How bodies are shown.")] = _Body.TEXT,
    body_bytes: Annotated[
        int, typer.Option("--body-bytes", min=0, help="Bytes to show of each body; JSON has all.")
    ] = SHOWN_BODY_BYTES,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            envvar="LEVERET_ENCRYPTION_KEY_FILE",
            help="File with the master key, for encrypted segments.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where keyring.json is, if not above the file."),
    ] = None,
) -> None:
    """Show the batches and the messages of a segment; ends with status 1 where some are damaged.

    Reads only: the node may run meanwhile. With --json, each line is one object.
    """
    from leveret.storage.dump import dump_segment, segment_head  # `leveret --help` is instant
    from leveret.storage.files import ReadOnlyFiles

    files = ReadOnlyFiles()
    stop = OFFSET_MAX if last is None else last + 1
    shown = _JsonLines(body) if as_json() else _Lines(body, body_bytes)
    damage = 0
    try:
        head = segment_head(files, segment_file)
        unsealer = _unsealer(files, segment_file, key_file, data_dir)
        shown.segment(segment_file, *head)
        for entry in dump_segment(files, segment_file):
            if entry.damage:
                damage += 1
                typer.echo(f"leveret: damage at byte {entry.position}: {entry.damage}", err=True)
            elif not _concerns(entry, first, stop):
                continue
            shown.batch(_row(entry))
            if entry.batch is not None and not (batches or entry.damage or entry.batch.is_control):
                damage += _show_records(shown, entry, first, stop, unsealer)
    except LeveretError as error:
        fail(str(error))
    if damage:
        raise typer.Exit(1)


def _unsealer(files: FileSystem, file: Path, key_file: Path | None, data: Path | None) -> Unsealer:
    """Return what decrypts batches; without a master key it has no keys. Raises StorageError."""
    from leveret.storage.encryption import Unsealer
    from leveret.storage.keyring import FILE_NAME, Keyring
    from leveret.storage.master_key import read_master_key

    master = read_master_key(key_file, os.environ.get("LEVERET_ENCRYPTION_KEY", ""))
    above = [directory for directory in file.absolute().parents if (directory / FILE_NAME).exists()]
    directory = data or (above[0] if above else None)
    if master is None or directory is None:
        return Unsealer(lambda _: None)
    return Keyring(files, directory, master).unsealer


def _concerns(entry: DumpedBatch, first: int, stop: int) -> bool:
    batch = entry.batch
    assert batch is not None, "only damage may have no header"
    return batch.base_offset < stop and max(batch.stop_offset, batch.base_offset + 1) > first


def _show_records(
    shown: _Lines | _JsonLines, entry: DumpedBatch, first: int, stop: int, unsealer: Unsealer
) -> int:
    """Print a batch's records; return 1 if the batch turns out to be damaged, else 0."""
    from leveret.storage.dump import dump_records
    from leveret.storage.encryption import MissingKeyError

    assert entry.batch is not None, "a batch with records"
    try:
        for record in dump_records(entry.batch, first, stop, unsealer):
            shown.record(record)
    except MissingKeyError:
        shown.note(
            "encrypted: name the master key's file with --key-file, and the data directory of "
            "its keyring.json with --data-dir if it is not above the segment"
        )
    except CorruptBatchError as error:
        typer.echo(f"leveret: damage at byte {entry.position}: {error}", err=True)
        return 1
    return 0


# -- what is known of a batch


def _row(entry: DumpedBatch) -> dict[str, Any]:
    """Return the known fields of a batch; only its position if not even the header is readable."""
    row: dict[str, Any] = {"type": "batch", "position": entry.position}
    row |= {"checksum": "bad" if entry.damage else "ok", "damage": entry.damage or None}
    batch = entry.batch
    if batch is not None:
        from leveret.ports.records import BatchAttribute, RecordFlag

        row |= {"bytes": batch.size, "kind": _kind(batch), "count": batch.count}
        row |= {"first": batch.base_offset, "stop": batch.stop_offset}
        row |= {"first_time": batch.first_time, "last_time": batch.last_time}
        row |= {"attributes": _names(BatchAttribute, batch.attributes)}
        row |= {"features": _names(RecordFlag, batch.features), "epoch": batch.leader_epoch}
        row |= {"transaction": batch.transaction or None, "key": _key(batch)}
    settled = entry.settled
    row["settled"] = None if settled is None else [list(pair) for pair in settled]
    return row


def _kind(batch: Batch) -> str:
    from leveret.storage.checkpoint import is_checkpoint, is_part

    if batch.transaction:
        return "transaction's messages"
    if not batch.is_control:
        return "messages"
    if is_part(batch):
        return "transaction's settlements"
    return "checkpoint" if is_checkpoint(batch) else "settlements"


def _key(batch: Batch) -> str:
    """Return the id of the key that a batch is encrypted with; empty for none."""
    from leveret.storage.encryption import HEAD_BYTES, key_id_of, key_id_text

    if batch.is_control or batch.size < HEAD_BYTES:
        return ""
    key_id = key_id_of(bytes(memoryview(batch)[:HEAD_BYTES]))
    return key_id_text(key_id) if key_id else ""


def _names(kind: type[IntFlag], bits: int) -> list[str]:
    """Return the names of the flags that are set; a hex number for those of a newer release."""
    known = [flag for flag in kind if flag & bits and flag.bit_count() == 1]
    rest = bits & ~sum(known)
    return [str(flag.name) for flag in known] + ([hex(rest)] if rest else [])


def _properties(header: bytes) -> dict[str, Any] | None:
    """Return a message's properties; None if they cannot be decoded."""
    from leveret.core.json_fields import plain
    from leveret.ports.contents import decode_properties
    from leveret.ports.tables import MalformedFieldError

    try:
        return {name: plain(value) for name, value in decode_properties(header).items()}
    except MalformedFieldError:
        return None


# -- how it is shown


class _JsonLines:
    """Output for programs: one JSON object per line."""

    def __init__(self, body: _Body) -> None:
        self._body = body

    def segment(self, file: Path, size: int, base: int, generation: int) -> None:
        """Print the segment file."""
        named = {"file": str(file), "bytes": size, "first": base, "generation": generation}
        self._write({"type": "segment", **named})

    def batch(self, row: dict[str, Any]) -> None:
        """Print a batch, or damage."""
        self._write(row)

    def record(self, record: DumpedRecord) -> None:
        """Print a message."""
        from leveret.ports.records import RecordFlag

        self._write(
            {
                "type": "record",
                "offset": record.offset,
                "time": record.time_ms,
                "flags": _names(RecordFlag, record.flags),
                "exchange": record.exchange.decode(errors="replace"),
                "routing_key": record.routing_key.decode(errors="replace"),
                "properties": _properties(record.header),
                "payload_bytes": len(record.body),
                **self._payload(record.body),
            }
        )

    def note(self, text: str) -> None:
        """Print a remark about the batch before."""
        self._write({"type": "note", "text": text})

    def _payload(self, body: bytes) -> dict[str, str]:
        if self._body is _Body.LENGTH:
            return {}
        if self._body is _Body.HEX:
            return {"payload": body.hex(), "payload_encoding": "hex"}
        from leveret.core.admin.shown import payload

        return payload(body)  # type: ignore[return-value]  # all of it is text

    def _write(self, value: dict[str, Any]) -> None:
        show_json(value)


class _Lines:
    """Output for people."""

    def __init__(self, body: _Body, body_bytes_max: int) -> None:
        self._body = body
        self._body_bytes_max = body_bytes_max

    def segment(self, file: Path, size: int, base: int, generation: int) -> None:
        """Print the segment file."""
        again = f", file {generation + 1} of those that do" if generation else ""
        typer.echo(f"{file.name}: {size} bytes, begins with offset {base}{again}")

    def batch(self, row: dict[str, Any]) -> None:
        """Print a batch, or damage."""
        if "kind" not in row:
            typer.echo(f"\nbyte {row['position']}: damaged")
            return
        text = f"\nbyte {row['position']}: {row['kind']}, {row['bytes']} bytes, "
        if row["count"]:
            text += f"offsets {row['first']} to {row['stop'] - 1}, "
            text += f"{iso(row['first_time'])} to {iso(row['last_time'])}, "
        else:
            text += f"at offset {row['first']}, {iso(row['first_time'])}, "
        for name in ("transaction", "key"):
            text += f"{name} {row[name]}, " if row[name] else ""
        flags = [*row["attributes"], *row["features"]]
        text += f"{' '.join(flags)}, " if flags else ""
        text += f"epoch {row['epoch']}, " if row["epoch"] else ""
        typer.echo(f"{text}checksum {row['checksum']}")
        if row["settled"] is not None:
            typer.echo(f"  settled: {_ranges_text(row['settled'])}")

    def record(self, record: DumpedRecord) -> None:
        """Print a message."""
        from leveret.ports.records import RecordFlag

        flags = " ".join(_names(RecordFlag, record.flags))
        typer.echo(f"  {record.offset}  {iso(record.time_ms)}  {flags}".rstrip())
        exchange, key = record.exchange, record.routing_key
        typer.echo(f"    exchange {_quoted(exchange)}, routing key {_quoted(key)}")
        properties = _properties(record.header)
        if properties is None:
            typer.echo("    properties cannot be read")
        for name, value in (properties or {}).items():
            typer.echo(printable(f"    {name}: {json_text.dumps(value, ensure_ascii=False)}"))
        typer.echo(f"    body: {len(record.body)} bytes{self._payload(record.body)}")

    def note(self, text: str) -> None:
        """Print a remark about the batch before."""
        typer.echo(f"  {text}")

    def _payload(self, body: bytes) -> str:
        shown = body[: self._body_bytes_max]
        if self._body is _Body.LENGTH or not shown:
            return ""
        more = "…" if len(shown) < len(body) else ""
        if self._body is _Body.HEX or not _is_text(shown):
            return f" {shown.hex(' ', 4)}{more}"
        return f" {_quoted(shown)}{more}"


def _is_text(body: bytes) -> bool:
    """Whether a body is UTF-8, but for a character that was cut at the end."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.start >= len(body) - 3
    return True


def _quoted(text: bytes) -> str:
    return printable(json_text.dumps(text.decode(errors="replace"), ensure_ascii=False))


def _ranges_text(ranges: list[list[int]]) -> str:
    parts = [
        str(first) if stop == first + 1 else f"{first}-{stop - 1}"
        for first, stop in ranges[:SHOWN_RANGES]
    ]
    more = len(ranges) - len(parts)
    return (" ".join(parts) or "nothing") + (f" and {more} more" if more else "")
