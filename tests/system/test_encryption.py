"""An encrypted vhost on a whole node: its disk tells nothing, and a kill loses nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import contextmanager

import pika
import pytest

from leveret.storage.master_key import generate_master_key_file
from tests.harness.broker import REPOSITORY, BrokerProcess
from tests.harness.kills import kill_after
from tests.harness.pika_client import connected, declare, drained, publish
from tests.harness.traffic import Load, declare_topology, drain
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

SECRET = "Squeamish-Ossifrage"


def leveret(data, *arguments, status=0):
    command = [sys.executable, "-m", "leveret", *arguments, "--data-dir", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def status(data):
    return json.loads(leveret(data, "encryption", "status", "--vhost", "/", "--json"))


@pytest.fixture
def key_file(tmp_path):
    generate_master_key_file(tmp_path / "master.key")
    return tmp_path / "master.key"


def broker_at(tmp_path, key_file, **settings):
    return BrokerProcess(
        tmp_path / "data",
        encryption_key_file=key_file,
        tail_cache_bytes_max=1 << 20,
        **settings,
    )


@contextmanager
def channel_of(broker):
    connection, channel = connected(broker)
    try:
        yield channel
    finally:
        connection.close()


def raw_logs(data):
    return b"".join(path.read_bytes() for path in data.rglob("*.log") if path.is_file())


@pytest.mark.parametrize("killed", [True, False])
def test_nothing_of_a_message_can_be_read_on_the_disk(tmp_path, key_file, killed):
    data = tmp_path / "data"
    with broker_at(tmp_path, key_file) as broker:
        leveret(data, "encryption", "enable", "--vhost", "/")
        with channel_of(broker) as channel:
            kinds = ("classic", "quorum", "stream")
            for kind in kinds:
                declare(channel, kind, queue_type=kind)
            channel.queue_declare("transient", durable=False, exclusive=True)
            declare(channel, "dead")
            declare(channel, "deadly", dead_letter_exchange="", dead_letter_routing_key="dead")
            channel.exchange_declare("x", "topic", durable=True)
            for queue in (*kinds, "transient", "deadly"):
                channel.queue_bind(queue, "x", f"{queue}.#")
                for number in range(20):
                    body = f"{SECRET} body {number} ".encode() * 5000
                    properties = pika.BasicProperties(
                        delivery_mode=2, headers={f"{SECRET}-name": f"{SECRET}-value"}
                    )
                    channel.basic_publish("x", f"{queue}.{SECRET}", body, properties)
            method, _, _ = channel.basic_get("deadly")
            channel.basic_reject(method.delivery_tag, requeue=False)
            assert SECRET.encode() not in raw_logs(data)
            assert len(raw_logs(data)) > 5_000_000
            assert len(list((data / "transient").rglob("*.log"))) == 1
        time.sleep(0.2)  # what was rejected is settled within 50 ms
        broker.kill() if killed else broker.stop()
        broker.start()
        with channel_of(broker) as channel:
            for queue, count in (("classic", 20), ("quorum", 20), ("dead", 1), ("deadly", 19)):
                bodies = drained(channel, queue)
                assert len(bodies) == count
                assert all(body.startswith(f"{SECRET} body") for body in bodies)
        assert SECRET.encode() not in raw_logs(data)
        broker.check_untroubled()


@pytest.mark.smoke
def test_a_node_that_runs_is_encrypted_rotated_and_plain_again(tmp_path, key_file):
    data = tmp_path / "data"
    with broker_at(tmp_path, key_file) as broker:
        with channel_of(broker) as channel:
            declare(channel, "orders")
            for number, command in enumerate(("enable", "rotate", "disable", None)):
                publish(channel, "orders", f"{SECRET} {number}")
                if command:
                    leveret(data, "encryption", command, "--vhost", "/")
        rows = status(data)
        assert [(row["state"], row["segments"]) for row in rows] == [
            ("retired", 1),
            ("retired", 1),
            ("plain", 2),
        ]
        leveret(data, "encryption", "enable", "--vhost", "/")
        generate_master_key_file(tmp_path / "new.key")
        leveret(data, "encryption", "rotate-master", "--new-key-file", tmp_path / "new.key")
        broker.stop()
        broker.launch()  # with the old key
        assert broker.popen.wait(LIMIT_SECONDS) == 1
        assert "belongs to the master key" in broker.log()
        broker.popen = None
        broker.settings["encryption_key_file"] = tmp_path / "new.key"
        broker.start()
        with channel_of(broker) as channel:
            assert drained(channel, "orders") == [f"{SECRET} {number}" for number in range(4)]


def test_a_node_without_the_master_key_does_not_start_and_says_why(tmp_path, key_file):
    data = tmp_path / "data"
    with broker_at(tmp_path, key_file) as broker:
        leveret(data, "encryption", "enable", "--vhost", "/")
        broker.stop()
        del broker.settings["encryption_key_file"]
        broker.launch()
        assert broker.popen.wait(LIMIT_SECONDS) == 1
        assert "cannot start: virtual host '/' is encrypted" in broker.log()
        assert "encryption_key_file" in broker.log()
        broker.popen = None
        broker.settings["encryption_key_file"] = key_file
        broker.start()


@pytest.mark.kills
def test_kills_lose_nothing_confirmed_while_keys_are_rotated(tmp_path, key_file, seed):
    rng = random.Random(seed)
    load = Load(seed)
    broker = broker_at(tmp_path, key_file, segment_bytes_max=1 << 20)
    data = tmp_path / "data"
    try:
        broker.start()
        declare_topology(broker.port)
        leveret(data, "encryption", "enable", "--vhost", "/")
        load.account.round += 1
        load.start(broker.port)
        leveret(data, "encryption", "rotate", "--vhost", "/")
        kill_after(broker, load.account.events, rng.randint(1, 3000))
        load.join()
        assert not load.account.troubles, load.account.troubles[:20]
        broker.start()
        load.account.round += 1
        load.account.check(drain(broker.port, load.account))
        assert load.account.confirmed
        broker.stop()
        broker.start()
        assert not drain(broker.port, load.account)
        broker.check_untroubled()
    finally:
        broker.kill()
