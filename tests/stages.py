"""The stages of `make verify`: which tests each has, and what these need.

`make test` has the tests that start no process, and those marked `smoke`; together with the stages
these are all tests, but for the long ones of `make soak` and `make first-hour`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

CORES = os.cpu_count() or 1
VENV = Path(sys.prefix)
SPARK_OLDEST = "spark-4.2"  # a directory of the virtual environment
# The tests of a file run one after the other in one process, for many files share a node.
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
# The two runs of `make test`.
IN_PROCESS = ("-n", str(CORES), *BY_FILE, "-m", "not (processes or soak)")
SMOKE = ("-m", "smoke")
SPARK_OLDEST_FILES = ("batch", "stream", "write", "queue", "docs", "jobs")


class Stage(NamedTuple):
    """Tests that run together, chosen by an expression of marks, below some paths.

    `needs` is what the Makefile installs for them, as a file of the virtual environment.
    """

    name: str
    marks: str = ""
    paths: tuple[str, ...] = ("tests",)
    workers: int = CORES
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    needs: str = ".test"

    def arguments(self) -> list[str]:
        """Return pytest's arguments."""
        return ["-n", str(self.workers), *BY_FILE, *self.options, "-m", self.marks, *self.paths]

    def arguments_for(self, test: str) -> list[str]:
        """Return those that run one test alone."""
        return [*self.options, "-m", "", test]


STAGES = (
    Stage(
        "properties",
        "hypothesis and not (processes or soak)",
        options=("--hypothesis-profile=random",),
        environment=(("LEVERET_TEST_EXAMPLES", "3"),),
    ),
    # A test with a process waits for it half of the time: two for each core.
    Stage(
        "processes",
        "processes and not (smoke or kills or guide or zookeeper or cluster or soak or hostile or "
        "clean_root)",
        workers=2 * CORES,
    ),
    Stage("kills", "kills and not soak", workers=2 * CORES),
    Stage("guide", "guide"),
    # Leases are of a second or two: nothing else runs beside them.
    Stage("zookeeper", "zookeeper", workers=1, needs=".zookeeper"),
    Stage("cluster", "cluster", workers=1, needs=".cluster"),
    Stage("interop", paths=("interop_tests",), workers=1, needs=".interop"),
    Stage("spark", paths=("spark_tests",), needs=".spark"),
    Stage(
        "spark-oldest",
        paths=tuple(f"spark_tests/test_{name}.py" for name in SPARK_OLDEST_FILES),
        environment=(("PYTHONPATH", str(VENV / SPARK_OLDEST)),),
        needs=f"{SPARK_OLDEST}/.installed",
    ),
    Stage("hostile", "hostile", workers=1),
)
