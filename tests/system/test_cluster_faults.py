"""Nodes of a cluster killed, stopped and cut off under load: nothing confirmed is lost.

What all clients and nodes did is kept in the directory of the test. LEVERET_TEST_CLUSTER_ROUNDS
says how many faults there are.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.harness.cluster_load.account import LoadAccount, longest_gap
from tests.harness.cluster_load.journal import CONFIRMED, STRANGE, last_events
from tests.harness.cluster_load.programs import drain, java_program, python_program
from tests.harness.cluster_load.topology import connected, declare
from tests.support.cluster_processes import ProcessCluster
from tests.support.results import MEASURED
from tests.support.seeds import RUN_SEED
from tests.support.waiting import LIMIT_SECONDS, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.cluster_load.programs import ClientProgram
    from tests.support.cluster_processes import ClusterNodeProcess

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("processes")]

ROUNDS = int(os.environ.get("LEVERET_TEST_CLUSTER_ROUNDS", "30"))
ROUND_SECONDS_MAX = 90 * PATIENCE
STOPPED_SECONDS = 10.0
ZOOKEEPER_SECONDS = 8.0
CALM_SECONDS = 3.0  # between rounds, for clients that come back late
SETTLING_SECONDS = 3.0
DRAIN_SECONDS = 90 * PATIENCE
INTERRUPTION_SECONDS_MAX = 60 * PATIENCE
CLIENTS = "clients"  # a directory of the test's
PUBLISHERS = ("pika", "aio-pika", "java")
PIKA_PUBLISHERS = ("pika", "mails", "late", "transactions")
PIKA_CONSUMERS = ("pika-consumer", "left-consumer", "pika-reader")
AIO_CONSUMERS = ("aio-pika-consumer", "aio-pika-reader")


class FaultRound(NamedTuple):
    """A fault, and how long it took until all was well again."""

    kind: str
    node: int | None
    detail: str
    began: float
    ended: float
    leaders: tuple[int, int]  # before and after
    epochs: tuple[int, int]


class FaultRunner:
    """Does to the cluster what the seed says."""

    def __init__(self, cluster: ProcessCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self._kinds = {
            "leader killed": self._kill_leader,
            "follower killed": self._kill_follower,
            "leader stopped": self._stop_leader,
            "follower stopped": self._stop_follower,
            "ZooKeeper stopped": self._stop_zookeeper,
            "leader cut off": self._cut_leader,
        }

    def kinds(self) -> Iterator[str]:
        """Yield kinds of faults, all of them in an order that is drawn, again and again."""
        while True:
            drawn = list(self._kinds)
            self.rng.shuffle(drawn)
            yield from drawn

    def run(self, kind: str) -> FaultRound:
        before = self.cluster.wait_in_sync()
        began = time.time()
        node, detail = self._kinds[kind]()
        after = self.cluster.wait_in_sync()
        leaders, epochs = (before.leader, after.leader), (before.epoch, after.epoch)
        assert None not in leaders
        number = None if node is None else node.number
        return FaultRound(kind, number, detail, began, time.time(), leaders, epochs)

    def _kill(self, node: ClusterNodeProcess) -> tuple[ClusterNodeProcess, str]:
        node.kill()
        seconds = self.rng.uniform(1, 3)
        time.sleep(seconds)
        node.start()
        return node, f"started again after {seconds:.1f} s"

    def _kill_leader(self) -> tuple[ClusterNodeProcess, str]:
        return self._kill(self.cluster.leader())

    def _kill_follower(self) -> tuple[ClusterNodeProcess, str]:
        return self._kill(self.rng.choice(self.cluster.followers()))

    def _stop(self, node: ClusterNodeProcess) -> tuple[ClusterNodeProcess, str]:
        node.signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        node.signal(signal.SIGCONT)
        return node, ""

    def _stop_leader(self) -> tuple[ClusterNodeProcess, str]:
        return self._stop(self.cluster.leader())

    def _stop_follower(self) -> tuple[ClusterNodeProcess, str]:
        return self._stop(self.rng.choice(self.cluster.followers()))

    def _stop_zookeeper(self) -> tuple[None, str]:
        self.cluster.zookeeper.stop()
        time.sleep(ZOOKEEPER_SECONDS)
        self.cluster.zookeeper.start()
        self.cluster.zookeeper.wait_ready()
        return None, ""

    def _cut_leader(self) -> tuple[ClusterNodeProcess, str]:
        node = self.cluster.leader()
        is_silent = self.rng.random() < 0.5
        (node.link.swallow if is_silent else node.link.cut)()
        time.sleep(STOPPED_SECONDS)
        node.link.heal()
        return node, "silently" if is_silent else "with its connections ended"


class LoadRun:
    """The programs with the clients, and the journals in `directory`."""

    def __init__(self, directory: Path, ports: list[int], seed: int) -> None:
        self.directory = directory
        directory.mkdir()
        named = ",".join(map(str, ports))
        self.ports = ports
        self.consumers = [
            python_program(
                directory, "pika-in", "pika_clients", directory, seed, named, *PIKA_CONSUMERS
            ),
            python_program(
                directory, "aio-in", "aio_pika_clients", directory, named, *AIO_CONSUMERS
            ),
        ]
        rotated = ",".join(map(str, [*ports[1:], ports[0]]))
        self.publishers = [
            python_program(
                directory, "pika-out", "pika_clients", directory, seed, named, *PIKA_PUBLISHERS
            ),
            python_program(
                directory, "aio-out", "aio_pika_clients", directory, rotated, "aio-pika"
            ),
        ]
        self.java = java_program(directory, ports)

    @property
    def programs(self) -> list[ClientProgram]:
        return [*self.publishers, *self.consumers, self.java]

    def check_alive(self) -> None:
        for program in self.programs:
            program.check_alive()

    def wait_confirmed(self, since: float) -> None:
        """Return once each publisher has had a confirm."""
        deadline = time.monotonic() + LIMIT_SECONDS
        names = {*PUBLISHERS, "mails", "late", "tx"}
        while True:
            self.check_alive()
            events = last_events(self.directory)
            seen = {
                event.publisher for event in events if event.kind == CONFIRMED and event.at > since
            }
            if names <= seen:
                return
            assert time.monotonic() < deadline, f"no confirms for {names - seen}"
            time.sleep(1)

    def wait_settled(self) -> None:
        """Return once all that is confirmed was acknowledged; or later, for it is drained then."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while LoadAccount(self.directory).missing() and time.monotonic() < deadline:
            time.sleep(SETTLING_SECONDS)

    def end(self) -> list[str]:
        for program in self.programs:
            program.ask_to_end()
        return [wrong for program in self.programs if (wrong := program.end())]


