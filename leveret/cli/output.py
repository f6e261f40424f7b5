"""How results are shown: columns for people, JSON for programs."""

from __future__ import annotations

import json

import typer

__all__ = ["printable", "show_done", "show_rows"]

COLUMN_GAP = "  "


def show_rows(rows: list[dict[str, object]], columns: list[str], *, as_json: bool) -> None:
    """A list of results; in columns, the headings come first even if nothing follows."""
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    lines = [columns, *([_text(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo(COLUMN_GAP.join(padded).rstrip())


def show_done(sentence: str, *, as_json: bool) -> None:
    """That something was done, in a sentence or as `{"ok": true}`."""
    typer.echo(json.dumps({"ok": True}) if as_json else sentence)


def printable(text: str) -> str:
    """Text that cannot steer a terminal: names and messages come from strangers."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return printable(",".join(value))
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
