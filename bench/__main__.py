"""`python -m bench`: RabbitMQ and Leveret, row by row, alternating, in one run.

Rows of single requests have the floor and LavinMQ beside them.
"""

from __future__ import annotations

import shlex
import signal
import statistics
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.disturbance import TOLERABLE_CORES
from bench.floor import Floor, compile_floor
from bench.lavinmq import LavinMq
from bench.leveret import Leveret
from bench.machine import describe
from bench.measure import Reading, Timing, perf_arguments
from bench.processes import BROKER_CORE, Broker, allow_files, broker_core, client_core
from bench.rabbitmq import RabbitMq
from bench.report import Line, lines, markdown, terminal
from bench.rows import FLOORS, POLLING_FLOOR, ROWS, Kind, Row
from bench.turns import Turns

RESULTS = Path(__file__).parent / "RESULTS.md"
BROKERS = ("RabbitMQ", "Leveret")
QUICK_SETTLE_S = 5

console = Console()


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Rows; all when none is named.")] = None,
    quick: Annotated[bool, typer.Option(help="One short reading of each, in 8 minutes.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Readings of each row.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Measured time of a flow.")] = 3,
    settle: Annotated[
        float, typer.Option(min=0, help="Rest after the starts, in rows of single requests.")
    ] = 60,
    only: Annotated[
        str, typer.Option(help="One broker alone: Leveret, RabbitMQ, LavinMQ, floor.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option(help="Where to write; RESULTS.md when all rows were run.")
    ] = None,
) -> None:
    """Compare Leveret with RabbitMQ on this machine."""
    brokers = {row: _brokers(row, only) for row in _chosen(names or [])}
    rows = [row for row in brokers if brokers[row]]
    if not rows:
        raise typer.BadParameter(f"no row that was asked for is measured with {only}")
    _interrupt_on_signals()
    files_max = allow_files()
    timing = Timing(2, 0.5, 0.2, files_max) if quick else Timing(seconds, 1, 1, files_max)
    repeat = 1 if quick else repeat
    settle = min(settle, QUICK_SETTLE_S) if quick else settle
    start = time.monotonic()
    compared: list[Line] = []
    everything: list[Reading] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory:
        facts = describe(Path(directory))
        for row in rows:
            turns = Turns(row, brokers[row], timing, partial(_broker, row, Path(directory)))
            readings = _readings(turns, 1 if row.once else repeat, settle if row.yardsticks else 0)
            versions |= turns.versions
            compared += lines(row, readings)
            everything += [each for taken in readings.values() for each in taken]
            console.print(terminal(compared[-len(row.targets) :]))
    facts |= versions
    if not LavinMq.is_installed():
        facts[LavinMq.name] = "not measured: there is no `lavinmq` on the PATH"
    facts["Cores"] = _cores()
    facts["Other processes"] = _others([each.others_cores for each in everything])
    facts["Date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts["Took"] = f"{(time.monotonic() - start) / 60:.1f} minutes"
    console.print(terminal(compared), f"Other processes {facts['Other processes']}")
    complete = not names and not only and not quick
    path = output or (RESULTS if complete else None)
    if path is not None:
        path.write_text(
            markdown(compared, facts, _commands(rows, timing), _how(timing, repeat, settle))
        )
        console.print(f"written to {path}")


def _chosen(names: list[str]) -> list[Row]:
    known = {row.name: row for row in ROWS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: the rows are {', '.join(known)}")
    return [known[name] for name in names] or list(ROWS)


def _brokers(row: Row, only: str) -> list[str]:
    """The brokers that a row is measured with, or `only` one of them."""
    missing = [] if LavinMq.is_installed() else [LavinMq.name]
    names = [name for name in (*BROKERS, *row.yardsticks) if name not in missing]
    return [name for name in names if only.lower() in ("", name.lower())]


def _readings(turns: Turns, repeat: int, settle: float) -> dict[str, list[Reading]]:
    """Each broker's readings, printed as they are taken."""
    try:
        if settle:
            turns.settle(settle)
        for _ in range(repeat):
            for name, reading in turns.take():
                console.print(f"[dim]{name}: {reading}")
    finally:
        # Who is impatient and interrupts twice would leave brokers running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        turns.close()
        _interrupt_on_signals()
    return turns.taken


def _interrupt_on_signals() -> None:
    """Let SIGTERM do what an interrupt does: unwind, and so stop what was started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _broker(row: Row, directory: Path, name: str) -> Broker:
    """A broker of a row, in a new directory of its own."""
    place = Path(tempfile.mkdtemp(dir=directory, prefix=f"{row.name}-{name}-".replace(" ", "-")))
    core = None if row.any_core else BROKER_CORE
    if name in FLOORS:
        program, polls = compile_floor(directory), name == POLLING_FLOOR
        return Floor(place, row.durability, core, program, polls=polls)
    if name == LavinMq.name:
        return LavinMq(place, row.durability, core)
    if name == RabbitMq.name:
        return RabbitMq(place, core)
    return Leveret(place, row.durability, row.settings, core=core)


def _others(cores: list[float]) -> str:
    """How quiet the machine was, and whether the figures can be trusted."""
    text = f"kept {statistics.mean(cores):.2f} cores busy on average, {max(cores):.2f} at worst"
    quiet = max(cores) <= TOLERABLE_CORES
    return text if quiet else f"{text}: **disturbed, measure again on a quiet machine**"


def _cores() -> str:
    if broker_core() == client_core():
        return "one, which broker and client share"
    return (
        f"each broker is pinned to core {broker_core()}, the client to core {client_core()}; "
        f"none of them in {', '.join(f'`{row.name}`' for row in ROWS if row.any_core)}"
    )


def _how(timing: Timing, repeat: int, settle: float) -> str:
    return (
        f"Medians of {repeat} readings (of one for backlog, delay and idle), of "
        f"{timing.seconds:g} s after {timing.warm_up:g} s of warm-up; where messages or "
        "connections are counted, of "
        f"{timing.messages_share:.0%} of the number named. RabbitMQ and Leveret take turns, both "
        "run throughout a row, both have the same client (`leveret perf`). 16-byte bodies, one "
        "publisher, one consumer, one queue unless said. RabbitMQ has its defaults and no plugins. "
        f"Rows of single requests begin {settle:g} s after the starts; beside them are the floor, "
        "a program that makes the system calls no broker can avoid and nothing else, and LavinMQ. "
        "Written by `python -m bench`; how to read it: README.md."
    )


def _commands(rows: list[Row], timing: Timing) -> dict[str, str]:
    commands = {
        "RabbitMQ": "/usr/lib/rabbitmq/bin/rabbitmq-server",
        "Leveret": "leveret serve --data-dir DIRECTORY --durability DURABILITY --port 0",
        "LavinMQ": "lavinmq --data-dir DIRECTORY; with --no-sync where DURABILITY is os",
        "Floor": "floor PORT FILE; with -s where DURABILITY is fsync, with -p if it polls",
    }
    for row in rows:
        if row.kind is Kind.FLOW:
            commands[row.name] = "leveret perf " + shlex.join(perf_arguments(row, timing))
    return commands


if __name__ == "__main__":
    typer.run(main)
