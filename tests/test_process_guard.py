"""A test starts processes where it, or its fixture, uses the fixture `processes`; else it fails."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.support.process_guard import ProcessGuard, ProcessStartError


def run_nothing():
    subprocess.run([sys.executable, "-c", ""], check=True)


def item(*used, **fixtures):
    """Return a test that uses fixtures; each of `fixtures` uses others."""
    definitions = {name: [SimpleNamespace(argnames=needs)] for name, needs in fixtures.items()}
    return SimpleNamespace(
        nodeid="test_one",
        fixturenames=used,
        _fixtureinfo=SimpleNamespace(name2fixturedefs=definitions),
    )


@pytest.fixture
def guard(processes):
    """One of its own, which hears what the hook of this run hears."""
    guard = ProcessGuard()
    guard.install()
    return guard


def test_a_test_says_that_it_starts_processes(guard):
    with guard.running(item("processes")):
        run_nothing()
    with guard.running(item("other")), pytest.raises(ProcessStartError, match="test_one starts"):
        run_nothing()
    run_nothing()  # between tests


def test_a_fixture_says_so_too_and_may_leave_it_to_one_that_it_uses(guard):
    test = item("processes", "node", "client", node=("processes",), client=("node",), tmp_path=())
    with guard.running(test):
        for name in ("node", "client"):
            with guard.setting_up(name):
                run_nothing()
        with (
            guard.setting_up("tmp_path"),
            pytest.raises(ProcessStartError, match="fixture tmp_path starts"),
        ):
            run_nothing()


def test_who_goes_on_all_the_same_fails_afterwards(guard):
    with guard.running(item()):
        with pytest.raises(ProcessStartError):
            run_nothing()
        with pytest.raises(ProcessStartError):
            guard.check()
    guard.check()  # nothing is left for the next test


def test_a_forked_child_is_not_asked(guard):
    with guard.running(item("processes")):
        child = os.fork()
        if not child:
            guard._item = item()
            try:
                run_nothing()
            except ProcessStartError:
                os._exit(1)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_mark_is_given(request, processes):
    assert request.node.get_closest_marker("processes")


def test_the_mark_is_not_given(request):
    assert not request.node.get_closest_marker("processes")
