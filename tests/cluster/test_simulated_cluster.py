"""Three nodes with real stores, whatever happens: nothing confirmed is lost, files get equal.

python -m tests.cluster.test_simulated_cluster 300 400     other seeds than those of `make test`
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import sys

import pytest

from tests.cluster.simulated_cluster import LostError, SimulatedCluster
from tests.cluster.simulated_time import SimulatedLoop

SEEDS = 200
GROUPS = 20  # so that they are spread over the processes of the tests
STEPS = 150
REST_SECONDS = 120.0


class Run:
    """A run of a cluster that is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.loop = SimulatedLoop(self.chance)
        self.trace: list[str] = []
        self.faults = self.chance.choice((0.02, 0.1, 0.25))

    def run(self) -> None:
        try:
            self.loop.run_until_complete(self._run())
        except BaseException as error:
            raise LostError(f"{error!r}\n" + "\n".join(self.trace[-40:])) from error
        finally:
            self.loop.close()

    async def _run(self) -> None:
        self.cluster = SimulatedCluster(self.loop, self.chance)
        for node in range(3):
            self.cluster.start(node)
        for _ in range(STEPS):
            self.step()
            await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.02, 0.3, 2)))
            self.raise_failures()
        await self.rest()
        for topic in self.cluster.topics * 3:  # what is not needed goes with a flush
            self.cluster.serving().reign.publish(topic, 1, 5)
            await asyncio.sleep(1)
        await self.rest()
        self.cluster.check_equal()
        for node in list(self.cluster.processes):
            self.cluster.kill(node)

    def raise_failures(self) -> None:
        if self.cluster.failures:
            raise self.cluster.failures[0]

    def step(self) -> None:
        if self.chance.random() < self.faults:
            self.fault()
        for node in range(3):
            if node not in self.cluster.processes and self.chance.random() < 0.3:
                self.note(f"start {node}")
                self.cluster.start(node)
        leader = self.cluster.serving()
        if leader is not None:
            self.use(leader.reign)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.loop.time():9.3f} {what}")

    def use(self, reign) -> None:
        topic = self.chance.choice(self.cluster.topics)
        log = reign.queues[topic]
        drawn = self.chance.random()
        if drawn < 0.6:
            count, size = self.chance.randint(1, 5), self.chance.choice((5, 100, 700))
            self.note(f"publish {count} x {size} to {topic} at {log.end}")
            reign.publish(topic, count, size)
        elif drawn < 0.62:
            self.note(f"replace {topic}")
            reign.process.runner._tasks.start(reign.replace(topic))
        elif log.committed and not topic.startswith("keyed"):
            first = self.chance.choice((0, 0, self.chance.randrange(log.committed)))
            stop = self.chance.randint(first + 1, log.committed)
            self.note(f"settle {first} to {stop} of {topic}")
            reign.settle(topic, first, stop)
        elif topic.startswith("keyed"):
            reign.store.compactor.check(log)

    def fault(self) -> None:
        cluster = self.cluster
        kind = self.chance.choice(("kill", "machine", "link", "disk", "cut", "failure"))
        node = self.chance.choice(list(cluster.processes) or [None])
        if node is None:
            return
        process = cluster.processes[node]
        self.note(f"{kind} {node}")
        if kind == "kill":
            cluster.kill(node)
        elif kind == "machine":
            cluster.kill(node, self.chance.choice((0, 0, 50, 5000)))
        elif kind == "link":
            for link in list(process.links.open.values()):
                link.close()
        elif kind == "disk":
            files = process.disk.files
            files.error = self.chance.choice((errno.EIO, errno.ENOSPC, 0))
            files.fail_at = files.calls + self.chance.randint(1, 20)
        elif kind == "failure":
            process.runner.failed("its disk fails")
        else:
            pair = frozenset(self.chance.sample(range(3), 2))
            cluster.cuts ^= {pair}
            for other in process.links.open.copy():
                if cluster.is_cut(node, other):
                    process.links.disconnect(other)

    async def rest(self) -> None:
        """Let everything come to rest."""
        cluster = self.cluster
        cluster.cuts.clear()
        cluster.loses_answers = 0
        self.note("rest")
        until = self.loop.time() + REST_SECONDS
        while self.loop.time() < until:
            for node, disk in enumerate(cluster.disks):
                disk.files.fail_at = None
                if node not in cluster.processes:
                    cluster.start(node)
            await asyncio.sleep(0.5)
            self.raise_failures()
            if cluster.is_in_sync():
                await asyncio.sleep(3)
                if cluster.is_in_sync():
                    return
        roles = {node: one.runner.replica.role for node, one in cluster.processes.items()}
        raise LostError(f"does not come to rest: {cluster.entry} {cluster.live} {roles}")


@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_that_was_confirmed_is_lost(group, caplog):
    caplog.set_level(logging.CRITICAL)
    for seed in range(group, SEEDS, GROUPS):
        Run(seed).run()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        Run(seed).run()
