"""Range reads of a real process: everything that was committed, through kills and encryption."""

from __future__ import annotations

import random
import threading
import time

import pika
import pytest

from leveret.range_reader import OutOfRangeError, RangeReader, ReadRefusedError
from leveret.storage.master_key import generate_master_key_file
from tests.harness.broker import BrokerProcess
from tests.harness.pika_client import connect
from tests.system.test_encryption import leveret

pytestmark = pytest.mark.usefixtures("processes")

PERSISTENT = {"delivery_mode": 2}


def reader_of(broker):
    return RangeReader(f"http://{broker.addresses['http']}", "guest", "guest")


def publish(channel, rng, count, queue="q"):
    """Publish bodies of all sizes, some in transactions that are rolled back; return the others."""
    kept = []
    for _ in range(count):
        body = rng.randbytes(rng.choice([0, 1, 100, 100, 5000, 200_000]))
        key = rng.choice([None, "k", 7])
        headers = {} if key is None else {"x-partition-key": key}
        headers["BCC"] = ["hidden"]
        channel.basic_publish("", queue, body, pika.BasicProperties(headers=headers, **PERSISTENT))
        if rng.random() < 0.8:
            channel.tx_commit()
            kept.append((b"%d" % key if key == 7 else (key or queue).encode(), body))
        else:
            channel.tx_rollback()
    return kept


def read_all(reader, queue, rng):
    (bounds,) = reader.offsets(queue)
    rows, offset = [], bounds.first
    options = {"rows_max": rng.randint(1, 50), "bytes_max": rng.choice([1, 10_000, 1 << 22])}
    for chunk in reader.chunks(queue, 0, offset, bounds.end, **options):
        assert chunk.missing == 0
        columns = chunk.columns
        rows += [(columns["key"][row], columns["value"][row]) for row in range(chunk.rows)]
        assert b"hidden" not in bytes(columns["header"].values)
    return rows


@pytest.mark.parametrize("kind", ["stream", "classic", "encrypted"])
def test_what_was_committed_is_read(tmp_path, seed, kind):
    rng = random.Random(seed)
    generate_master_key_file(tmp_path / "master.key")
    settings = {"encryption_key_file": tmp_path / "master.key", "tail_cache_bytes_max": 1 << 20}
    broker = BrokerProcess(tmp_path / "data", http=True, segment_bytes_max=1 << 20, **settings)
    with broker:
        if kind == "encrypted":
            leveret(broker.data, "encryption", "enable", "--vhost", "/")
        arguments = {"x-retention": "1h"} if kind == "classic" else {"x-queue-type": "stream"}
        kept = []
        for _ in range(2):
            connection, channel = connect(broker)
            channel.queue_declare("hidden")
            channel.queue_declare("q", durable=True, arguments=arguments)
            channel.tx_select()
            kept += publish(channel, rng, 60)
            connection.close()
            if kind == "classic":
                connection, channel = connect(broker)
                messages = channel.queue_declare("q", passive=True).method.message_count
                for _ in range(messages):  # what is settled stays
                    channel.basic_get("q", auto_ack=True)
                connection.close()
            with reader_of(broker) as reader:
                assert read_all(reader, "q", rng) == kept
            broker.kill()
            broker.start()
        with reader_of(broker) as reader:
            assert read_all(reader, "q", rng) == kept
        broker.stop()


def test_only_what_matches_is_sent(tmp_path, seed):
    rng = random.Random(seed)
    with BrokerProcess(tmp_path / "data", http=True, segment_bytes_max=1 << 20) as broker:
        connection, channel = connect(broker)
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "stream"})
        rare = set(rng.sample(range(5000), 20))
        for number in range(5000):
            headers = {"x-tags": ["rare" if number in rare else "often"], "n": number}
            properties = pika.BasicProperties(headers=headers, **PERSISTENT)
            channel.basic_publish("", "q", b"%d" % number, properties)
        channel.queue_declare("q", passive=True)
        connection.close()
        with reader_of(broker) as reader:
            for options, wanted in (
                ({"tags": "rare"}, rare),
                ({"where": "n >= 100 AND n % 50 = 7"}, set(range(107, 5000, 50))),
                ({"tags": "!often", "where": "n < 2500"}, {n for n in rare if n < 2500}),
            ):
                rows_max = rng.choice([1, 7, None])
                chunks = list(reader.chunks("q", 0, 0, 5000, rows_max=rows_max, **options))
                found = [int(value) for chunk in chunks for value in values_of(chunk)]
                assert found == sorted(wanted)
                assert sum(chunk.missing for chunk in chunks) == 0
                assert chunks[-1].next_offset == 5000
                first = reader.read("q", 0, 0, rows_max=1, **options)
                assert list(values_of(first)) == [b"%d" % min(wanted)]
            with pytest.raises(ReadRefusedError, match="filter: expected a value") as caught:
                reader.read("q", 0, 0, where="n =")
            assert caught.value.status == 400


