"""`leveret node …` and `leveret alarms`: state and control of a running node."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.group import Group, with_common
from leveret.cli.health import PROBE_SECONDS_MAX, probe
from leveret.cli.output import iso, printable, show_done, show_json
from leveret.cli.session import answer_of, as_json, ask, data_directory, fail, patience, reason_of
from leveret.cli.values import MIB, span
from leveret.errors import NodeRunningError, StorageError
from leveret.storage.lock import DirectoryLock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["alarms", "app", "health"]

STOP_SECONDS_MAX = 120.0  # clients are closed, logs flushed and closed
ERROR_STATUS = 2  # of `alarms`, whose 1 means that there are some
NO_NODE_STATUS = 3
POLL_SECONDS = 0.05  # while the command waits for the end

app = Group("A running node as a whole.")


class LogThreshold(StrEnum):
    """Lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    NONE = "none"


class LogCategory(StrEnum):
    """Category of log lines."""

    NODE = "node"
    CONNECTION = "connection"
    CHANNEL = "channel"


@app.command("status")
def status() -> None:
    """Show version, uptime, alarms, use of resources and counts of objects."""
    found = ask("node.status")
    if as_json():
        show_json(found)
        return
    for name, value in _lines(found):
        typer.echo(printable(f"{name}: {value}"))


@app.command("name")
def name(
    new: Annotated[str | None, typer.Argument(help="The new name.")] = None,
) -> None:
    """Show or change the name of the cluster, which clients receive when they connect."""
    if new is not None:
        ask("cluster.set_name", name=new)
        show_done(f"the cluster was renamed to '{new}'")
        return
    found = ask("cluster.show")
    if as_json():
        show_json(found)
    else:
        typer.echo(printable(found["name"] or "no name was given: the configuration has one"))


@app.command("log-level")
def log_level(
    level: Annotated[
        LogThreshold | None,
        typer.Argument(help="Log from this level on; without it, show the levels."),
    ] = None,
    category: Annotated[
        LogCategory,
        typer.Option(help="`connection`: logins, disconnects and refusals; `node`: all the rest."),
    ] = LogCategory.NODE,
) -> None:
    """Show or change the log level of a running node, until it stops.

    The settings log_level, log_connection_level and log_channel_level say it for each start.
    """
    if level is None:
        found = ask("log.show")
    else:
        names = {"category": category.value, "level": level.value}
        found = ask("log.set_level", **names)
    if as_json():
        show_json(found)
        return
    for name, value in found.items():
        typer.echo(f"{name}: {value}")


@app.command("stop")
def stop(
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the node has ended.")
    ] = True,
) -> None:
    """Stop a running node, as SIGTERM does: all is written, and confirms are sent."""
    ask("node.stop")
    data_dir = data_directory()
    if not wait:
        show_done(f"the node on {data_dir} is stopping")
        return
    seconds = patience(STOP_SECONDS_MAX)
    deadline = time.monotonic() + seconds
    while _is_held(data_dir):
        if time.monotonic() > deadline:
            fail(f"the node on {data_dir} is still stopping after {seconds:g} s: see its log")
        time.sleep(POLL_SECONDS)
    show_done(f"the node on {data_dir} has stopped")


def _is_held(data_dir: Path) -> bool:
    """Whether a process still owns the directory."""
    try:
        DirectoryLock(data_dir, looking=True).release()
    except NodeRunningError:
        return True
    return False


@with_common
def health(
    *,
    in_sync: Annotated[
        bool,
        typer.Option(
            "--in-sync", help="Fail also unless the node is in sync with its cluster: for restarts."
        ),
    ] = False,
) -> None:
    """Ask whether a node serves clients: status 0 if so, 1 if not. Made for probes: it is cheap.

    An alarm is told and is no failure: a restart would not help.
    """
    seconds = patience(PROBE_SECONDS_MAX)
    raise typer.Exit(probe(data_directory(), seconds, as_json=as_json(), in_sync=in_sync))


@with_common
def alarms() -> None:
    """Show the alarms of a running node: while there is one, publishers are blocked.

    Ends with status 0 without alarms, 1 with some, 3 where no node answers, 2 for other errors.
    """
    low = _alarms()
    if as_json():
        show_json(low)
    else:
        typer.echo(f"low on {' and '.join(low)}: publishers are blocked" if low else "no alarms")
    if low:
        raise typer.Exit(1)


def _alarms() -> list[str]:
    """Return the active alarms; end the command if no node answers."""
    try:
        answer = answer_of("node.health")
    except StorageError as error:
        fail(str(error), NO_NODE_STATUS)
    if not answer["ok"]:
        is_stopped = answer["error"] == "not_running"
        fail(reason_of(answer), NO_NODE_STATUS if is_stopped else ERROR_STATUS)
    low: list[str] = answer["result"]["alarms"]
    return low


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    listeners = [f"{each['protocol']} {each['host']}:{each['port']}" for each in found["listeners"]]
    kinds = ("vhosts", "exchanges", "queues", "connections", "channels", "consumers")
    return [
        ("node", found["name"]),
        ("version", f"{found['version']} on {found['platform']}"),
        ("cluster", found["cluster_name"]),
        ("running since", f"{iso(found['started'])} ({span(found['uptime_ms'] // 1000)})"),
        ("data", found["data_dir"]),
        ("listening", ", ".join(listeners)),
        ("alarms", ", ".join(found["alarms"]) or "none"),
        ("memory", f"{_mib(found['memory_bytes'])} of {_mib(found['memory_bytes_max'])}"),
        (
            "disk",
            f"{_mib(found['disk_free_bytes'])} free, {_mib(found['disk_free_bytes_min'])} must be",
        ),
        ("open files", f"{found['open_files']} of {found['open_files_max']}"),
        *((kind, str(found[kind])) for kind in kinds),
        (
            "messages",
            f"{found['messages_ready']} ready, {found['messages_unacknowledged']} unacknowledged",
        ),
    ]


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB"
