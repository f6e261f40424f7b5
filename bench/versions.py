"""`python -m bench.versions CHECKOUT [ROWS]`: an earlier build of Leveret beside this one.

A change must make no row slower by more than 3 %, which is less than readings of one row lie apart,
and processes of one build lie apart by 10 % as well, by where their memory falls. So each round
starts both builds anew and reads them in turns; a build's figure of a round is the median of its
readings, and what is printed is the median of the rounds' ratios with the quartiles around it.

    git worktree add ../before COMMIT && make -C ../before build
    python -m bench.versions ../before                 # every row whose figure is a rate
    python -m bench.versions ../before get --rounds 31
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench.leveret import Leveret
from bench.measure import Timing, measure
from bench.processes import BenchError, allow_files
from bench.rows import ROWS, Kind, Row

COMPARED = (Kind.FLOW, Kind.GET)
READINGS = 3  # of each build in a round, behind one that is thrown away
FIGURES = {  # of each: is more of it better
    "published_per_s": True,
    "consumed_per_s": True,
    "per_cpu_s": True,
    "p50_ms": False,
}


@dataclass(frozen=True)
class Ratio:
    """How this build stands to the other in one figure: above 1 is better, whatever the figure."""

    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, pairs: list[tuple[float, float]], *, more_is_better: bool) -> Ratio:
        """From (the other's, ours) of each round."""
        ratios = [ours / other if more_is_better else other / ours for other, ours in pairs]
        lower, median, upper = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return cls(lower, median, upper)


def main(
    checkout: Annotated[Path, typer.Argument(help="The other build's checkout, with its .venv.")],
    names: Annotated[list[str] | None, typer.Argument(help="Rows; all rates when none.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each build.")] = 11,
    seconds: Annotated[float, typer.Option(min=0.1, help="Measured time of a flow.")] = 0.5,
) -> None:
    """Compare two builds of Leveret on this machine."""
    python = checkout.resolve() / ".venv" / "bin" / "python"
    if not python.exists():
        raise typer.BadParameter(f"{python} does not exist: run `make build` there first")
    rows = [row for row in ROWS if row.kind in COMPARED and (not names or row.name in names)]
    unknown = set(names or []) - {row.name for row in rows}
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: not a row whose figure is a rate")
    timing = Timing(seconds, seconds / 3, 1, allow_files())
    print(f"{'row':<16} {'figure':<16} {'other':>13} {'this':>13}   this/other (quartiles)")
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory:
        for row in rows:
            _compare(row, Path(directory) / row.name, python, timing, rounds)


def _compare(row: Row, directory: Path, python: Path, timing: Timing, rounds: int) -> None:
    """Read both builds round by round and print a line for each figure of the row."""
    taken: dict[str, list[tuple[float, float]]] = {}
    for turn in range(rounds):
        place = directory / str(turn)
        other = Leveret(place / "other", row.durability, row.settings, python)
        this = Leveret(place / "this", row.durability, row.settings)
        order = (other, this) if turn % 2 == 0 else (this, other)
        read = _read(row, order, timing)
        for figure in _figures(row) & read[this].keys():
            taken.setdefault(figure, []).append((read[other][figure], read[this][figure]))
        shutil.rmtree(place)
    for figure, pairs in sorted(taken.items()):
        if not all(value > 0 for pair in pairs for value in pair):
            continue
        ratio = Ratio.of(pairs, more_is_better=FIGURES[figure])
        others, ours = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(
            f"{row.name:<16} {figure:<16} {others:>13,.3f} {ours:>13,.3f}   "
            f"{ratio.median:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f})",
            flush=True,
        )


def _figures(row: Row) -> set[str]:
    """The figures of a row that are compared: its targets, and messages by processor time."""
    return FIGURES.keys() & ({target.metric for target in row.targets} | {"per_cpu_s"})


def _read(row: Row, order: tuple[Leveret, ...], timing: Timing) -> dict[Leveret, dict[str, float]]:
    """Start the builds, read them in turns, stop them; the medians of each one's figures."""
    readings: dict[Leveret, list[dict[str, float]]] = {broker: [] for broker in order}
    try:
        for broker in order:
            broker.start()
        for _ in range(1 + READINGS):
            for broker in order:
                reading = measure(row, broker, timing)
                if reading.failure or reading.incomplete:
                    raise BenchError(f"{row.name}: {reading.failure or 'messages left behind'}")
                readings[broker].append(reading.figures)
    finally:
        for broker in order:
            broker.stop()
    return {
        broker: {
            figure: statistics.median(each[figure] for each in figures[1:]) for figure in figures[0]
        }
        for broker, figures in readings.items()
    }


if __name__ == "__main__":
    typer.run(main)
