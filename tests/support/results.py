"""Results of a run of pytest: a line of them, and all as JSON with `--results FILE`.

A plugin of every run here: tests/conftest.py registers it, and `make verify`, which reads the JSON,
for the tests beside tests/.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.examples import ExamplesRecorder
from tests.support.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXAMPLES = "examples"  # a property of a test's report: how many examples it tried, and their digest
MEASURED = "measured"  # a property of a test's report: lines that are printed at the end
OPTION = "--results"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(OPTION, metavar="FILE", help="write the results as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Record in this process, and where it is one of several have pytest's own sum up."""
    recorder = ExamplesRecorder()
    recorder.install()
    config.pluginmanager.register(Examples(recorder))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(config.getoption(OPTION)))


class Examples:
    """Has the report of a test say what examples it tried."""

    def __init__(self, recorder: ExamplesRecorder) -> None:
        self._recorder = recorder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Add the property before the report is made."""
        if call.when == "call":
            item.user_properties.append((EXAMPLES, self._recorder.take()))


class Results:
    """Sums up the reports of all tests."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._machine = Machine()
        self._collected: set[str] = set()  # ids of the tests that were to be run
        self._outcomes: dict[str, str] = {}  # of each test, by its id
        self._examples: dict[str, str] = {}
        self._failures: dict[str, str] = {}  # what the machine was like
        self._measured: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take down what is to be run in this process."""
        self._collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Take down what is to be run, where several processes run it."""
        self._collected.update(ids)

    @property
    def _not_run(self) -> int:
        return len(self._collected - self._outcomes.keys())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down one phase of a test: that which failed decides."""
        self._machine.look()
        test = report.nodeid
        if report.failed:
            self._failures.setdefault(test, self._machine.describe(report.duration))
        if self._outcomes.get(test) != "failed" and (report.when == "call" or not report.passed):
            self._outcomes[test] = report.outcome
        if report.when == "call":
            properties = dict(report.user_properties)
            self._examples[test] = properties.get(EXAMPLES, "")
            if MEASURED in properties:
                self._measured[test] = properties[MEASURED]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take a file that cannot be read for a test that fails."""
        if report.failed:
            self._outcomes[report.nodeid] = "failed"
            self._failures[report.nodeid] = self._machine.describe(0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was executed: two runs with the same digest tried the same.

        What tests have measured comes first.
        """
        for test, lines in self._measured.items():
            terminalreporter.section(f"measured by {test}")
            for line in lines:
                terminalreporter.write_line(line)
        if self._not_run:
            terminalreporter.write_line(f"{self._not_run} tests were not run")
        if not self._examples:
            return
        tried = sum(int(one.split()[0]) for one in self._examples.values() if one)
        digest = hashlib.sha256(repr(sorted(self._examples.items())).encode()).hexdigest()[:16]
        terminalreporter.write_line(
            f"executed {len(self._examples)} tests with {tried} examples: digest {digest}"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Write the file."""
        yield
        if self._file:
            outcomes = list(self._outcomes.values())
            found = {
                "passed": outcomes.count("passed"),
                "skipped": outcomes.count("skipped"),
                "failed": self._failures,
                "not_run": self._not_run,
            }
            Path(self._file).write_text(json.dumps(found))
