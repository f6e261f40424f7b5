"""`python -m tests.mutations`: plants one fault after the other, and says which the tests notice.

In a copy of the tree, the tests near a fault run first, then all that `make test` runs, up to the
first that fails. That one has to pass once the fault is gone, or it says nothing.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tests.mutations.faults import FAULTS, Fault
from tests.mutations.tree import TreeCopy, TreeError
from tests.stages import IN_PROCESS, SMOKE

REPOSITORY = Path(__file__).resolve().parents[2]
SURVIVORS_MAX = 2  # with more the tests have failed


class Outcome(StrEnum):
    """Result of the tests with a fault."""

    RED = "red"
    SURVIVED = "survived"
    FLAKY = "flaky"  # the test that failed does so without the fault as well
    ERROR = "error"  # it could not be tried


class Trial(NamedTuple):
    """One fault that was tried. `detail` is the first test that failed, or the error."""

    fault: Fault
    outcome: Outcome
    seconds: float
    detail: str = ""

    def row(self) -> dict[str, object]:
        """Return the trial as JSON has it."""
        return {
            "name": self.fault.name,
            "file": self.fault.file,
            "harm": self.fault.harm,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 1),
            "detail": self.detail,
        }

    def __str__(self) -> str:
        first_line = self.detail.partition("\n")[0]
        return f"{self.outcome:8} {self.seconds:6.1f} s  {first_line}".rstrip()


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Faults; all if none is named.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the faults, and plant none.")] = False,
    near: Annotated[bool, typer.Option(help="Run only the tests near each fault.")] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Where to write them.")] = None,
) -> None:
    """Plant faults one by one, and see which of them the tests notice.

    The exit status is 1 if more than two survive, or a trial says nothing.
    """
    faults = chosen(names or [])
    if show:
        for fault in faults:
            print(f"{fault.name}  {fault.file}\n    {fault.harm}")
        return
    trials = try_all(faults, near_only=near)
    print("\n".join(["", *table(trials)]))
    if output is not None:
        output.write_text(json.dumps([trial.row() for trial in trials], indent=2) + "\n", "utf-8")
    if has_failed(trials):
        raise typer.Exit(1)


def chosen(names: list[str]) -> list[Fault]:
    """Return the faults with these names, all of them if there are none."""
    known = {fault.name: fault for fault in FAULTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"no such fault: {', '.join(unknown)}")
    return [known[name] for name in names or known]


def try_all(faults: list[Fault], *, near_only: bool) -> list[Trial]:
    """Try faults in one copy of the tree, and tell how it goes."""
    trials = []
    with tempfile.TemporaryDirectory(prefix="leveret-mutations-") as directory:
        print("copying and building the tree", flush=True)
        copy = TreeCopy(REPOSITORY, Path(directory))
        copy.prepare()
        for number, fault in enumerate(faults, 1):
            print(f"{number} of {len(faults)}: {fault.name} …", end=" ", flush=True)
            trial = try_one(copy, fault, near_only=near_only)
            trials.append(trial)
            print(trial, flush=True)
            if trial.outcome is Outcome.ERROR:
                print(trial.detail, flush=True)
    return trials


def try_one(copy: TreeCopy, fault: Fault, *, near_only: bool) -> Trial:
    """Plant one fault, and run tests until one fails."""
    selections = [(*IN_PROCESS, fault.near)]
    if not near_only:
        selections += [IN_PROCESS, SMOKE]
    began = time.monotonic()
    try:
        with copy.planted(fault):
            failures = (copy.first_failure(*selection) for selection in selections)
            failed = next(filter(None, failures), None)
            seconds = time.monotonic() - began
        if failed is None:
            return Trial(fault, Outcome.SURVIVED, seconds)
        outcome = Outcome.RED if copy.first_failure(failed) is None else Outcome.FLAKY
        return Trial(fault, outcome, seconds, failed)
    except TreeError as error:
        return Trial(fault, Outcome.ERROR, time.monotonic() - began, str(error))


def table(trials: list[Trial]) -> list[str]:
    """Return the lines of a table of all trials, and one with their numbers."""
    width = max(len(trial.fault.name) for trial in trials)
    counts = Counter(trial.outcome for trial in trials)
    numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    return [*(f"{trial.fault.name:{width}}  {trial}" for trial in trials), "", numbers]


def has_failed(trials: list[Trial]) -> bool:
    """Whether too many faults have survived, or one says nothing about the tests."""
    counts = Counter(trial.outcome for trial in trials)
    return counts[Outcome.SURVIVED] > SURVIVORS_MAX or bool(
        counts[Outcome.FLAKY] or counts[Outcome.ERROR]
    )


if __name__ == "__main__":
    typer.run(main)
