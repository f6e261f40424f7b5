"""Spark as a reader of queues that keep settled messages: who may still read what.

The same as tests/recovery/test_readers_machine.py, with a real node that is killed. What consumers,
retries, expiry and length limits do to a message decides nothing about readers; what an operator
deletes, edits, moves, purges or cancels is read by nobody any more. A table has exactly the rest,
and a stream that runs now and then has each message of it once.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from itertools import chain, pairwise
from typing import NamedTuple

import pika
import pytest
from pika.exceptions import AMQPError

from spark_tests.node import Node
from tests.support.seeds import FIXED, RUN_SEED
from tests.support.waiting import LIMIT_SECONDS, wait_until

KINDS = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 10_000},
    "keeps-order": {"x-retry-keep-order": "key"},
}
KEPT = {"x-retention": "14d"}
# One retry, which comes when an operator asks for it: nothing happens while a step looks.
READ = KEPT | {"x-partitions": 2, "x-retry-delays": [24 * 3600 * 1000]}
TARGET = "moved"
KEYS = [f"key-{number}" for number in range(6)]
ROUNDS, STEPS_PER_READ = 3, 6
EXPIRES_MS = "20"
READY = "&state=ready"


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        run_seed = pytest.param(metafunc.config.stash[RUN_SEED], id="random")
        metafunc.parametrize("seed", [*FIXED[:2], run_seed])


class Stored(NamedTuple):
    """A message as the broker lists it; its body is a number, which tells the order of storing."""

    partition: int
    offset: int
    number: int


class Readable:
    """Numbers that readers of each queue must find, in the order in which they were stored."""

    def __init__(self):
        self._count = 0
        self.left = defaultdict(list)

    def next(self):
        """Return the number of a message that is about to be stored."""
        self._count += 1
        return self._count

    def store(self, queue, number):
        self.left[queue].append(number)

    def erase(self, queue, numbers):
        self.left[queue] = [number for number in self.left[queue] if number not in set(numbers)]


class Steps:
    """Steps that clients and operators take with a queue, and what readers may read after them."""

    def __init__(self, node, chance):
        self.node, self.chance = node, chance
        self.readable, self.dead = Readable(), defaultdict(set)

    # -- the node and its connection

    def begin(self):
        """Connect, and declare what there is."""
        self._connect()
        declared = {kind: READ | arguments for kind, arguments in KINDS.items()}
        declared |= dict.fromkeys((TARGET, *map(dead_letters_of, KINDS)), KEPT)
        for name, arguments in declared.items():
            self.channel.queue_declare(name, durable=True, arguments=arguments)
        for kind in KINDS:
            self.publish(kind)

    def _connect(self):
        parameters = self.node.parameters
        parameters.heartbeat = 0  # nobody answers while Spark reads
        self._connection = pika.BlockingConnection(parameters)
        self.channel = self._connection.channel()
        self.channel.confirm_delivery()

    def end(self):
        with suppress(AMQPError):
            self._connection.close()

    @contextmanager
    def _node_down(self, stop):
        stop()
        self.end()
        yield
        self.node.start()
        self._connect()

    def close(self, _):
        self.end()  # and not in the middle of an answer
        with self._node_down(self.node.stop):
            pass

    def kill(self, _=None):
        with self._node_down(self.node.kill):
            pass

    # -- publishers and consumers

    def publish(self, queue, **properties):
        for _ in range(self.chance.randint(2, 6)):
            self._publish(queue, self.chance.choice(KEYS), **properties)

    def _publish(self, queue, key, **properties):
        number = self.readable.next()
        properties |= {"delivery_mode": 2, "headers": {"x-partition-key": key}}
        body = b"%d" % number
        self.channel.basic_publish("", queue, body, pika.BasicProperties(**properties))
        self.readable.store(queue, number)
        return number

    def expire(self, queue):
        """Publish what is expired at the end of the step, so that no other step meets it."""
        numbers = {
            self._publish(queue, key, expiration=EXPIRES_MS)
            for key in self.chance.sample(KEYS, 2)
        }  # fmt: skip
        wait_until(lambda: numbers.isdisjoint(numbers_of(self.listed(queue))), "expiry")

    def consume(self, queue):
        for method, _, _ in self._deliveries(queue):
            self.channel.basic_ack(method.delivery_tag)
        self._catch_up(queue)

    def requeue(self, queue):
        for method, _, _ in self._deliveries(queue):
            self.channel.basic_nack(method.delivery_tag, requeue=True)
        self._catch_up(queue)

    def hold(self, queue):
        """Leave messages unacknowledged until the connection ends."""
        for _ in self._deliveries(queue):
            return

    def reject(self, queue):
        """Reject messages: they are retried, and dead-lettered the second time."""
        for method, properties, body in self._deliveries(queue):
            number = int(body)
            before = numbers_of(self.listed(queue))[number]
            self.channel.basic_reject(method.delivery_tag, requeue=False)
            wait_until(lambda: numbers_of(self.listed(queue))[number] < before, "rejection")  # noqa: B023
            if "x-retry-count" in properties.headers:
                self.dead[dead_letters_of(queue)].add(number)

    def _deliveries(self, queue):
        for _ in range(self.chance.randint(1, 3)):
            delivery = self.channel.basic_get(queue)
            if delivery[0] is None:
                return
            yield delivery

    def _catch_up(self, queue):
        """Wait until the broker has done what the channel asked for before."""
        self.channel.queue_declare(queue, passive=True)

    # -- operators

    def retry_now(self, queue):
        for partition, ids in self._retries(queue).items():
            chosen = {"partition": partition, "ids": ids}
            assert self._ask(f"retries/%2F/{queue}/retry", chosen)["count"] == len(ids)
        wait_until(lambda: not self._retries(queue), "retries")

    def cancel_retry(self, queue):
        self.reject(queue)
        for partition, ids in self._retries(queue).items():
            path = f"retries/%2F/{queue}/messages/{ids[0]}?partition={partition}"
            number = int(self.node.ask("GET", f"leveret/{path}")["payload"])
            chosen = {"partition": partition, "ids": ids[:1]}
            assert self._ask(f"retries/%2F/{queue}/cancel", chosen)["count"] == 1
            self.readable.erase(queue, [number])

    def _retries(self, queue):
        """Return ids of messages that wait for a retry, by partition."""
        found = defaultdict(list)
        for row in self.node.ask("GET", f"leveret/retries/%2F/{queue}?limit=1000")["rows"]:
            found[row["partition"]].append(row["id"])
        return found

    def limit_length(self, queue):
        """Have a policy drop all but a few messages, and take it back."""
        length = self.chance.randint(1, 4)
        limit = {"pattern": f"^{queue}$", "definition": {"max-length": length}}
        self.node.ask("PUT", "policies/%2F/limit", limit | {"apply-to": "queues"})
        wait_until(lambda: len(self.listed(queue, READY)) <= length, "the length limit")
        self.node.ask("DELETE", "policies/%2F/limit")

    def delete(self, queue):
        state = self.chance.choice([READY, "&state=settled", ""])
        for one in self._chosen(queue, state):
            path = f"queues/%2F/{queue}/messages/delete"
            found = self._ask(path, {"select": place_of(one)})
            assert found["deleted"] + found["skipped"] == 1
            if found["deleted"]:
                self.readable.erase(queue, [one.number])

    def edit(self, queue):
        for one in self._chosen(queue, READY):
            number = self.readable.next()
            path = f"queues/%2F/{queue}/messages/{one.offset}?partition={one.partition}"
            edit = {"payload": str(number)}
            assert self.node.ask("PATCH", f"leveret/{path}", edit) == {"edited": 1}
            self.readable.erase(queue, [one.number])
            self.readable.store(queue, number)

    def move(self, queue):
        for one in self._chosen(queue, READY):
            chosen = {"select": place_of(one), "to_queue": TARGET}
            assert self._ask(f"queues/%2F/{queue}/messages/move", chosen)["moved"] == 1
            self.readable.erase(queue, [one.number])
            self.readable.store(TARGET, one.number)

    def purge(self, queue):
        self._purge(queue, lambda: self.node.ask("DELETE", f"queues/%2F/{queue}/contents"))

    def purge_by_client(self, queue):
        self._purge(queue, lambda: self.channel.queue_purge(queue))

    def _purge(self, queue, purge):
        """Purge, and kill the node; what consumers have, or waits for its key, stays."""
        self.publish(queue)
        before = numbers_of(self.listed(queue, READY))
        purge()
        self.readable.erase(queue, before - numbers_of(self.listed(queue)))
        self.kill()

    def delete_dead_letters(self, queue):
        dead = dead_letters_of(queue)
        self._ask(f"dead-letters/%2F/{dead}/delete", {"reason": "rejected"})
        self.dead[dead].clear()

    def _chosen(self, queue, state):
        """Return a message of this state, or none."""
        listed = self.listed(queue, state)
        return [self.chance.choice(listed)] if listed else []

    def listed(self, queue, state=""):
        """Return what the broker lists; without a state all but what is settled."""
        path = f"leveret/queues/%2F/{queue}/messages?limit=1000{state}"
        found = self.node.ask("GET", path)
        assert found["after"] is None
        return [
            Stored(row["partition"], row["offset"], int(row["payload"]))
            for row in found["messages"]
        ]  # fmt: skip

    def _ask(self, path, body):
        return self.node.ask("POST", f"leveret/{path}", body)


# Each round has all of these in an order of its own, each for a queue that is drawn.
DECK = (
    *(Steps.publish,) * 4,
    *(Steps.consume, Steps.reject, Steps.reject, Steps.requeue, Steps.hold),
    *(Steps.retry_now, Steps.retry_now, Steps.cancel_retry, Steps.expire, Steps.limit_length),
    *(Steps.delete, Steps.delete, Steps.delete, Steps.edit, Steps.edit, Steps.move, Steps.move),
    *(Steps.purge, Steps.purge_by_client, Steps.delete_dead_letters),
    *(Steps.close, Steps.kill),
)


def dead_letters_of(queue):
    return f"{queue}.dlq"


def place_of(one):
    return {"partition": one.partition, "offsets": [one.offset]}


def numbers_of(listed):
    return Counter(one.number for one in listed)


class Readers:
    """A table, and a stream with a checkpoint, of all queues."""

    def __init__(self, spark, steps, directory):
        self._spark, self._steps, self._directory = spark, steps, directory
        self._batches = {}  # rows by the number of their micro-batch

    def read_table(self):
        """Read all queues as one table: it has what is left, in the order of each partition."""
        dead_letters = [*map(dead_letters_of, KINDS)]
        rows = self._rows(self._load(self._spark.read, *KINDS, TARGET, *dead_letters))
        found = defaultdict(list)
        for row in rows:
            found[row.topic].append(row.number)
        left, dead = self._steps.readable.left, self._steps.dead
        for queue in (*KINDS, TARGET):
            assert sorted(found[queue]) == sorted(left[queue]), queue
        for queue in dead_letters:  # a crash may repeat one
            assert set(found[queue]) == dead[queue], queue
        assert found[TARGET] == left[TARGET]
        check_order(rows)

    def run_stream(self, *, dies):
        """Run the stream to the end of what there is, through a kill of the node if it `dies`."""
        before = self._handed_over()
        query = self._start()
        if dies:
            time.sleep(self._steps.chance.uniform(0, 1))
            self._steps.kill()
        assert query.awaitTermination(LIMIT_SECONDS), "the stream does not come to its end"
        left = self._steps.readable.left
        expected = Counter((queue, number) for queue in (*KINDS, TARGET) for number in left[queue])
        new = self._handed_over() - before
        assert new == expected - before, "not once what is left and was not handed over before"
        check_order(chain.from_iterable(self._batches.values()))

    def _start(self):
        def write(batch, number):
            self._batches[number] = self._rows(batch)

        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "15"}
        table = self._load(self._spark.readStream.options(**options), *KINDS, TARGET)
        writer = table.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def _load(self, reader, *queues):
        options = {"servers": self._steps.node.server, "subscribe": ",".join(queues)}
        return reader.format("leveret").options(**options).load()

    @staticmethod
    def _rows(table):
        number = "int(string(value)) as number"
        return table.selectExpr("topic", "partition", "offset", number).collect()

    def _handed_over(self):
        """Return how often each message was handed over, by queue and number."""
        rows = chain.from_iterable(self._batches.values())
        return Counter((row.topic, row.number) for row in rows)


def check_order(rows):
    """Check that each partition was read in order: by offset, and as it was published."""
    partitions = defaultdict(list)
    for row in rows:
        partitions[row.topic, row.partition].append((row.offset, row.number))
    for (topic, partition), found in partitions.items():
        assert all(one[0] < other[0] for one, other in pairwise(found)), (topic, partition)
        if topic in KINDS:
            assert found == sorted(found, key=lambda row: row[1]), (topic, partition)


@pytest.fixture
def steps(tmp_path, seed):
    data = tmp_path / "data"
    data.mkdir()
    with Node(data).running() as node:
        steps = Steps(node, random.Random(seed))
        steps.begin()
        yield steps
        steps.end()


def test_spark_reads_once_what_nobody_has_erased(spark, steps, seed, tmp_path):
    print(f"seed {seed}")
    readers, chance = Readers(spark, steps, tmp_path), steps.chance
    for _ in range(ROUNDS):
        for number, step in enumerate(chance.sample(DECK, len(DECK)), 1):
            queue = chance.choice(list(KINDS))
            print(step.__name__, queue)
            step(steps, queue)
            if number % STEPS_PER_READ == 0:
                readers.read_table()
        readers.run_stream(dies=chance.random() < 0.5)
    readers.read_table()
