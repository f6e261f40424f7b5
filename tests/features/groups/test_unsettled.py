"""Messages that are kept beyond the retention, because nobody settles them."""

import pytest

from leveret.features.groups.unsettled import unsettled_beyond_retention
from leveret.ports import LogFile
from tests.support.client import Client
from tests.support.memory_log import MemoryTopicLog
from tests.support.stage import Stage

HOUR_MS = 3_600_000
# Of 5 records each, an hour after each other, the last of them written now.
FILES = [
    LogFile(5 * number, 5 * number + 5, 100, (number - 3) * HOUR_MS, number < 3)
    for number in range(4)
]


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr(MemoryTopicLog, "list_files", lambda _log: FILES)
    return Stage()


def unsettled(stage):
    queue = stage.queue("q")
    groups = stage.broker.groups.of_queue(queue).values()
    return unsettled_beyond_retention(queue, groups, 0)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"x-retention": "90m"}, 5),
        ({"x-retention": "30m"}, 10),
        ({"x-retention": "9h"}, 0),
        ({"x-retention-bytes": 250}, 10),
        ({"x-retention-bytes": 1}, 15),
        ({"x-retention-bytes": 400}, 0),
        ({"x-retention-messages": 10}, 10),
        ({"x-retention-messages": 11}, 5),
        ({"x-retention-messages": 11, "x-retention-bytes": 250}, 10),
        ({"x-queue-type": "stream", "x-retention-messages": 1}, 0),
    ],
)
@pytest.mark.parametrize("read", [20, 7])
def test_whole_files_beyond_some_limit_are_counted_as_far_as_all_have_read(
    stage, limits, expected, read
):
    client = Client(stage).open()
    client.declare("q", durable=True, arguments=limits)
    client.publish("q", *(b"%d" % number for number in range(20)))
    assert unsettled(stage) == 0  # there are no groups
    for name in ("one", "two"):
        stage.broker.groups.create(stage.queue("q"), name, {})
    (one, two) = stage.broker.groups.all()
    one.subscriptions[0].settle_below(20)
    assert unsettled(stage) == 0
    two.subscriptions[0].settle_below(read)
    assert unsettled(stage) == min(expected, read)
