"""The hour that a node tells to the stream `leveret.usage`, where that is switched on."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from leveret.ports.usage import HOUR_SECONDS, Account, Subject, Usage
from leveret.storage.usage import SqliteUsageStore
from tests.process import running_node
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")


async def note_usage(data_dir, hour):
    store = SqliteUsageStore(data_dir / "usage.db")
    await store.add(hour, {Account(Subject.QUEUE, "/", "orders"): Usage(1, 100, 1, 100)})
    await store.close()


def is_done_with(data_dir, hour):
    with closing(sqlite3.connect(f"file:{data_dir / 'usage.db'}?mode=ro", uri=True)) as database:
        return (hour,) in database.execute("SELECT hour FROM published").fetchall()


def queues(data_dir):
    command = [sys.executable, "-m", "leveret", "queue", "list", "--data-dir", data_dir]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("switched_on", [True, False])
def test_an_hour_that_is_over(tmp_path, switched_on):
    data_dir, config = tmp_path / "data", tmp_path / "leveret.toml"
    with running_node(data_dir):
        pass
    hour = (int(time.time()) // HOUR_SECONDS - 2) * HOUR_SECONDS
    asyncio.run(note_usage(data_dir, hour))
    stream = str(switched_on).lower()
    config.write_text(f"usage_interval_ms = 100\nusage_stream = {stream}\n")
    with running_node(data_dir, "--config", str(config)):
        deadline = time.monotonic() + LIMIT_SECONDS
        while not is_done_with(data_dir, hour):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert ("leveret.usage" in queues(data_dir)) is switched_on
