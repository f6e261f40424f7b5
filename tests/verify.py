"""Runs all that `make test` leaves out, stage by stage: `python -m tests.verify [STAGE...]`.

Nothing ends it early. A test that fails is run once more, alone; where it passes then, it is
*unstable*, and is named with the machine's load at its failure and the CPU time that was stolen.
The exit status is 1 if a test fails both times, or a stage cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.stages import STAGES, VENV

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.stages import Stage

ALONE_MAX = 20  # where more tests fail, they have a cause in common that no second run takes away
SEED = "LEVERET_TEST_SEED"


@dataclass
class Run:
    """Results of pytest, as tests/support/results.py writes them.

    Tests are named by their ids, with the machine at their failure.
    """

    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    not_run: int = 0  # processes that were to run them died, or somebody has interrupted them
    problem: str = ""  # why there are no results, or not those of all tests


@dataclass
class Outcome(Run):
    """Results of a stage."""

    stage: str = ""
    unstable: dict[str, str] = field(default_factory=dict)
    seconds: float = 0

    @property
    def good(self) -> bool:
        """Whether nothing failed twice."""
        return not self.failed and not self.problem


def main() -> int:
    """Run the stages that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify", description=__doc__)
    names = [stage.name for stage in STAGES]
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(names)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary as JSON")
    arguments = parser.parse_args()
    if unknown := set(arguments.stages) - set(names):
        parser.error(f"no stage {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(1 << 32)))
    outcomes: list[Outcome] = []
    try:
        wanted = [stage for stage in STAGES if stage.name in (arguments.stages or names)]
        outcomes.extend(verify(stage) for stage in wanted)
    except KeyboardInterrupt:
        print("interrupted: the rest was not run")
        return 1
    finally:
        print(summary(outcomes))
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(report(outcomes), indent=2) + "\n")
    return 0 if all(outcome.good for outcome in outcomes) else 1


def verify(stage: Stage) -> Outcome:
    """Install what a stage needs, and run it."""
    print(f"=== {stage.name}", flush=True)
    began = time.monotonic()
    needed = f"{os.path.relpath(VENV)}/{stage.needs}"
    made = subprocess.run(["make", f"VENV={os.path.relpath(VENV)}", needed], check=False)
    if made.returncode:
        outcome = Outcome(stage=stage.name, problem=f"make {needed} failed")
    else:
        outcome = run_stage(stage)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def run_stage(stage: Stage) -> Outcome:
    """Run the tests of a stage, and then those that failed, each by itself."""
    run = run_pytest(stage, stage.arguments())
    outcome = Outcome(**vars(run), stage=stage.name)
    for test in list(run.failed) if len(run.failed) <= ALONE_MAX else []:
        print(f"=== {stage.name}: {test}, alone", flush=True)
        again = run_pytest(stage, stage.arguments_for(test))
        if again.passed and not again.failed:
            outcome.unstable[test] = outcome.failed.pop(test)
    return outcome


def run_pytest(stage: Stage, arguments: list[str]) -> Run:
    """Run tests of a stage, with their output where ours goes."""
    with TemporaryDirectory(prefix="leveret-verify-") as directory:
        results = Path(directory, "results.json")
        own = ["-q", "-p", "no:cacheprovider", "--results", str(results)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *own, *arguments],
            env={**os.environ, **dict(stage.environment)},
            check=False,
        )
        if not results.exists():
            return Run(problem=f"pytest ended with status {done.returncode}, without results")
        run = Run(**json.loads(results.read_text()))
    if not run.passed and not run.failed:
        run.problem = "no test was run"
    elif run.not_run:
        run.problem = f"{run.not_run} tests were not run"
    return run


def summary(outcomes: Iterable[Outcome]) -> str:
    """Return a table of the stages, and below it what went wrong."""
    lines = [f"{'stage':<14}{'passed':>8}{'failed':>8}{'unstable':>10}{'skipped':>9}{'seconds':>9}"]
    details = []
    for one in outcomes:
        counts = f"{one.passed:>8}{len(one.failed):>8}{len(one.unstable):>10}{one.skipped:>9}"
        lines.append(f"{one.stage:<14}{counts}{one.seconds:>9.0f}")
        details += [f"{one.stage}: {one.problem}"] if one.problem else []
        details += [f"failed    {test} ({machine})" for test, machine in one.failed.items()]
        details += [f"unstable  {test} ({machine})" for test, machine in one.unstable.items()]
    return "\n".join(["", *lines, f"seed of the random kills: {os.environ[SEED]}", *details])


def report(outcomes: Iterable[Outcome]) -> dict[str, object]:
    """Return the summary for machines."""
    return {"seed": int(os.environ[SEED]), "stages": [asdict(one) for one in outcomes]}


if __name__ == "__main__":
    sys.exit(main())
