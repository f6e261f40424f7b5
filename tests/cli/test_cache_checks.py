"""`leveret doctor --deep` compares what the state store caches with the logs."""

from __future__ import annotations

import shutil
import time

import pika
import pytest

from leveret.features.dedup.window import MARK
from leveret.features.delay.due_index import ABOUT, ABOUT_VALUE
from leveret.storage.state import LmdbStateStore
from tests.harness.pika_client import connected, declare, drained, publish
from tests.support.command_line import FREE_PORTS, CommandLine
from tests.support.node import node_in_thread

pytestmark = pytest.mark.usefixtures("sound_state")
FAR = 1000  # an offset that no log has


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """The directory of a node that has cached something of each kind, and was stopped."""
    data = tmp_path_factory.mktemp("caches") / "data"
    data.mkdir(mode=0o700)
    with node_in_thread(data) as node:
        connection, channel = connected(node)
        declare(channel, "window", dedup_window=3_600_000)
        declare(channel, "retried", retry_delays=[3_600_000])
        channel.exchange_declare("x", "fanout", durable=True, arguments={"x-dedup-window": True})
        channel.queue_bind("retried", "x")
        for number in range(5):
            publish(channel, "window", b"x", message_id=str(number))
            headers = {"x-delay": 3_600_000, "x-schedule-id": f"s{number}"}
            publish(channel, "window", b"x", headers=headers)
        channel.basic_publish("x", "", b"x", pika.BasicProperties(message_id="1"))
        method, *_ = channel.basic_get("retried")
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert drained(channel, "retried") == []
        time.sleep(2)  # caches are written behind
        connection.close()
    return data


@pytest.fixture
def data_dir(used, tmp_path):
    return shutil.copytree(used, tmp_path / "data")


def change(data_dir, prefix, value_of):
    """Give all entries with a prefix other values; None removes them."""
    state = LmdbStateStore(data_dir / "state.lmdb", print)
    entries = state.scan(prefix)
    changes = [(key, value_of(key, value)) for key, value in entries]
    state.write(changes, durable=True)
    state.close()
    assert entries


def problems(data_dir):
    """Return (cache, separator, problem) of all results, which are about caches."""
    rows = CommandLine(data_dir, "doctor", **FREE_PORTS).json("--deep", status=None)
    assert all(row["check"] == "state.cache" for row in rows), rows
    assert all("state.lmdb.old" in row["remedy"] for row in rows)
    return [row["what"].partition(" in state.lmdb ") for row in rows]


def test_caches_that_agree_with_their_logs(data_dir):
    assert problems(data_dir) == []


def test_an_index_that_lacks_messages(data_dir):
    change(data_dir, b"due/", lambda key, value: value if key.endswith(ABOUT) else None)
    assert [(name, what) for name, _, what in problems(data_dir)] == [
        ("the index of due times", "lacks 5 delayed messages, the first at offset 0"),
        ("the index of due times", "lacks 1 delayed messages, the first at offset 0"),
    ]


def test_an_index_of_another_log(data_dir):
    far = ABOUT_VALUE.pack(1, FAR)
    change(data_dir, b"due/", lambda key, value: far if key.endswith(ABOUT) else value)
    assert [what for _, _, what in problems(data_dir)] == [
        "covers offsets below 1000, but the log ends at 5",
        "covers offsets below 1000, but the log ends at 1",
    ]


def test_windows_of_other_logs(data_dir):
    far = MARK.pack(1, FAR)
    change(data_dir, b"dedup/", lambda key, value: far if key.endswith(b"/mark") else value)
    assert [(name, what) for name, _, what in problems(data_dir)] == [
        ("the de-duplication window", "covers offsets below 1000, but the log ends at 1"),
        ("the de-duplication window", "covers offsets below 1000, but the log ends at 5"),
    ]


def test_windows_that_lack_keys(data_dir):
    change(data_dir, b"dedup/", lambda key, value: None if b"/c/" in key else value)
    assert [what for _, _, what in problems(data_dir)] == ["lacks the keys from offset 0 on"] * 2


def test_ids_of_messages_that_are_not_there(data_dir):
    change(data_dir, b"schedules", lambda _, value: FAR.to_bytes(len(value), "big"))
    assert [(name, what) for name, _, what in problems(data_dir)] == [
        ("the schedule ids", "knows of offset 1000, but the log ends at 5")
    ]
