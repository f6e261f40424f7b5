"""`python -m bench`: RabbitMQ and Leveret, row by row, alternating, in one run."""

from __future__ import annotations

import shlex
import signal
import statistics
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.choice import chosen
from bench.disturbance import TOLERABLE_CORES, Disturbance
from bench.floor import floor
from bench.leveret import Leveret
from bench.machine import describe
from bench.measure import Reading, Timing, measure, perf_arguments
from bench.processes import BenchError, Broker, allow_files, broker_core, client_core
from bench.rabbitmq import RabbitMq
from bench.report import Line, lines, markdown, terminal
from bench.rows import ROWS, Kind, Row

RESULTS = Path(__file__).parent / "RESULTS.md"
BROKERS = ("RabbitMQ", "Leveret")

console = Console()


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Rows; all when none is named.")] = None,
    quick: Annotated[bool, typer.Option(help="One short reading of each, in 5 minutes.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Readings of each row.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Measured time of a flow.")] = 3,
    only: Annotated[str, typer.Option(help="RabbitMQ or Leveret alone.")] = "",
    output: Annotated[
        Path | None, typer.Option(help="Where to write; RESULTS.md when all rows were run.")
    ] = None,
) -> None:
    """Compare Leveret with RabbitMQ on this machine."""
    rows = chosen(names or [], ROWS)
    brokers = [name for name in BROKERS if only.lower() in ("", name.lower())]
    _interrupt_on_signals()
    files_max = allow_files()
    timing = Timing(2, 0.5, 0.2, files_max) if quick else Timing(seconds, 1, 1, files_max)
    repeat = 1 if quick else repeat
    start = time.monotonic()
    compared: list[Line] = []
    everything: list[Reading] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory:
        facts = describe(Path(directory))
        for row in rows:
            turns = 1 if row.once else repeat
            readings = _readings(row, brokers, Path(directory), timing, turns, versions)
            compared += lines(row, readings)
            everything += [each for taken in readings.values() for each in taken]
            console.print(terminal(compared[-len(row.targets) :]))
    facts |= versions
    facts["Cores"] = _cores()
    facts["A round trip to a server that only echoes (bench/floor.py)"] = floor()
    facts["Other processes"] = _others([each.others_cores for each in everything])
    facts["Date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts["Took"] = f"{(time.monotonic() - start) / 60:.1f} minutes"
    console.print(terminal(compared), f"Other processes {facts['Other processes']}")
    complete = not names and not only and not quick
    path = output or (RESULTS if complete else None)
    if path is not None:
        path.write_text(markdown(compared, facts, _commands(rows, timing), _how(timing, repeat)))
        console.print(f"written to {path}")


def _readings(
    row: Row,
    names: list[str],
    directory: Path,
    timing: Timing,
    repeat: int,
    versions: dict[str, str],
) -> dict[str, list[Reading]]:
    """Each broker's readings, taken in turns; brokers are fresh for every row."""
    taken: dict[str, list[Reading]] = {name: [] for name in names}
    brokers: dict[str, Broker] = {}
    try:
        for turn in range(repeat):
            for name in names:
                disturbance = Disturbance()
                # A start is a reading of its own, so that row starts anew each time.
                fresh = name not in brokers or row.kind is Kind.START
                if fresh and name in brokers:
                    brokers.pop(name).stop()
                try:
                    if fresh:
                        place = directory / f"{row.name}-{name}-{turn}"
                        broker = _broker(name, place, row)
                        brokers[name] = broker
                        broker.start()
                        versions[name] = broker.version
                    reading = measure(row, brokers[name], timing)
                    taken[name].append(replace(reading, others_cores=disturbance.cores()))
                except (BenchError, OSError) as error:
                    taken[name].append(Reading(failure=str(error)))
                console.print(f"[dim]{row.name} {name}: {taken[name][-1]}")
    finally:
        # Who is impatient and interrupts twice would leave brokers running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for broker in brokers.values():
            broker.stop()
        _interrupt_on_signals()
    return taken


def _interrupt_on_signals() -> None:
    """Let SIGTERM do what an interrupt does: unwind, and so stop what was started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _broker(name: str, directory: Path, row: Row) -> Broker:
    return (
        RabbitMq(directory)
        if name == "RabbitMQ"
        else Leveret(directory, row.durability, row.settings)
    )


def _others(cores: list[float]) -> str:
    """How quiet the machine was, and whether the figures can be trusted."""
    text = f"kept {statistics.mean(cores):.2f} cores busy on average, {max(cores):.2f} at worst"
    quiet = max(cores) <= TOLERABLE_CORES
    return text if quiet else f"{text}: **disturbed, measure again on a quiet machine**"


def _cores() -> str:
    if broker_core() == client_core():
        return "one, which broker and client share"
    return f"each broker is pinned to core {broker_core()}, the client to core {client_core()}"


def _how(timing: Timing, repeat: int) -> str:
    return (
        f"Medians of {repeat} readings (of one for backlog, delay and idle), of "
        f"{timing.seconds:g} s after {timing.warm_up:g} s of warm-up; where messages or "
        "connections are counted, of "
        f"{timing.messages_share:.0%} of the number named. RabbitMQ and Leveret take turns, both "
        "run throughout a row, both have the same client (`leveret perf`). 16-byte bodies, one "
        "publisher, one consumer, one queue unless said. RabbitMQ has its defaults and no plugins. "
        "Written by `python -m bench`; how to read it: README.md."
    )


def _commands(rows: list[Row], timing: Timing) -> dict[str, str]:
    commands = {
        "RabbitMQ": "/usr/lib/rabbitmq/bin/rabbitmq-server",
        "Leveret": "leveret serve --data-dir DIRECTORY --durability DURABILITY --port 0",
    }
    for row in rows:
        if row.kind is Kind.FLOW:
            commands[row.name] = "leveret perf " + shlex.join(perf_arguments(row, timing))
    return commands


if __name__ == "__main__":
    typer.run(main)
