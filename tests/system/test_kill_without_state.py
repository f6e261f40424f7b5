"""A node that is killed and loses `state.lmdb` starts with what its logs say."""

from __future__ import annotations

import shutil
import time

import pytest

from tests.harness.broker import BrokerProcess
from tests.system.test_prepared import decide, prepare
from tests.system.test_queue_features import await_count, connected, declare, drained, publish

pytestmark = pytest.mark.usefixtures("processes")


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_everything_comes_from_the_logs(tmp_path, durability):
    data = tmp_path / "data"
    with BrokerProcess(data, durability=durability, segment_bytes_max=65536) as broker:
        connection, channel = connected(broker)
        declare(channel, "ranked", max_priority=5)
        declare(channel, "window", dedup_window=3_600_000)
        declare(channel, "later")
        declare(channel, "prepared")
        for number in range(40):
            publish(channel, "ranked", b"%d" % number, priority=number % 4)
            publish(channel, "window", b"x" * 5000, message_id=str(number))
        assert len(drained(channel, "window")) == 40  # consumed, and remembered
        publish(channel, "later", b"later", headers={"x-delay": 4000, "x-schedule-id": "s"})
        publish(channel, "later", b"instead", headers={"x-delay": 4000, "x-schedule-id": "s"})
        prepare(channel, "m", b"prepared", queue="prepared")
        time.sleep(2)  # settlements, keys and due times are written behind
        connection.close()
        broker.kill()
        shutil.rmtree(data / "state.lmdb")
        broker.start()

        connection, channel = connected(broker)
        for number in range(41):
            publish(channel, "window", b"again", message_id=str(number))
        assert len(drained(channel, "window")) == 1
        ranked = sorted(range(40), key=lambda number: (-(number % 4), number))
        assert drained(channel, "ranked") == [str(number) for number in ranked]
        await_count(channel, "later", 1)
        assert drained(channel, "later") == ["instead"]
        assert decide(channel, "commit", "m") == "committed"
        assert drained(channel, "prepared") == ["prepared"]
        connection.close()
        broker.check_untroubled()
