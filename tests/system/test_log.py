"""What the log of a whole node says to whoever asks why something does not work."""

import re
import time

import pytest

from tests.harness.broker import BrokerProcess

SECONDS_MAX = 20


@pytest.fixture
def node(tmp_path):
    """Start a node with settings; it ends with the test."""
    started = []

    def start(**settings):
        broker = BrokerProcess(tmp_path / "data", **settings)
        started.append(broker)
        return broker.start()

    yield start
    for each in started:
        each.kill()


def line_with(broker, text):
    """The line in which the log says `text` (a pattern), as soon as it does."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        for line in broker.log().splitlines():
            if re.search(text, line):
                return line
        time.sleep(0.02)
    raise AssertionError(f"no line with {text}:\n{broker.log()}")


def test_default_user_that_gets_in_from_elsewhere_is_told_at_each_start(node):
    broker = node(host="0.0.0.0", loopback_users="[]")
    line = line_with(broker, "user 'guest'")
    assert " WARNING " in line
    assert "may connect from other machines" in line


def test_default_user_on_loopback_is_no_reason_to_warn(node):
    broker = node(host="0.0.0.0", loopback_users="")
    line_with(broker, "LEVERET_LOOPBACK_USERS is empty and counts as not set")
    broker.terminate()
    broker.wait()
    assert "user 'guest'" not in broker.log()
