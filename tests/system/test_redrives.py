"""Each message is in one place, whenever the process is killed while dead letters go back."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.harness.broker import BrokerProcess
from tests.support.waiting import LIMIT_SECONDS
from tests.system.test_kill import make_seed
from tests.system.test_queue_features import connected, declare, publish

pytestmark = pytest.mark.usefixtures("processes")

MESSAGES = 300


def dlq(broker, *arguments):
    command = [sys.executable, "-m", "leveret", "dlq", *arguments]
    command += ["--data-dir", str(broker.data), "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


def bodies(channel, queue):
    found: Counter[str] = Counter()
    while (got := channel.basic_get(queue))[0] is not None:
        found[got[2].decode()] += 1
    return found


@pytest.mark.covers("C-206")
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_kills_leave_each_message_in_one_place(tmp_path, durability):
    rng = random.Random(make_seed())
    broker = BrokerProcess(tmp_path / "data", durability=durability)
    try:
        broker.start()
        connection, channel = connected(broker)
        declare(channel, "q", dead_letter_topic=True)
        for number in range(MESSAGES):
            publish(channel, "q", f"m{number}")
        for _ in range(MESSAGES):
            channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
        connection.close()
        time.sleep(0.5)  # whatever is settled is written down
        for _ in range(4):
            started = dlq(broker, "redrive", "q.dlq", "--rate", "200", "--detach")
            assert started.returncode == 0, started.stderr
            time.sleep(rng.uniform(0.05, 0.5))
            broker.kill()
            broker.start()
            connection, channel = connected(broker)
            assert bodies(channel, "q") + bodies(channel, "q.dlq") == Counter(
                f"m{number}" for number in range(MESSAGES)
            )
            connection.close()
        ended = dlq(broker, "redrive", "q.dlq")
        assert json.loads(ended.stdout)["phase"] == "done"
        connection, channel = connected(broker)
        assert bodies(channel, "q").total() == MESSAGES
        connection.close()
        broker.check_untroubled()
    finally:
        broker.kill()
