"""Clients that are given all nodes of a cluster, which are killed in turn: Celery, and Java's.

Each recovers as its own library does, and nothing that was confirmed is missing. pika and aio-pika
have their faults in tests/cluster_processes.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import os
import subprocess
import threading
from collections import defaultdict
from typing import IO, TYPE_CHECKING, Any, Final

import pika
import pytest
from kombu.exceptions import OperationalError

from interop_tests.celery_tasks import application
from interop_tests.celery_worker import Worker
from interop_tests.test_round_trips import CLIENTS, java_class_path
from tests.cluster_processes.launcher import LocalCluster
from tests.cluster_processes.partitions import wait_until_in_sync
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MORE: Final = 20  # calls that get through between two faults
PACE_SECONDS: Final = 0.02

pytestmark = pytest.mark.skipif(
    os.environ.get("INTEROP_BROKER") == "rabbitmq", reason="the nodes are Leveret's"
)


class Caller(threading.Thread):
    """Calls the task `note` with one number after another, each until it was confirmed."""

    def __init__(self, settings: dict[str, Any], notes: Path) -> None:
        super().__init__(daemon=True)
        self._app = application(settings)
        self._notes = notes
        self._ended = threading.Event()
        self.confirmed = 0

    def run(self) -> None:
        note = self._app.tasks["note"]
        while not self._ended.is_set():
            try:
                note.delay(str(self._notes), str(self.confirmed))
            except (OperationalError, OSError):
                continue  # no node has taken it, or its confirm was lost: it is called again
            self.confirmed += 1
            self._ended.wait(PACE_SECONDS)

    def more(self) -> None:
        """Wait until more calls are confirmed."""
        wanted = self.confirmed + MORE
        wait_until(lambda: self.confirmed >= wanted, "more calls")

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._app.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as cluster:
        yield cluster


def celery_settings(cluster: LocalCluster) -> dict[str, Any]:
    """Return the settings of applications that know all nodes, and lose no task.

    A worker sets up delayed delivery at each address when it connects, for some 15 s while one does
    not answer. It sends no heartbeats meanwhile: they must be those of Celery, or slower than that.
    """
    addresses = [node.amqp for node in cluster.nodes.values()]
    return {
        "broker_url": [f"amqp://guest:guest@{host}:{port}//" for host, port in addresses],
        "broker_transport_options": {"confirm_publish": True},
        "task_acks_late": True,
        "task_default_queue": "tasks",
        "task_default_queue_type": "quorum",
        "task_ignore_result": True,
    }


def kill_each(cluster: LocalCluster, goes_on: Callable[[], None]) -> None:
    """Kill the nodes, one after the other; `goes_on` waits until the clients have come further."""
    for node in cluster.nodes.values():
        goes_on()
        node.kill()
        goes_on()
        node.start()
        wait_until_in_sync(cluster)
    goes_on()


@pytest.mark.timeout(600)
def test_each_confirmed_task_of_celery_is_run(cluster: LocalCluster, tmp_path: Path) -> None:
    settings, notes = celery_settings(cluster), tmp_path / "notes"

    def noted() -> list[str]:
        return notes.read_text().split() if notes.exists() else []

    def goes_on() -> None:
        wanted = len(noted()) + MORE
        caller.more()
        wait_until(lambda: len(noted()) >= wanted, "more tasks run")

    with Worker(tmp_path, settings):
        caller = Caller(settings, notes)
        caller.start()
        try:
            kill_each(cluster, goes_on)
        finally:
            caller.end()
        confirmed = {str(number) for number in range(caller.confirmed)}
        wait_until(lambda: confirmed <= set(noted()), "all confirmed tasks")
        run = noted()
    print(f"{len(confirmed)} tasks, {len(run) - len(set(run))} of them run again")


class ToldNumbers(threading.Thread):
    """Reader of the lines that a program prints: `confirmed N`, `got N`."""

    def __init__(self, output: IO[str]) -> None:
        super().__init__(daemon=True)
        self._output = output
        self.numbers: dict[str, list[int]] = defaultdict(list)

    def run(self) -> None:
        for line in self._output:
            what, number = line.split()
            self.numbers[what].append(int(number))

    def more(self) -> None:
        """Wait until more was confirmed and got."""
        confirmed, got = self.numbers["confirmed"], self.numbers["got"]
        wanted = len(confirmed) + MORE, len(got) + MORE
        wait_until(lambda: len(confirmed) >= wanted[0] and len(got) >= wanted[1], "more messages")


@pytest.mark.timeout(600)
def test_the_java_client_recovers(cluster: LocalCluster) -> None:
    class_path = java_class_path()
    addresses = [node.amqp for node in cluster.nodes.values()]
    with pika.BlockingConnection(pika.ConnectionParameters(*addresses[0])) as connection:
        arguments = {"x-queue-type": "quorum"}
        connection.channel().queue_declare("java", durable=True, arguments=arguments)
    wait_until_in_sync(cluster)
    listed = ",".join(f"{host}:{port}" for host, port in addresses)
    command = ["java", "-cp", class_path, str(CLIENTS / "Recovery.java"), "java", listed]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        told = ToldNumbers(program.stdout)
        told.start()
        try:
            kill_each(cluster, told.more)
            program.stdin.write("end publishing\n")
            wait_until(lambda: told.numbers["published"], "the end of the publisher")
            confirmed, got = told.numbers["confirmed"], told.numbers["got"]
            wait_until(lambda: set(confirmed) <= set(got), "all confirmed messages")
            program.stdin.write("end\n")
            assert program.wait(60) == 0
        finally:
            program.kill()
    first_times = list(dict.fromkeys(got))
    assert first_times == sorted(first_times)
    print(f"{len(confirmed)} messages, {len(got) - len(first_times)} of them came again")
