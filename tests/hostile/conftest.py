"""The table of what attacks did, at the end of a run: the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.broker import MIB

if TYPE_CHECKING:
    from tests.hostile.trial import Outcome

OUTCOMES = pytest.StashKey["list[Outcome]"]()
HEAD = (
    f"{'attack':24}{'seed':>6}{'bytes':>9}{'strikes':>8}{'refused':>8}"
    f"{'p50':>7}{'p99.9':>8}{'worst':>8}  |{'net p99.9':>10}{'worst':>8}"
    f"{'work':>8}{'times':>7}  |"
    f"{'MiB':>6}{'left':>6}"
)
NOTE = (
    "waits in ms: as passed | without what the machine took from node and witness, what the "
    "witness computed for a publish, and net p99.9 as so many times that | memory beyond the quiet "
    "node's at its peak, and when all was gone"
)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTCOMES] = []


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> list[Outcome]:
    """Rows of the table at the end."""
    return request.config.stash[OUTCOMES]


def row(one: Outcome) -> str:
    passed, own = one.witness.passed, one.witness.own
    return (
        f"{one.attack:24}{one.seed:6}{one.sent_bytes:9}{one.strikes:8}{one.refused:8}"
        f"{passed.median:7.1f}{passed.p999:8.1f}{passed.worst:8.1f}  |"
        f"{own.p999:10.1f}{own.worst:8.1f}{one.witness.work_ms:8.2f}{one.p999_publishes:7.0f}  |"
        f"{one.grown_bytes / MIB:6.0f}{one.left_bytes / MIB:6.0f}"
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    outcomes = sorted(config.stash[OUTCOMES], key=lambda one: -one.p999_publishes)
    if outcomes:
        terminalreporter.section("attacks")
        for line in (HEAD, *map(row, outcomes), NOTE):
            terminalreporter.write_line(line)