def values_of(chunk):
    return (chunk.columns["value"][row] for row in range(chunk.rows))


def test_a_reader_that_waits_and_what_it_is_told(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True) as broker, reader_of(broker) as reader:
        connection, channel = connect(broker)
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "stream"})
        before_ms = int(time.time() * 1000)

        def publish_soon():
            time.sleep(0.3)
            channel.basic_publish("", "q", b"now")

        assert reader.read("q", 0, 0).rows == 0
        publisher = threading.Thread(target=publish_soon)
        publisher.start()
        chunk = reader.read("q", 0, 0, wait_ms=20_000)
        publisher.join()
        assert chunk.columns["value"][0] == b"now"
        assert before_ms <= chunk.columns["timestamp"][0] <= time.time() * 1000
        with pytest.raises(OutOfRangeError) as caught:
            reader.read("q", 0, 2)
        assert (caught.value.first, caught.value.end) == (0, 1)
        with pytest.raises(ReadRefusedError, match="there is no such partition"):
            reader.read("q", 1, 0)
        with pytest.raises(ReadRefusedError, match="there is no such queue or stream: declare it"):
            reader.offsets("none")
        (row,) = reader.offsets("q", before_ms)
        assert (row.first, row.end, row.offset) == (0, 1, 0)
        connection.close()


def test_a_reader_commits_and_is_killed_with_the_node(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True) as broker:
        connection, channel = connect(broker)
        arguments = {"x-queue-type": "stream", "x-partitions": 2}
        channel.queue_declare("q", durable=True, arguments=arguments)
        channel.confirm_delivery()
        for number in range(40):
            headers = {"x-partition-key": str(number)}
            properties = pika.BasicProperties(headers=headers, **PERSISTENT)
            channel.basic_publish("", "q", b"%d" % number, properties)
        connection.close()
        with reader_of(broker) as reader:
            ends = {row.partition: row.end for row in reader.offsets("q")}
            assert reader.commit_offsets("q", "spark", {0: 1}) == {0: 1}
            assert reader.commit_offsets("q", "spark", {0: 3, 1: ends[1]}) == {0: 3, 1: ends[1]}
            with pytest.raises(ReadRefusedError, match="is from 0 to"):
                reader.commit_offsets("q", "spark", {0: ends[0] + 1})
            broker.kill()
            broker.start()
        with reader_of(broker) as reader:
            assert reader.commit_offsets("q", "spark", {0: 2, 1: 0}) == {0: 3, 1: ends[1]}
        connection, channel = connect(broker)
        channel.basic_qos(prefetch_count=100)
        arguments, came = {"x-consumer-group": "spark"}, []
        for method, properties, _ in channel.consume("q", arguments=arguments):
            came.append((properties.headers["x-partition"], properties.headers["x-offset"]))
            channel.basic_ack(method.delivery_tag)
            if len(came) == ends[0] - 3:
                break
        assert came == [(0, offset) for offset in range(3, ends[0])]
        with reader_of(broker) as reader, pytest.raises(ReadRefusedError, match="is in use"):
            reader.commit_offsets("q", "spark", {0: ends[0]})
        connection.close()


@pytest.mark.smoke
def test_commands_over_amqp(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True) as broker:
        connection, channel = connect(broker)
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"1")
        answers = []
        channel.basic_consume(
            "amq.rabbitmq.reply-to", lambda *told: answers.append(told[-1]), auto_ack=True
        )
        properties = pika.BasicProperties(
            headers={"x-queue": "q", "x-time": 0}, reply_to="amq.rabbitmq.reply-to"
        )
        channel.basic_publish("leveret.topics", "offsets", b"", properties)
        connection.process_data_events(1)
        assert b'"partitions": [{"partition": 0, "first": 0, "end": 1, "offset": 0}]' in answers[0]
        connection.close()
