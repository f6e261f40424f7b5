"""Settings that hold for every test."""

from __future__ import annotations

import gc
import signal
from collections import Counter

import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.scheduler import LoadFileScheduling

from tests.support.starters import Starters

# How long an example takes says something about the machine and its neighbours, not about the code.
settings.register_profile("leveret", deadline=None)
# For `make check`: who works on a change runs it often, and each time draws other examples.
settings.register_profile("check", deadline=None, max_examples=25)
settings.load_profile("leveret")

# Whoever runs tests behind his shell has them ignore interrupts, and so would every process that a
# test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESSES = "processes"

# Files whose tests start a cluster: a ZooKeeper and three nodes, with clients.
CLUSTERS = ("tests/cluster_processes/", "tests/bench/test_cluster.py")

# Hypothesis looks for a smaller example of a failure for five minutes at most.
PROPERTY_SECONDS = 420


class ClustersInTurn(LoadFileScheduling):
    """Gives each file to one worker, and all files that start clusters to the same one.

    Several clusters at a time would wait for processors, and their sessions end by that.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "clusters" if nodeid.startswith(CLUSTERS) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ClustersInTurn | None:
    """Have one cluster of processes at a time, where files are given to workers."""
    return ClustersInTurn(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start processes; where several files run at a time, begin with these.

    They take the longest, those of clusters and files with many tests before all, and a long file
    that begins last would be waited for.
    """
    starters = Starters()
    for item in items:
        if starters.include(item):
            item.add_marker(PROCESSES)
        is_property = is_hypothesis_test(getattr(item, "obj", None))
        if is_property and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PROPERTY_SECONDS))
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        starting = {item.path for item in items if item.get_closest_marker(PROCESSES)}
        items.sort(
            key=lambda item: (
                not item.nodeid.startswith(CLUSTERS),
                item.path not in starting,
                -tests[item.path],
                item.path,
            )
        )


def pytest_collection_finish() -> None:
    """All the tests stay: no collection of garbage needs to look at them again."""
    gc.collect()
    gc.freeze()
