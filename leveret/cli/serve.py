"""`leveret serve`: runs a node in the foreground."""

from __future__ import annotations

import gc
from enum import StrEnum
from pathlib import Path  # read when the command is built
from typing import Annotated

import typer

from leveret.errors import LeveretError

__all__ = ["serve"]


class _LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class _Loss(StrEnum):  # config.AcceptedLoss's; that module is slow to import for so little
    DEFINITIONS = "definitions"


class _Durability(StrEnum):  # choices for a node; the port's third value is none
    FSYNC = "fsync"
    OS = "os"


def serve(
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory: messages and definitions.  [default: var]")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")
    ] = None,
    port: Annotated[int | None, typer.Option(help="AMQP port.  [default: 5672]")] = None,
    http_host: Annotated[
        str | None,
        typer.Option(
            help="Address of the management port, whatever --host is.  [default: 127.0.0.1]"
        ),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Management port; -1 for none.  [default: 15672]")
    ] = None,
    prometheus_port: Annotated[
        int | None, typer.Option(help="Port of the metrics; -1 for none.  [default: 15692]")
    ] = None,
    http_delete: Annotated[
        bool | None,
        typer.Option(
            "--http-delete/--no-http-delete",
            help="Whether HTTP requests may delete queues: directly, with their virtual host, or "
            "by expiry.  [default: http-delete]",
        ),
    ] = None,
    durability: Annotated[
        _Durability | None,
        typer.Option(
            help="Durability of confirmed messages: fsync survives a power failure, os a crash "
            "of the broker.  [default: fsync]"
        ),
    ] = None,
    definitions: Annotated[
        Path | None,
        typer.Option(help="File with definitions to import before clients connect."),
    ] = None,
    accept_loss: Annotated[
        list[_Loss] | None,
        typer.Option(
            help="Start once without it, although there are logs: docs/storage-format.md."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="ZooKeeper of the cluster, and a path: zk1:2181,zk2:2181/leveret.  [default: none]"
        ),
    ] = None,
    node_id: Annotated[int | None, typer.Option(help="Number of this node in the cluster.")] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="HOST or HOST:PORT where other nodes reach this one.  [default: the machine's "
            "name, port 25672]"
        ),
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option(help="Rack or zone of this node.  [default: the machine's name]"),
    ] = None,
    replace: Annotated[
        bool | None,
        typer.Option(
            "--replace",
            help="Copy everything anew, where what this node once had is lost.",
        ),
    ] = None,
    log_format: Annotated[
        _LogFormat | None, typer.Option(help="Format of log lines.  [default: text]")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(envvar="LEVERET_CONFIG", help="TOML file with these and all other settings."),
    ] = None,
) -> None:
    """Start the broker in the foreground.

    Each setting also comes from the environment (LEVERET_PORT) or the file; the command line wins.
    """
    gc.disable()  # what a node imports is no garbage; it collects by a schedule of its own
    from leveret.config import load  # only this command needs it

    try:
        loaded = load(
            config,
            {
                "data_dir": data_dir,
                "host": host,
                "port": port,
                "http_host": http_host,
                "http_port": http_port,
                "prometheus_port": prometheus_port,
                "http_delete": http_delete,
                "definitions": definitions,
                "accept_loss": [loss.value for loss in accept_loss] if accept_loss else None,
                "durability": durability.value if durability else None,
                "cluster": cluster,
                "node_id": node_id,
                "advertise": advertise,
                "rack": rack,
                "cluster_replace": replace,
                "log_format": log_format.value if log_format else None,
            },
        )
        from leveret.node import run  # the whole broker hangs on it

        status = run(loaded.configuration, loaded.notices)
    except LeveretError as error:
        for line in str(error).splitlines():
            typer.echo(f"leveret: {line}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(status)
