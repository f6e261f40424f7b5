"""Settings that hold for every test."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import is_hypothesis_test, settings

from tests.support.examples import (
    SCALE,
    SHRINKING_SECONDS_MAX,
    forget_constants,
    register_profiles,
)
from tests.support.process_guard import FIXTURE, ProcessGuard, starts_processes
from tests.support.spawning import close_coroutines
from tests.support.waiting import TEST_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

register_profiles()

# Whoever runs tests behind his shell has them ignore interrupts, and so would every process that a
# test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

SMOKE_TESTS_MAX = 60  # they run one after the other in `make test`: two seconds each
guard = ProcessGuard()
guard.install()
# Of a test with examples from Hypothesis: it tries so many more, and tells nothing before it has
# shrunk the one that fails.
PROPERTY_SECONDS_MAX = TEST_SECONDS_MAX * max(1, SCALE) + SHRINKING_SECONDS_MAX


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest-timeout how long a test may take, unless the command line does."""
    if config.option.timeout is None:
        config.option.timeout = TEST_SECONDS_MAX
    if settings().derandomize:
        forget_constants()


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
        if is_hypothesis_test(getattr(item, "obj", None)):
            allow_for_shrinking(item)
    smoke = [item for item in items if item.get_closest_marker("smoke")]
    if len(smoke) > SMOKE_TESTS_MAX or not all(map(starts_processes, smoke)):
        message = f"the mark `smoke` is for {SMOKE_TESTS_MAX} tests, of those that start processes"
        raise pytest.UsageError(message)
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        starting = {item.path for item in items if item.get_closest_marker(FIXTURE)}
        items.sort(key=lambda item: (item.path not in starting, -tests[item.path], item.path))


def allow_for_shrinking(item: pytest.Item) -> None:
    """Give a test with examples its time, unless it or the command line states one."""
    stated = item.get_closest_marker("timeout") is not None
    if not stated and item.config.option.timeout == TEST_SECONDS_MAX:
        item.add_marker(pytest.mark.timeout(PROPERTY_SECONDS_MAX))


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
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close what a test and its fixtures have not begun; forget a file's garbage."""
    close_coroutines()
    guard.check()
    if nextitem is not None and nextitem.path != item.path:
        set_survivors_aside()


def pytest_collection_finish() -> None:
    """Set the tests aside."""
    set_survivors_aside()


def set_survivors_aside() -> None:
    """Have no later collection look at what is alive: tests that collect would take ever longer."""
    gc.collect()
    gc.freeze()
