"""`python -m bench.cluster`: clusters of three nodes on this machine, row by row, in one run."""

from __future__ import annotations

import json
import shlex
import signal
import tempfile
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.choice import chosen
from bench.cluster.clusters import BenchCluster, LeveretCluster, RabbitMqCluster
from bench.cluster.measure import ClusterTiming, measure
from bench.cluster.rows import ROWS, ClusterRow
from bench.disturbance import Disturbance
from bench.machine import describe
from bench.measure import Reading
from bench.processes import BenchError, allow_files, broker_core, client_core
from bench.report import Line, lines, markdown, terminal

RESULTS = Path(__file__).parent / "RESULTS.md"
BROKERS = ("RabbitMQ", "Leveret")

console = Console()


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Rows; all when none is named.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Readings of each row.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Measured time of a flow.")] = 3,
    warm_up: Annotated[float, typer.Option(min=0, help="Time before it, in seconds.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="How often the leader is killed.")] = 5,
    only: Annotated[str, typer.Option(help="RabbitMQ or Leveret alone.")] = "",
    output: Annotated[
        Path | None, typer.Option(help="Where to write; RESULTS.md when all rows were run.")
    ] = None,
    json_output: Annotated[
        Path | None, typer.Option("--json", help="Where to write every reading as JSON.")
    ] = None,
) -> None:
    """Measure clusters of Leveret, and of RabbitMQ where that can be compared, on this machine."""
    rows = chosen(names or [], ROWS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unwind, and so stop all of it
    allow_files()
    timing = ClusterTiming(seconds, warm_up, rounds)
    begun = time.monotonic()
    compared: list[Line] = []
    taken: dict[str, dict[str, list[Reading]]] = {}
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory:
        facts = describe(Path(directory))
        for row in rows:
            brokers = [each for each in row.brokers if only.lower() in ("", each.lower())]
            place = Path(directory) / row.name
            turns = 1 if row.row.once else repeat
            taken[row.name] = _readings(row, brokers, place, timing, turns, versions)
            compared += lines(row.row, taken[row.name])
            console.print(terminal(compared[-len(row.row.targets) :]))
    others = [
        each.others_cores for row in taken.values() for found in row.values() for each in found
    ]
    facts |= versions
    facts["Cores"] = (
        f"all nodes of a cluster, and ZooKeeper, are pinned to core {broker_core()}, the clients "
        f"to core {client_core()}"
    )
    facts["Other processes"] = f"kept {max(others, default=0):.2f} cores busy at worst"
    facts["Date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts["Took"] = f"{(time.monotonic() - begun) / 60:.1f} minutes"
    console.print(terminal(compared), f"Other processes {facts['Other processes']}")
    if json_output is not None:
        json_output.write_text(json.dumps(_json(facts, taken), indent=2) + "\n")
    path = output or (None if names or only else RESULTS)
    if path is not None:
        path.write_text(markdown(compared, facts, _commands(rows), _how(timing, repeat)))
        console.print(f"written to {path}")


def _readings(
    row: ClusterRow,
    names: list[str],
    directory: Path,
    timing: ClusterTiming,
    turns: int,
    versions: dict[str, str],
) -> dict[str, list[Reading]]:
    """Each broker's readings, taken in turns; clusters are fresh for every row."""
    taken: dict[str, list[Reading]] = {name: [] for name in names}
    clusters = {name: _cluster(name, directory / name, row) for name in names}
    started: set[str] = set()
    try:
        for _ in range(turns):
            for name, cluster in clusters.items():
                disturbance = Disturbance()
                try:
                    if name not in started:
                        started.add(name)
                        cluster.start()
                        versions[name] = cluster.version
                    reading = measure(row, cluster, timing)
                    taken[name].append(replace(reading, others_cores=disturbance.cores()))
                except (AssertionError, BenchError, OSError) as error:
                    taken[name].append(Reading(failure=str(error)))
                console.print(f"[dim]{row.name} {name}: {taken[name][-1]}")
    finally:
        for name in started:
            clusters[name].stop()
    return taken


def _cluster(name: str, directory: Path, row: ClusterRow) -> BenchCluster:
    if name == "RabbitMQ":
        return RabbitMqCluster(directory)
    return LeveretCluster(directory, row.row.durability)


def _json(facts: dict[str, str], taken: dict[str, dict[str, list[Reading]]]) -> dict[str, object]:
    rows = {
        row: {broker: [asdict(each) for each in found] for broker, found in readings.items()}
        for row, readings in taken.items()
    }
    return {"facts": facts, "rows": rows}


def _how(timing: ClusterTiming, repeat: int) -> str:
    return (
        f"Medians of {repeat} readings, of {timing.seconds:g} s after {timing.warm_up:g} s of "
        f"warm-up; the leader was killed {timing.rounds} times. Three nodes of each broker on "
        "loopback, Leveret's with one ZooKeeper, in turns, with the same client (`leveret perf`). "
        "Processor time is that of all three nodes (of the nodes that are used where they are "
        "counted), without ZooKeeper's. Written by `python -m bench.cluster`; how to read it: "
        "../README.md."
    )


def _commands(rows: list[ClusterRow]) -> dict[str, str]:
    commands = {
        "RabbitMQ": "/usr/lib/rabbitmq/bin/rabbitmq-server, rabbitmqctl join_cluster",
        "Leveret": "leveret serve --cluster ZOOKEEPER --node-id NUMBER --durability DURABILITY",
    }
    return commands | {
        row.name: "leveret perf " + shlex.join(row.row.options) for row in rows if row.row.options
    }


if __name__ == "__main__":
    typer.run(main)
