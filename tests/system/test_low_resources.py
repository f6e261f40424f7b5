"""Low or no disk space, low memory: publishers are held or refused, nothing confirmed is lost."""

from __future__ import annotations

import subprocess
import time

import pytest
from pamqp import commands

from tests.harness.broker import MIB, REPOSITORY, SERVE, BrokerProcess
from tests.harness.small_disk import fill_up, small_disk
from tests.harness.wire import CAPABILITIES, Client, ClosedError, Confirm, check_open
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

BODY_BYTES = 50_000
SETTINGS = {
    "segment_bytes_max": MIB,
    "tail_cache_bytes_max": 2 * MIB,
    "resource_check_interval_ms": 20,
}


def body(number: int) -> bytes:
    return b"%09d" % number + bytes(BODY_BYTES)


class Publisher:
    """Publishes numbered messages one by one and keeps what was confirmed and what refused."""

    def __init__(self, port: int, queue: str, first: int = 0) -> None:
        self.client = Client(port).confirming()
        self.queue = queue
        self.first = first
        self.sent = 0
        self.confirmed: list[int] = []
        self.refused: list[int] = []
        self._answered = 0

    def publish(self) -> None:
        self.client.publish(self.queue, [body(self.first + self.sent)])
        self.sent += 1

    def listen(self, seconds: float) -> None:
        """Take in what comes within a time."""
        for event in self.client.events(seconds):
            if isinstance(event, Confirm):
                tags = range(self._answered + 1 if event.multiple else event.tag, event.tag + 1)
                outcome = self.refused if event.nack else self.confirmed
                outcome += [self.first + tag - 1 for tag in tags]
                self._answered = event.tag
            else:
                check_open(event)

    @property
    def outstanding(self) -> int:
        return self.sent - len(self.confirmed) - len(self.refused)

    def until(self, condition, *, publishing: bool = False) -> None:
        """Publish, or only listen, until something is so."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, vars(self)
            if publishing and self.outstanding < 20:
                self.publish()
            self.listen(0.002)


def numbers_in(port: int, queue: str) -> list[int]:
    """Take everything out of a queue."""
    with Client(port) as client:
        count = client.count(queue)
        client.consume(queue)
        taken = list(client.deliveries(count))
        if taken:
            client.ack(taken[-1].tag, multiple=True)
        client.call(1, commands.Basic.Qos(prefetch_count=0))
    return [int(one.body[:9]) for one in taken]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_low_disk_holds_publishers_until_consumers_have_drained(tmp_path, durability):
    with small_disk(tmp_path / "disk", 32 * MIB) as disk:
        settings = {**SETTINGS, "disk_free_bytes_min": 12 * MIB}
        with BrokerProcess(
            disk / "data", log=tmp_path / "log", durability=durability, **settings
        ) as broker:
            with Client(broker.port) as other:
                other.declare("q")
                publisher = Publisher(broker.port, "q")
                publisher.until(lambda: publisher.client.blocked, publishing=True)
                assert publisher.client.blocked == ["low on disk"]
                for _ in range(20):
                    publisher.publish()  # into the socket; read when the alarm is over
                publisher.listen(0.3)
                assert publisher.outstanding
                found = numbers_in(broker.port, "q")
                publisher.until(lambda: "" in publisher.client.blocked)
                publisher.until(lambda: not publisher.outstanding)
                publisher.until(lambda: publisher.sent > len(found) + 50, publishing=True)
                publisher.until(lambda: not publisher.outstanding)
                assert not publisher.refused
                assert not other.blocked
                publisher.client.hang_up()
            broker.kill()
            broker.start()
            found += numbers_in(broker.port, "q")
            assert found == publisher.confirmed == list(range(publisher.sent))
            broker.stop()
            broker.check_untroubled()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("ends", ["stop", "kill"])
@pytest.mark.smoke
def test_a_full_disk_refuses_and_loses_nothing(tmp_path, durability, ends):
    with small_disk(tmp_path / "disk", 32 * MIB) as disk:
        settings = {**SETTINGS, "disk_free_bytes_min": 0}
        with BrokerProcess(
            disk / "data", log=tmp_path / "log", durability=durability, **settings
        ) as broker:
            publisher = Publisher(broker.port, "q")
            publisher.client.declare("q")
            publisher.until(lambda: len(publisher.confirmed) > 50, publishing=True)
            ballast = fill_up(disk)
            publisher.until(lambda: len(publisher.refused) > 5, publishing=True)
            ballast.unlink()
            before = len(publisher.confirmed)
            publisher.until(lambda: len(publisher.confirmed) > before + 50, publishing=True)
            publisher.until(lambda: not publisher.outstanding)
            publisher.client.hang_up()
            getattr(broker, ends)()
            broker.start()
            assert numbers_in(broker.port, "q") == publisher.confirmed
            assert publisher.refused
            broker.stop()
            broker.check_untroubled()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_full_disk_is_drained_by_consumers_alone(tmp_path, durability):
    """Consumers alone free space: their settlements must find room."""
    with small_disk(tmp_path / "disk", 32 * MIB) as disk:
        settings = {**SETTINGS, "disk_free_bytes_min": 0}
        with BrokerProcess(
            disk / "data", log=tmp_path / "log", durability=durability, **settings
        ) as broker:
            publisher = Publisher(broker.port, "q")
            publisher.client.declare("q")
            publisher.until(lambda: len(publisher.refused) > 5, publishing=True)
            publisher.until(lambda: not publisher.outstanding)
            found = numbers_in(broker.port, "q")
            assert found == publisher.confirmed
            publisher.until(lambda: len(publisher.confirmed) > len(found) + 100, publishing=True)
            publisher.until(lambda: not publisher.outstanding)
            publisher.client.hang_up()
            broker.kill()
            broker.start()
            again = numbers_in(broker.port, "q")
            assert again == publisher.confirmed[len(found) :]
            broker.stop()
            broker.check_untroubled()


def test_nothing_is_defined_on_a_full_disk_and_the_node_goes_on(tmp_path):
    with small_disk(tmp_path / "disk", 32 * MIB) as disk:
        settings = {**SETTINGS, "disk_free_bytes_min": 0}
        with BrokerProcess(disk / "data", log=tmp_path / "log", **settings) as broker:
            with Client(broker.port) as client:
                client.declare("before")
                ballast = fill_up(disk)
                declared = declare_until_closed(client)
            with Client(broker.port) as client:
                assert client.count("before") == 0
            ballast.unlink()
            with Client(broker.port) as client:
                client.declare("after")
            broker.stop()
            broker.start()
            with Client(broker.port) as client:
                for queue in ("before", "after", *declared):
                    assert client.count(queue) == 0
            broker.check_untroubled()


def declare_until_closed(client: Client) -> list[str]:
    """The queues whose declaration was answered before one had no room."""
    declared: list[str] = []

    def declare_on() -> None:
        while len(declared) < 3000:
            declared.append(client.declare(f"q{len(declared)}".ljust(200, "-")).queue)

    with pytest.raises(ClosedError) as closed:
        declare_on()
    assert closed.value.code == 541
    return declared


@pytest.mark.covers("B-010", "C-216")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"memory_fraction_max": 0.0001}, "low on memory"),
        ({"disk_free_bytes_min": 1 << 60}, "low on disk"),
        ({"memory_fraction_max": 0.0001, "disk_free_bytes_min": 1 << 60}, "low on memory & disk"),
    ],
)
def test_alarms_are_told_to_those_who_publish_and_understand(tmp_path, settings, reason):
    with (
        BrokerProcess(tmp_path / "data", **SETTINGS, **settings) as broker,
        Client(broker.port) as understands,
        Client(broker.port, capabilities={**CAPABILITIES, "connection.blocked": False}) as deaf,
        Client(broker.port) as consumer,
    ):
        consumer.declare("q")
        consumer.consume("q", no_ack=True)
        for client in (understands, deaf):
            client.confirming().publish("q", [b"first"])
            client.await_confirms(1)
            client.publish("q", [b"held"])
        assert [one.body for one in consumer.deliveries(2)] == [b"first"] * 2
        for client in (understands, deaf, consumer):
            for event in client.events(0.3):
                assert not isinstance(event, Confirm), "published in spite of the alarm"
        assert understands.blocked == [reason]
        assert not deaf.blocked
        assert not consumer.blocked
        consumer.declare("still-served")


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    with small_disk(tmp_path / "disk", MIB, "ro") as disk:
        for data in (disk, disk / "data"):
            refused = subprocess.run(
                [*SERVE, "--data-dir", str(data)],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
            assert refused.returncode != 0
            assert str(data) in refused.stderr
            assert "Read-only file system" in refused.stderr
            assert "Traceback" not in refused.stderr
