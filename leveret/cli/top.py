"""`leveret top`: current rates of a node in the terminal, until q is pressed."""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from contextlib import contextmanager
from contextvars import copy_context
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.group import with_common
from leveret.cli.output import is_for_people, printable, show_json, show_rows
from leveret.cli.session import answer_of, as_json, fail, reason_of
from leveret.cli.values import MIB, shown_alarms, span
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

__all__ = ["top"]

KEY_SECONDS = 0.1  # between looks at the keyboard: nobody feels that
COLUMNS = [
    "vhost", "name", "messages_ready", "messages_unacknowledged", "consumers", "in_rate",
    "out_rate",
]  # fmt: skip
HEADINGS = ["vhost", "queue", "ready", "unacked", "consumers", "in/s", "out/s"]
KINDS = ("connections", "channels", "consumers", "queues")
GAP = "   "
KEYS = {"i": "in", "o": "out", "r": "ready", "u": "unacked", "n": "name"}
HELP = "q quit; sort by i in, o out, r ready, u unacked, n name"
CHROME_LINES = 13  # of the screen that are no queues


class _Sort(StrEnum):
    IN = "in"
    OUT = "out"
    READY = "ready"
    UNACKED = "unacked"
    NAME = "name"


@with_common
def top(
    sort: Annotated[_Sort, typer.Option("--sort", help="What to sort the queues by.")] = _Sort.IN,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=0, help="Number of queues shown.  [default: what fits, else 20]"
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.1,
            max=60,
            help="Seconds between two looks, over which rates are taken.",
        ),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
) -> None:
    """Show rates, alarms and the busiest queues of a running node, until you leave.

    Keys: q leaves; i, o, r, u and n sort. With --json, or where there is no terminal, each look is
    a text of its own: with --json one line.
    """
    watched = _Watched(int(interval * 1000), sort.value, limit)
    live = is_for_people()
    try:
        if as_json() or once or not live:
            _print(watched, once=once)
        else:
            _show_live(watched)
    except LeveretError as error:
        fail(str(error))
    except KeyboardInterrupt:
        pass


class _Watched:
    """A watched node; `sort` may change between two looks."""

    def __init__(self, window_ms: int, sort: str, limit: int | None) -> None:
        self._window_ms = window_ms
        self.sort = sort
        self.limit = limit

    def look(self, rows: int = 20) -> dict[str, Any]:
        """Measure rates over the window, and return them. Raises LeveretError."""
        answer = answer_of(
            "node.overview",
            window_ms=self._window_ms,
            limit=rows if self.limit is None else self.limit,
            sort=self.sort,
        )
        if not answer["ok"]:
            raise LeveretError(reason_of(answer))
        found: dict[str, Any] = answer["result"]
        return found


def _print(watched: _Watched, *, once: bool) -> None:
    """Print measurements one after the other."""
    while True:
        seen = watched.look()
        if as_json():
            show_json(seen)
        else:
            for line in _summary(seen):
                typer.echo(printable(line))
            typer.echo()
            show_rows(seen["queues_shown"], COLUMNS)
        if once:
            return
        if not as_json():
            typer.echo()


# -- live


def _show_live(watched: _Watched) -> None:
    """Redraw the screen with each measurement. Raises LeveretError when the node is gone."""
    from rich.console import Console  # only who watches waits for it
    from rich.live import Live

    console = Console()
    looks: queue.Queue[dict[str, Any] | LeveretError] = queue.Queue()
    wanted = threading.Event()
    wanted.set()

    def watch() -> None:
        """Measure again whenever the last result was drawn; in a thread, so that keys are read."""
        try:
            while wanted.wait():
                wanted.clear()
                looks.put(watched.look(max(console.size.height - CHROME_LINES, 1)))
        except LeveretError as error:
            looks.put(error)

    # The thread asks the same node: it needs the options of the command.
    threading.Thread(target=copy_context().run, args=(watch,), daemon=True).start()
    with _keyboard() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while (key := pressed()) != "q":
            watched.sort = KEYS.get(key, watched.sort)
            try:
                seen = looks.get_nowait()
            except queue.Empty:
                continue
            if isinstance(seen, LeveretError):
                raise seen
            live.update(_screen(seen, watched.sort), refresh=True)
            wanted.set()


@contextmanager
def _keyboard() -> Iterator[Any]:
    """Yield a function that returns the pressed key, or an empty text after a short wait."""
    if not sys.stdin.isatty():
        yield lambda: threading.Event().wait(KEY_SECONDS) or ""
        return
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def pressed() -> str:
        ready, _, _ = select.select([handle], [], [], KEY_SECONDS)
        return os.read(handle, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(handle)
        yield pressed
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _screen(seen: dict[str, Any], sort: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text  # names are text, whatever brackets they have

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, heading in zip(COLUMNS, HEADINGS, strict=True):
        is_text = name in {"vhost", "name"}
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for row in seen["queues_shown"]:
        table.add_row(*(Text(printable(_figure(row[name]))) for name in COLUMNS))
    lines = [Text(printable(line)) for line in _summary(seen)]
    if seen["alarms"] or seen["alarms_elsewhere"]:
        lines[1].stylize("bold red")
    return Group(*lines, Text(), table, Text(), Text(f"{HELP}   (now: {sort})", style="dim"))


def _summary(seen: dict[str, Any]) -> list[str]:
    rates = seen["rates"]
    moved = [
        f"{verb} {_figure(rates[f'messages_{way}'])}/s ({rates[f'bytes_{way}'] / MIB:.1f} MiB/s)"
        for verb, way in (("published", "in"), ("delivered", "out"))
    ]
    held = [
        f"memory {seen['memory_bytes'] / MIB:.0f} of {seen['memory_bytes_max'] / MIB:.0f} MiB",
        f"disk {seen['disk_free_bytes'] / MIB:.0f} MiB free",
        f"files {seen['open_files']} of {seen['open_files_max']}",
    ]
    counted = [f"{seen[kind]:,} {kind}" for kind in KINDS]
    full = [
        f"messages {seen['messages_ready']:,} ready",
        f"{seen['messages_unacknowledged']:,} unacknowledged",
    ]
    return [
        GAP.join([seen["name"], seen["version"], f"up {span(seen['uptime_ms'] // 1000)}"]),
        f"alarms: {shown_alarms(seen)}",
        GAP.join(moved),
        f"latency {_latency(seen['latency_ms'])}{GAP}loop {seen['lag_ms']:.1f} ms late",
        GAP.join(held),
        GAP.join(counted),
        GAP.join(full),
    ]


def _latency(seen: dict[str, int | None]) -> str:
    """Format the delivery latency; its values are upper bounds of buckets."""
    known = [f"{name} up to {bound:,} ms" for name, bound in seen.items() if bound is not None]
    return ", ".join(known) or "-"


def _figure(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
