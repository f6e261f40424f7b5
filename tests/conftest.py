"""Settings that hold for every test."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

from tests.support.process_guard import FIXTURE, ProcessGuard, starts_processes
from tests.support.spawning import close_coroutines
from tests.support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes says something about the machine and its neighbours, not about the code.
settings.register_profile("leveret", deadline=None)
# For `make check`: who works on a change runs it often, and each time draws other examples.
settings.register_profile("check", deadline=None, max_examples=25)
# For `python -m tests.mutations`: it asks whether a test fails, and not with how short an example.
settings.register_profile(
    "unshrunk", deadline=None, phases=[phase for phase in Phase if phase is not Phase.shrink]
)
settings.load_profile("leveret")

# Whoever runs tests behind his shell has them ignore interrupts, and so would every process that a
# test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

guard = ProcessGuard()
guard.install()
TEST_SECONDS_MAX = 300 * PATIENCE  # of a test that names no time: five limits of waiting


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest-timeout how long a test may take, unless the command line does."""
    if config.option.timeout is None:
        config.option.timeout = TEST_SECONDS_MAX


@pytest.fixture(scope="session", name=FIXTURE)
def may_start_processes() -> None:
    """Permit processes to be started: a node, a command, a client of somebody else's."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start processes; where several files run at a time, begin with these.

    They take the longest, those with many tests before all, and a long file that begins last would
    be waited for.
    """
    for item in items:
        if starts_processes(item):
            item.add_marker(FIXTURE)
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        starting = {item.path for item in items if item.get_closest_marker(FIXTURE)}
        items.sort(key=lambda item: (item.path not in starting, -tests[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Have no test start a process that does not say so."""
    with guard.running(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    """Have no fixture start a process that does not say so."""
    with guard.setting_up(fixturedef.argname):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close what a test and its fixtures have not begun."""
    close_coroutines()
    guard.check()


def pytest_collection_finish() -> None:
    """All the tests stay: no collection of garbage needs to look at them again."""
    gc.collect()
    gc.freeze()
