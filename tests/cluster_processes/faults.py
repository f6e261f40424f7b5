"""Faults of a cluster under load, drawn by a seed, and what must hold after them."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Final

from tests.cluster_processes.account import Account, Pause, quantiles
from tests.cluster_processes.clients import (
    DELAYED,
    KEPT,
    KEYED,
    PREFETCH,
    RETRIED,
    WINDOW,
    WORK,
    Load,
)
from tests.cluster_processes.network import ZOOKEEPER
from tests.cluster_processes.partitions import wait_until_in_sync
from tests.cluster_processes.replica_files import differences
from tests.harness.small_disk import fill_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster_processes.launcher import LocalCluster

RECOVERY_SECONDS_MAX: Final = 60  # a round that takes longer does not end at all
BETWEEN_SECONDS: Final = 1.5
DRAIN_SECONDS_MAX: Final = 90
WAITING_MAX: Final = 400  # for their time at once: what two publishers publish in some seconds


@dataclass
class Fault:
    """A fault that is under way: what it is, and which nodes it is of."""

    kind: str
    nodes: Sequence[int]

    def __str__(self) -> str:
        return f"{self.kind} {list(self.nodes)}"


@dataclass
class Rounds:
    """Rounds of faults, one at a time. `pauses` are those of publishers, by kind of fault."""

    cluster: LocalCluster
    load: Load
    rng: random.Random
    pauses: dict[str, list[Pause]] = field(default_factory=dict)
    faults: int = 0  # one for each node

    @property
    def account(self) -> Account:
        return self.load.account

    def run(self, kind: str) -> None:
        """Have a fault of a kind, and wait until all publishers go on."""
        time.sleep(BETWEEN_SECONDS)
        began = time.monotonic()
        nodes = getattr(self, f"_{kind}")()
        self.faults += len(nodes)
        over = time.monotonic()
        self.await_progress()
        recovered = time.monotonic()
        pauses = self.account.pauses_since(began, recovered)
        self.pauses.setdefault(kind, []).extend(pauses)
        others = [each.seconds for each in pauses if each.node not in nodes]
        own = [each.seconds for each in pauses if each.node in nodes]
        print(
            f"{kind} of {list(nodes)} for {over - began:.1f} s, all go on {recovered - over:.1f} s "
            f"later; longest pauses by other nodes {_listed(others)}, by these {_listed(own)}",
            flush=True,
        )
        self.pauses.setdefault(f"{kind}, by other nodes", []).extend(
            each for each in pauses if each.node not in nodes
        )

    def await_progress(self) -> None:
        """Wait until each publisher has had something confirmed."""
        before = self.account.counts()
        deadline = time.monotonic() + RECOVERY_SECONDS_MAX
        waiting = {number for number, _ in enumerate(self.load.publishers)}
        while waiting:
            now = self.account.counts()
            waiting = {each for each in waiting if now.get(each, 0) <= before.get(each, 0)}
            if waiting and time.monotonic() > deadline:
                stuck = [
                    f"{self.load.publishers[each]} by node {self.load.publishers[each].node}"
                    for each in sorted(waiting)
                ]
                raise AssertionError(f"no confirms any more for {stuck}: {self.account.errors}")
            time.sleep(0.05)

    # -- kinds of faults; each returns the nodes that it is of

    def _one(self) -> int:
        return self.rng.choice(list(self.cluster.nodes))

    def _kill(self) -> Sequence[int]:
        """Kill a node, and start it again."""
        node = self._one()
        self.cluster.nodes[node].kill()
        time.sleep(self.rng.uniform(0, 5))
        self.cluster.nodes[node].start()
        return [node]

    def _kill_two(self) -> Sequence[int]:
        """Kill two nodes at the same time, and start them again one after the other."""
        return self._kill_some(2)

    def _kill_all(self) -> Sequence[int]:
        """Kill all nodes at the same time, and start them again."""
        return self._kill_some(len(self.cluster.nodes))

    def _kill_some(self, count: int) -> Sequence[int]:
        nodes = self.rng.sample(list(self.cluster.nodes), count)
        for node in nodes:
            self.cluster.nodes[node].kill()
            time.sleep(self.rng.choice([0, 0.3]))
        time.sleep(self.rng.uniform(0, 5))
        for node in nodes:
            self.cluster.nodes[node].launch()
            time.sleep(self.rng.choice([0, 1]))
        for node in nodes:
            self.cluster.nodes[node].wait()
        return nodes

    def _kill_starting(self) -> Sequence[int]:
        """Kill a node, and then some times while it starts."""
        node = self._one()
        for _ in range(3):
            self.cluster.nodes[node].kill()
            self.cluster.nodes[node].launch()
            time.sleep(self.rng.uniform(0.5, 4))
        self.cluster.nodes[node].restart()
        return [node]

    def _kill_paused(self) -> Sequence[int]:
        """Kill a node while another one stands still."""
        killed, paused = self.rng.sample(list(self.cluster.nodes), 2)
        self.cluster.nodes[paused].pause()
        time.sleep(self.rng.uniform(0, 5))
        self.cluster.nodes[killed].kill()
        time.sleep(self.rng.uniform(0, 2))
        self.cluster.nodes[paused].resume()
        self.cluster.nodes[killed].start()
        return [killed, paused]

    def _pause(self) -> Sequence[int]:
        """Let a node stand still, for less than its session or for longer."""
        node = self._one()
        self.cluster.nodes[node].pause()
        time.sleep(self.rng.uniform(0.5, 9))
        self.cluster.nodes[node].resume()
        return [node]

    def _restart(self) -> Sequence[int]:
        """Stop a node in order, and start it again."""
        node = self._one()
        assert self.cluster.nodes[node].stop() == 0
        time.sleep(self.rng.uniform(0, 2))
        self.cluster.nodes[node].start()
        return [node]

    def _unlink(self) -> Sequence[int]:
        """Cut a node off from the other nodes, but not from ZooKeeper."""
        node = self._one()
        others = [frozenset((node, each)) for each in self.cluster.nodes if each != node]
        return self._cut(others, [node])

    def _unlink_pair(self) -> Sequence[int]:
        """Cut two nodes off from each other."""
        pair = self.rng.choice(list(combinations(self.cluster.nodes, 2)))
        return self._cut([frozenset(pair)], list(pair))

    def _isolate(self) -> Sequence[int]:
        """Cut a node off from everything but its clients."""
        node = self._one()
        others = [frozenset((node, each)) for each in (*self.cluster.nodes, ZOOKEEPER)]
        return self._cut([each for each in others if len(each) == 2], [node])

    def _forget(self) -> Sequence[int]:
        """Cut a node off from ZooKeeper alone."""
        node = self._one()
        return self._cut([frozenset((node, ZOOKEEPER))], [node])

    def _forget_all(self) -> Sequence[int]:
        """Cut all nodes off from ZooKeeper, for longer than their sessions."""
        nodes = list(self.cluster.nodes)
        silent = self.rng.random() < 0.5
        self.cluster.network.cut([frozenset((each, ZOOKEEPER)) for each in nodes], silent=silent)
        time.sleep(self.cluster.session_timeout_ms / 1000 + self.rng.uniform(0.5, 5))
        self.cluster.network.heal()
        return nodes

    def _cut(self, pairs, nodes: Sequence[int]) -> Sequence[int]:
        self.cluster.network.cut(pairs, silent=self.rng.random() < 0.5)
        time.sleep(self.rng.uniform(0.5, 9))
        self.cluster.network.heal()
        return nodes

    def _stop_zookeeper(self) -> Sequence[int]:
        """Kill ZooKeeper, and start it again."""
        self.cluster.stop_zookeeper()
        time.sleep(self.rng.uniform(0, 8))
        self.cluster.start_zookeeper()
        return list(self.cluster.nodes)

    def _fill_disk(self) -> Sequence[int]:
        """Let a node have no room on its disk for a while."""
        node = self._one()
        ballast = fill_up(self.cluster.nodes[node].data)
        time.sleep(self.rng.uniform(2, 6))
        ballast.unlink()
        return [node]

    def roll(self) -> None:
        """Restart all nodes in order, each once all replicas are in sync again."""
        for number, node in self.cluster.nodes.items():
            began = time.monotonic()
            assert node.stop() == 0, f"node {number} does not end in order"
            stopped = time.monotonic()
            node.start()
            started = time.monotonic()
            wait_until_in_sync(self.cluster)
            synced = time.monotonic()
            self.await_progress()
            self.faults += 1
            print(
                f"node {number} stopped in {stopped - began:.1f} s, started in "
                f"{started - stopped:.1f} s, all in sync {synced - started:.1f} s later; "
                "longest times without a confirm and a delivery:",
                flush=True,
            )
            self._note_interruptions(began, time.monotonic())

    def _note_interruptions(self, began: float, until: float) -> None:
        """Print how long each queue was interrupted, and keep the pauses of publishers."""
        for name, longest in self.account.interruptions(began, until).items():
            print(f"  {name}: {longest.confirms:.1f} s, {longest.deliveries:.1f} s", flush=True)
        self.pauses.setdefault("roll", []).extend(self.account.pauses_since(began, until))

    # -- the end

    def finish(self) -> None:
        """End the load, and check that nothing is missing, nor out of order, on any replica."""
        account = self.account
        self.load.stop_publishing()
        self.load.read_kept()
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while any(queue.missing for queue in account.queues.values()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        time.sleep(1)
        for name in (WORK, KEYED, KEPT, RETRIED, DELAYED):
            while (left := self.load.count_messages(name)) and time.monotonic() < deadline:
                time.sleep(0.1)
            if left:
                account.trouble(f"{name} still has {left} messages")
        self.load.stop_consuming()
        self.report()
        for name, queue in account.queues.items():
            missing = sorted(queue.missing)
            if missing:
                account.trouble(f"{name} lacks {len(missing)} confirmed messages: {missing[:10]}")
            bound = self._duplicates_max(name)
            if queue.duplicates > bound:
                account.trouble(f"{name}: {queue.duplicates} duplicates, more than {bound}")
        assert not account.troubles, f"{len(account.troubles)} troubles: {account.troubles[:20]}"
        statuses = self.cluster.stop()
        assert not any(statuses.values()), statuses
        self._check_logs()
        found = differences([node.data for node in self.cluster.nodes.values()])
        assert not found, found

    def _duplicates_max(self, queue: str) -> int:
        """Return how many duplicates of a queue may come of the faults.

        For each node that fails: what publishers had no confirm of is sent again, and what
        consumers had, whose acknowledgements were lost, is delivered again. What waits for its
        retry, or is delayed, on a leader that was paused comes from there and from the next one.
        """
        waiting = WAITING_MAX if queue in {RETRIED, DELAYED} else 0
        return self.faults * (WINDOW + 1 + 2 * PREFETCH + waiting)

    def _check_logs(self) -> None:
        for node in self.cluster.nodes.values():
            text = node.log.read_text(errors="replace")
            at = text.find("Traceback")
            assert at < 0, f"node {node.number}:\n{text[max(at - 500, 0) : at + 3000]}"

    def report(self) -> None:
        """Print what has happened."""
        account = self.account
        for name, queue in account.queues.items():
            print(
                f"{name}: {len(queue.confirmed)} confirmed, {len(queue.delivered)} delivered, "
                f"{queue.duplicates} duplicates"
            )
        for kind, pauses in sorted(self.pauses.items()):
            print(f"pauses of publishers, {kind}: {quantiles([each.seconds for each in pauses])}")
        print(f"{account.nacks} nacks; errors that clients saw:")
        for text, count in account.errors.most_common(20):
            print(f"  {count} x {text}")


KINDS: Final = (
    "kill",
    "kill_two",
    "kill_all",
    "kill_starting",
    "kill_paused",
    "pause",
    "restart",
    "unlink",
    "unlink_pair",
    "isolate",
    "forget",
    "forget_all",
    "stop_zookeeper",
)


@contextmanager
def under_load(cluster: LocalCluster, seed: int) -> Iterator[Rounds]:
    """Start a cluster and its clients."""
    with cluster:
        load = Load(cluster, seed)
        load.declare()
        load.start()
        rounds = Rounds(cluster, load, random.Random(seed))
        rounds.await_progress()
        try:
            yield rounds
        except BaseException:
            rounds.report()
            raise
        finally:
            for each in (*load.publishers, *load.consumers):
                each.stopping.set()


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in sorted(seconds, reverse=True)[:4]) or "none"
