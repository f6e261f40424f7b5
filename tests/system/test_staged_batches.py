"""Staged batches of a real process: exactly once, however often it is killed and asked again."""

from __future__ import annotations

import http.client
import random
import threading
import time
from contextlib import suppress

import pika
import pytest

from leveret.batch_writer import (
    PERSISTENT_HEADER,
    BatchWriter,
    WriteRefusedError,
    pack_chunk,
    repeated,
    row_bytes,
)
from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, durability_of, kill_after
from tests.harness.pika_client import connect
from tests.support.waiting import LIMIT_SECONDS
from tests.system.test_encryption import leveret

pytestmark = pytest.mark.usefixtures("processes")

PARTS = 3
BATCHES = 4
UNREACHABLE = (OSError, http.client.HTTPException)


def writer_of(broker, user="guest"):
    return BatchWriter(f"http://{broker.addresses['http']}", user, user)


def rows_of(*bodies, key=b"q"):
    count = len(bodies)
    return pack_chunk(
        count,
        exchange=repeated(b"", count),
        routing_key=repeated(key, count),
        header=repeated(PERSISTENT_HEADER, count),
        value=row_bytes(bodies),
    )


def body(number, part, row):
    return b"%d.%d.%d" % (number, part, row)


class Job:
    """A job that stages and commits batches, and begins again where it broke off."""

    def __init__(self, broker, rng):
        self.broker = broker
        self.rng = rng
        self.rows = [[rng.randrange(40) for _ in range(PARTS)] for _ in range(BATCHES)]
        self.number = 0
        self.answers = Events()
        self.is_over = threading.Event()

    def run(self):
        try:
            while self.number < BATCHES:
                with suppress(*UNREACHABLE), writer_of(self.broker) as writer:
                    self.step(writer)
                    self.number += 1
                time.sleep(0.01)
        finally:
            self.is_over.set()

    def step(self, writer):
        number = self.number
        if self.rng.random() < 0.2:
            writer.abort("job", number)
            self.answers()
        for part in range(PARTS):
            bodies = [body(number, part, row) for row in range(self.rows[number][part])]
            half = len(bodies) // 2
            chunks = [rows_of(*bodies[:half]), rows_of(*bodies[half:])]
            writer.stage("job", number, f"p{part}", chunks)
            self.answers()
        writer.stage("job", number, "left over", [rows_of(b"never")])
        result = writer.commit("job", number, [f"p{part}" for part in range(PARTS)])
        self.answers()
        if not result.is_repeated:
            assert result.messages == sum(self.rows[number])


@pytest.mark.kills
def test_each_batch_is_there_once_through_kills(tmp_path, seed):
    rng = random.Random(seed)
    with BrokerProcess(tmp_path / "data", durability=durability_of(seed), http=True) as broker:
        connection, channel = connect(broker)
        channel.queue_declare("q", durable=True)
        connection.close()
        job = Job(broker, rng)
        thread = threading.Thread(target=job.run, daemon=True)
        thread.start()
        for _ in range(3):
            kill_after(broker, job.answers, rng.randint(1, 13), is_over=job.is_over.is_set)
            broker.start()
        job.is_over.wait(LIMIT_SECONDS)
        thread.join()
        connection, channel = connect(broker)
        found = []
        while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
            found.append(got[2])
        connection.close()
        assert found == [
            body(number, part, row)
            for number in range(BATCHES)
            for part in range(PARTS)
            for row in range(job.rows[number][part])
        ]
        with writer_of(broker) as writer:
            assert writer.last_committed("job", "guest") == BATCHES - 1
        broker.check_untroubled()


@pytest.mark.smoke
def test_refusals_are_told_before_all_is_sent(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True, staged_commit_bytes_max=100_000) as broker:
        with writer_of(broker) as writer:
            chunk = rows_of(*[bytes(1000)] * 50)
            with pytest.raises(WriteRefusedError, match="use smaller batches") as caught:
                writer.stage("w", 0, "p", (chunk for _ in range(1000)))
            assert caught.value.status == 413
            assert writer.stage("w", 0, "p", [chunk]) == 50
            with pytest.raises(WriteRefusedError, match="with other content") as caught:
                writer.stage("w", 0, "p", [rows_of(b"other")])
            assert caught.value.status == 409
            assert writer.stage("w", 0, "none", []) == 0
            with pytest.raises(WriteRefusedError, match="no part 'o'"):
                writer.commit("w", 0, ["p", "o"])
            assert writer.commit("w", 0, ["p"]).unrouted == 50
        broker.check_untroubled()


def test_others_go_on_while_a_large_batch_is_committed(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True) as broker:
        connection, channel = connect(broker)
        for name in ("q", "others"):
            channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        with writer_of(broker) as writer:
            chunk = rows_of(*[bytes(100)] * 10_000)
            writer.stage("w", 0, "p", (chunk for _ in range(40)))
            confirmed, results = 0, []
            commit = threading.Thread(
                target=lambda: results.append(writer.commit("w", 0, ["p"])), daemon=True
            )
            commit.start()
            while commit.is_alive():
                persistent = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", "others", b"x", persistent)
                confirmed += 1
            assert results[0].messages == 400_000
        assert confirmed > 3  # it is hundreds; one or two, if the commit were a single turn
        assert channel.queue_declare("q", passive=True).method.message_count == 400_000
        connection.close()


def test_the_command_line_shows_and_forgets_writers(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True) as broker, writer_of(broker) as writer:
        writer.stage("etl", 3, "p", [rows_of(b"1", b"2")])
        writer.commit("etl", 3, ["p"])
        writer.stage("etl", 4, "p", [rows_of(b"3")])
        listed = leveret(broker.data, "batch", "list")
        assert listed.splitlines()[1].split()[:3] == ["etl", "guest", "3"]
        told = leveret(broker.data, "batch", "delete", "etl")
        assert told == "writer 'etl' was deleted, with all that it had staged\n"
        assert writer.last_committed("etl", "guest") is None