class Findings(NamedTuple):
    """Findings after the last round, besides the journals."""

    left: dict[str, int]  # of each queue, drained at the end
    ends: list[str]  # what was wrong with those of clients
    statuses: dict[int, int | None]  # of nodes that were told to stop
    troubles: list[str]  # that nodes have logged, and files in which they differ


def run_rounds(path: Path, seed: int, rounds: list[FaultRound]) -> Findings:
    """Have one fault after the other under load, adding to `rounds`; then drain and stop all."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        cluster = stack.enter_context(ProcessCluster(path))
        with connected(cluster.leader().port) as connection:
            declare(connection.channel())
        load = LoadRun(path / CLIENTS, cluster.ports, seed)
        stack.callback(load.end)
        load.wait_confirmed(0)
        runner = FaultRunner(cluster, rng)
        with (path / "rounds.jsonl").open("a", buffering=1) as file:
            for _, kind in zip(range(ROUNDS), runner.kinds(), strict=False):
                time.sleep(CALM_SECONDS + rng.random())
                file.write(json.dumps({"next": kind, "at": time.time()}) + "\n")
                rounds.append(runner.run(kind))
                file.write(json.dumps(rounds[-1]._asdict()) + "\n")
                load.wait_confirmed(rounds[-1].ended)
        time.sleep(CALM_SECONDS)
        for program in load.publishers:
            program.ask_to_end()
        load.wait_settled()
        ends = load.end()
        left = drain(load.directory, cluster.leader().port)
        statuses = cluster.end()
        troubles = cluster.troubles() + [f"differs: {name}" for name in cluster.differences()]
    return Findings(left, ends, statuses, troubles)


@pytest.mark.timeout(600 + ROUNDS * ROUND_SECONDS_MAX)
def test_faults_lose_nothing_confirmed(tmp_path, request):
    seed = request.config.stash[RUN_SEED]
    rounds: list[FaultRound] = []
    told = [f"seed {seed}, {tmp_path}"]
    request.node.user_properties.append((MEASURED, told))
    try:
        findings = run_rounds(tmp_path, seed, rounds)
    finally:  # whatever has failed, this is known
        account = LoadAccount(tmp_path / CLIENTS)
        told += report(account, rounds)
        (tmp_path / "report.txt").write_text("\n".join(told) + "\n")
    told.append(f"left at the end: {findings.left}")
    strange = [event for event in account.events if event.kind == STRANGE]
    assert not account.problems(), "\n".join(account.problems())
    assert not findings.troubles, "\n".join(findings.troubles)
    assert not findings.ends
    assert set(findings.statuses.values()) == {0}, findings.statuses
    assert not strange, strange[:10]
    gaps = [longest_gap(account.confirms(), one.began, one.ended) for one in rounds]
    assert max(gaps) < INTERRUPTION_SECONDS_MAX


def report(account: LoadAccount, rounds: list[FaultRound]) -> list[str]:
    """Return the interruptions by kind of fault, and what else was counted."""
    lines = [
        "seconds without a confirm, median / longest, and the same for single clients",
        f"{'':20}{'rounds':>7}{'anybody':>16}"
        + "".join(f"{name:>16}" for name in PUBLISHERS)
        + f"{'until in sync':>16}",
    ]
    times = [account.confirms(), *(account.confirms(name) for name in PUBLISHERS)]
    for kind in sorted({one.kind for one in rounds}):
        of_kind = [one for one in rounds if one.kind == kind]
        columns = [[longest_gap(each, one.began, one.ended) for one in of_kind] for each in times]
        columns.append([one.ended - one.began for one in of_kind])
        cells = [f"{statistics.median(each):.1f} / {max(each):.1f}" for each in columns]
        lines.append(f"{kind:20}{len(of_kind):>7}" + "".join(f"{cell:>16}" for cell in cells))
    lines.append(f"elections: {sum(one.epochs[1] - one.epochs[0] for one in rounds)}")
    counts = len(account.sent), len(account.confirmed), len(account.refused)
    lines.append("sent {}, confirmed {}, refused {}".format(*counts))
    lines.append("queue: deliveries, those not the first, of these without the flag")
    lines += [f"    {queue}: {counts}" for queue, counts in account.duplicates().items()]
    lines.append("errors of clients:")
    lines += [f"    {count:4} {text}" for text, count in sorted(account.errors.items())]
    return lines
