"""`leveret log`: what stands in the files of a queue's log."""

from __future__ import annotations

from pathlib import Path  # read when the command is built
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.output import show_rows
from leveret.cli.session import Json
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from leveret.ports.records import Batch
    from leveret.storage.dump import DumpedBatch

__all__ = ["app"]

app = typer.Typer(help="The files in which queues are kept.", no_args_is_help=True)

COLUMNS = ["position", "bytes", "first", "stop", "count", "kind", "checksum", "settled", "key"]


@app.command("dump")
def dump(
    segment_file: Annotated[
        Path, typer.Argument(help="A segment (*.log), or what was set aside of one (*.damaged-N).")
    ],
    as_json: Json = False,
) -> None:
    """Show the batches of a segment file; ends with status 1 where some are damaged.

    Reads only: the node may run meanwhile.
    """
    from leveret.storage.dump import dump_segment  # `leveret --help` is instant
    from leveret.storage.files import RealFileSystem

    try:
        rows = [_row(entry) for entry in dump_segment(RealFileSystem(), segment_file)]
    except LeveretError as error:
        typer.echo(f"leveret: {error}", err=True)
        raise typer.Exit(1) from None
    damage = [(row["position"], row["damage"]) for row in rows if row["damage"]]
    if not as_json:
        rows = [{**row, "settled": _text(row["settled"])} for row in rows]
    show_rows(rows, COLUMNS, as_json=as_json)
    for position, reason in damage:
        typer.echo(f"leveret: damage at byte {position}: {reason}", err=True)
    if damage:
        raise typer.Exit(1)


def _row(entry: DumpedBatch) -> dict[str, Any]:
    """What is known of one batch; nothing but its place where not even the header is left."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row |= {"position": entry.position, "checksum": "bad" if entry.damage else "ok"}
    batch = entry.batch
    if batch is not None:
        row |= {"bytes": batch.size, "count": batch.count, "kind": _kind(batch)}
        row |= {"first": batch.base_offset, "stop": batch.stop_offset}
    row["key"] = "" if batch is None else _key(batch)
    row["settled"] = None if entry.settled is None else [list(pair) for pair in entry.settled]
    row["damage"] = entry.damage
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
    """The key that a batch is encrypted with."""
    from leveret.storage.encryption import HEAD_BYTES, key_id_of, key_id_text

    if batch.is_control or batch.size < HEAD_BYTES:
        return ""
    key_id = key_id_of(bytes(memoryview(batch)[:HEAD_BYTES]))
    return key_id_text(key_id) if key_id else ""


def _text(settled: list[list[int]] | None) -> list[str]:
    return [f"{first}-{stop - 1}" for first, stop in settled or ()]
