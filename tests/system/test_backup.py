"""A node is backed up while it works, and what was confirmed before is served elsewhere."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Self

import pytest
from pamqp import commands

from tests.harness.broker import REPOSITORY, BrokerProcess
from tests.harness.wire import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("processes")

SEGMENT_BYTES_MAX = 1 << 16  # many segments from few messages
BODY_BYTES = 1000


def leveret(*words: object, status: int = 0) -> str:
    command = [sys.executable, "-m", "leveret", *map(str, words)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def back_up(broker: BrokerProcess, target: Path) -> dict:
    return json.loads(leveret("backup", "create", target, "--data-dir", broker.data, "--json"))


def node(data: Path) -> BrokerProcess:
    return BrokerProcess(data, segment_bytes_max=SEGMENT_BYTES_MAX)


def body(number: int) -> bytes:
    return b"%08d" % number + bytes(BODY_BYTES)


def number_of(each: bytes) -> int:
    return int(each[:8])


def drained(port: int, queue: str) -> list[int]:
    """The numbers of all messages of a queue, in their order."""
    with Client(port) as client:
        count = client.count(queue)
        client.consume(queue)
        found = list(client.deliveries(count)) if count else []
        return [number_of(delivery.body) for delivery in found]


class Publisher:
    """Publishes numbered messages, and knows which were confirmed."""

    def __init__(self, port: int, queue: str) -> None:
        self.confirmed = 0
        self._port, self._queue = port, queue
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._port) as client:
            client.confirming()
            while not self._stopping.is_set():
                first = self.confirmed
                client.publish(self._queue, [body(number) for number in range(first, first + 10)])
                client.await_confirms(first + 10)
                self.confirmed = first + 10


@contextmanager
def moving(port: int, source: str, target: str) -> Iterator[None]:
    """Take each message of a queue, and put it into another one before it is acknowledged."""
    stopping = threading.Event()

    def move() -> None:
        with Client(port) as client, Client(port) as publisher:
            publisher.confirming()
            client.consume(source)
            moved = 0
            while not stopping.is_set():
                for delivery in client.deliveries(1):
                    publisher.publish(target, [delivery.body])
                    moved += 1
                    publisher.await_confirms(moved)
                    client.ack(delivery.tag)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@pytest.mark.smoke
def test_confirmed_messages_of_a_working_node_are_in_its_backup(tmp_path):
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            for queue in ("in", "out"):
                client.declare(queue)
        with Publisher(broker.port, "in") as publisher, moving(broker.port, "in", "out"):
            while publisher.confirmed < 300:
                time.sleep(0.01)
            before = publisher.confirmed
            made = back_up(broker, tmp_path / "backups")
        assert not (broker.data / "snapshot").exists()
        broker.check_untroubled()
    leveret("backup", "verify", made["backup"])
    leveret("restore", made["backup"], "--data-dir", tmp_path / "restored")
    with node(tmp_path / "restored") as restored:
        found = [*drained(restored.port, "in"), *drained(restored.port, "out")]
        assert set(range(before)) <= set(found)
        restored.check_untroubled()
        log = restored.log()
        assert "ERROR" not in log
        assert "belong to no queue" not in log
    assert "nothing is wrong" in leveret("doctor", "--data-dir", tmp_path / "restored")


def test_second_backup_links_the_segments_that_the_first_one_holds(tmp_path):
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("q")
            client.confirming()
            client.publish("q", [body(number) for number in range(500)])
            client.await_confirms(500)
            first = back_up(broker, tmp_path / "backups")
            client.publish("q", [body(number) for number in range(500, 600)])
            client.await_confirms(600)
        second = back_up(broker, tmp_path / "backups")
    assert first["linked_bytes"] == 0
    assert second["linked_bytes"] > 300 * BODY_BYTES
    listed = json.loads(leveret("backup", "list", tmp_path / "backups", "--json"))
    assert [row["backup"] for row in listed] == [first["backup"], second["backup"]]
    for made, count in ((first, 500), (second, 600)):
        data = tmp_path / f"restored-{count}"
        leveret("restore", made["backup"], "--data-dir", data)
        with node(data) as restored:
            assert drained(restored.port, "q") == list(range(count))


@pytest.mark.smoke
def test_stopped_node_is_backed_up_from_its_files(tmp_path):
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("q")
            client.confirming()
            client.publish("q", [body(0)])
            client.await_confirms(1)
        broker.stop()
        made = back_up(broker, tmp_path / "backups")
    leveret("restore", made["backup"], "--data-dir", tmp_path / "restored")
    with node(tmp_path / "restored") as restored:
        assert drained(restored.port, "q") == [0]


def test_damaged_backup_is_told_and_not_restored(tmp_path):
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("q")
            client.confirming()
            client.publish("q", [body(number) for number in range(100)])
            client.await_confirms(100)
        made = back_up(broker, tmp_path / "backups")
    path = next(tmp_path.glob("backups/*/topics/*/q~~*/0/*.log"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert "its checksum is another one" in leveret("backup", "verify", made["backup"], status=1)
    said = leveret("restore", made["backup"], "--data-dir", tmp_path / "restored", status=1)
    assert "the backup is damaged" in said
    assert not (tmp_path / "restored" / "leveret.db").exists()


def test_backup_is_not_mixed_with_other_data(tmp_path):
    with node(tmp_path / "data") as broker:
        made = back_up(broker, tmp_path / "backups")
        said = leveret("restore", made["backup"], "--data-dir", broker.data, status=1)
        assert "is not empty" in said
        inside = broker.data / "backups"
        said = leveret("backup", "create", inside, "--data-dir", broker.data, status=1)
        assert "may not contain each other" in said
        assert not inside.exists()


def test_backup_that_is_cut_off_is_none(tmp_path):
    target = tmp_path / "backups"
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("q")
        command = [sys.executable, "-m", "leveret", "backup", "create", str(target)]
        command += ["--data-dir", str(broker.data)]
        writer = subprocess.Popen(command, cwd=REPOSITORY)
        while not list(target.glob("*.partial")):
            assert writer.poll() is None
            time.sleep(0.001)
        writer.kill()
        writer.wait()
        if not list(target.glob("*.partial")):
            pytest.skip("the backup was faster")
        assert json.loads(leveret("backup", "list", target, "--json")) == []
        made = back_up(broker, target)
        whole = made["backup"].rpartition("/")[2]
        assert {path.name for path in target.iterdir()} == {"lock", "latest", whole}


def test_killed_node_removes_its_snapshot_at_the_next_start(tmp_path):
    with node(tmp_path / "data") as broker:
        broker.kill()
        (broker.data / "snapshot" / "topics").mkdir(parents=True)
        broker.start()
        assert not (broker.data / "snapshot").exists()


def test_log_of_a_lost_queue_is_adopted(tmp_path):
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("orders")
            client.confirming()
            client.publish("orders", [body(number) for number in range(300)])
            client.await_confirms(300)
            for _ in range(10):
                client.call(1, commands.Basic.Get(queue="orders", no_ack=True))
        broker.stop()
        remove_definition(broker.data, "orders")
        broker.settings["accept_loss"] = "definitions"
        broker.start()
        (orphan,) = json.loads(leveret("adopt", "--data-dir", broker.data, "--json"))
        assert (orphan["vhost"], orphan["topic"]) == ("/", "orders")
        said = leveret("adopt", orphan["log"], "--queue", "found", "--data-dir", broker.data)
        assert "290 messages" in said
        assert json.loads(leveret("adopt", "--data-dir", broker.data, "--json")) == []
        broker.stop()
        broker.start()
        assert drained(broker.port, "found") == list(range(10, 300))
        broker.check_untroubled()


def test_all_partitions_of_a_lost_queue_are_adopted_together(tmp_path):
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("parts", **{"x-partitions": 3, "x-partition-by": "round-robin"})
            client.confirming()
            client.publish("parts", [body(number) for number in range(30)])
            client.await_confirms(30)
        broker.stop()
        remove_definition(broker.data, "parts")
        broker.settings["accept_loss"] = "definitions"
        broker.start()
        orphans = json.loads(leveret("adopt", "--data-dir", broker.data, "--json"))
        assert [orphan["log"][-2:] for orphan in orphans] == ["/0", "/1", "/2"]
        log = orphans[1]["log"]
        said = leveret("adopt", log, "--queue", "found", "--data-dir", broker.data)
        assert "30 messages" in said
        assert json.loads(leveret("adopt", "--data-dir", broker.data, "--json")) == []
        broker.stop()
        broker.start()
        assert sorted(drained(broker.port, "found")) == list(range(30))
        broker.check_untroubled()


def test_only_a_log_without_a_queue_is_adopted(tmp_path):
    with node(tmp_path / "data") as broker:
        with Client(broker.port) as client:
            client.declare("orders")
            client.confirming()
            client.publish("orders", [body(0)])
            client.await_confirms(1)
        (log,) = (path.parent for path in broker.data.glob("topics/*/orders~~*/0/*.log"))
        name = str(log.relative_to(broker.data / "topics"))
        words = ("--queue", "mine", "--data-dir", broker.data)
        assert "is without a queue" in leveret("adopt", name, *words, status=1)
        assert "is without a queue" in leveret("adopt", "../../etc", *words, status=1)


def remove_definition(data: Path, queue: str) -> None:
    """Lose the definition of one queue, as an older leveret.db would."""
    with closing(sqlite3.connect(data / "leveret.db")) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        table = next(name for name in tables if re.fullmatch("queues?", name))
        database.execute(f"DELETE FROM {table} WHERE name = ?", (queue,))
        database.commit()
