"""`leveret perf` against a real broker: everything it sends arrives exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from interop_tests.brokers import Broker

CONFIRMED = "--persistent --confirms 200 --ack-every 10 --prefetch 100"


def perf(broker: Broker, options: str) -> dict[str, object]:
    command = [sys.executable, "-m", "leveret", "perf", "--json", "--uri", broker.address.url()]
    done = subprocess.run(
        [*command, *options.split()],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    "options",
    [
        "",
        CONFIRMED,
        f"{CONFIRMED} --queue-type quorum",
        f"{CONFIRMED} --consumers 3 --processes 2",
        f"{CONFIRMED} --queues 20 --publishers 3 --channels 2",
        f"{CONFIRMED} --size 300000 --messages 50",
        f"{CONFIRMED} --exchange-type topic --bindings 300 --queues 5 --random-keys",
        "--confirms 1 --publishers 20 --ack-every 1 --ack-frames each",
        "--rate 1000 --ack-every 1 --ack-frames read",
        "--get --ack-every 1",
    ],
)
def test_everything_arrives_exactly_once(broker: Broker, options: str) -> None:
    result = perf(broker, f"--verify --messages 2000 {options}")
    assert result["published_total"] == result["consumed_total"]
    assert result["verification"] == {"missing": 0, "duplicates": 0, "foreign": 0}


@pytest.mark.parametrize(
    "options",
    [
        "--expiration 60000",
        "--queue-argument x-message-ttl=60000",
        "--priority-max 10 --queue-argument x-max-priority=10",
    ],
)
def test_properties_and_arguments_change_nothing_about_that(broker: Broker, options: str) -> None:
    test_everything_arrives_exactly_once(broker, f"{CONFIRMED} {options}")


@pytest.mark.parametrize(
    "options",
    [
        "--rejecters 1",
        "--rejecters 3 --queues 2 --ack-frames each",
        "--queue-argument x-message-ttl=0",
        "--expiration 0",
    ],
)
def test_every_dead_letter_arrives_exactly_once(broker: Broker, options: str) -> None:
    few = "--drain-timeout 3 --messages 500"
    test_everything_arrives_exactly_once(broker, f"{CONFIRMED} --dead-letters {options} {few}")


def test_a_full_queue_keeps_its_newest_messages(broker: Broker) -> None:
    limit = "--queue-argument x-max-length=100"
    filled = perf(broker, f"--mode fill --messages 3000 --confirms 500 {limit}")
    assert filled["confirmed_total"] == 3000
    assert perf(broker, "--mode drain")["consumed_total"] == 100


def test_a_full_queue_refuses_and_loses_nothing_else(broker: Broker) -> None:
    limit = "--queue-argument x-max-length=100 --queue-argument x-overflow=reject-publish"
    options = f"--messages 20000 --confirms 1000 --ack-every 1 --prefetch 10 {limit}"
    result = perf(broker, options)
    refused = result["refused_total"]
    assert isinstance(refused, int)
    assert 0 < refused < 20000
    assert result["confirmed_total"] == result["consumed_total"] == 20000 - refused


def test_a_fanout_delivers_a_copy_to_every_queue(broker: Broker) -> None:
    result = perf(broker, f"--verify --messages 1000 --fanout 7 --consumers 2 {CONFIRMED}")
    assert (result["published_total"], result["consumed_total"]) == (1000, 7000)


def test_a_backlog_is_filled_and_drained(broker: Broker) -> None:
    assert perf(broker, "--mode fill --messages 3000 --confirms 500")["confirmed_total"] == 3000
    drained = perf(broker, "--mode drain --ack-every 100 --prefetch 500")
    assert drained["consumed_total"] == 3000
    assert perf(broker, "--mode drain")["consumed_total"] == 0


def test_get_takes_as_many_as_asked_for_and_no_more_than_there_are(broker: Broker) -> None:
    perf(broker, "--mode fill --messages 500 --confirms 500")
    get = "--mode drain --get --consumers 3 --ack-every 1"
    assert perf(broker, f"{get} --messages 200")["consumed_total"] == 200
    assert perf(broker, f"{get} --messages 200 --ack-frames each")["consumed_total"] == 200
    assert perf(broker, f"{get} --messages 200")["consumed_total"] == 100


def test_idle_connections_are_held(broker: Broker) -> None:
    assert perf(broker, "--mode idle --connections 100 --duration 0.1")["connections"] == 100


def test_a_refused_login_is_told_in_the_brokers_words(broker: Broker) -> None:
    uri = f"amqp://guest:wrong@{broker.address.host}:{broker.address.port}/"
    command = [sys.executable, "-m", "leveret", "perf", "--uri", uri, "--messages", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 1
    assert "ACCESS_REFUSED" in done.stderr
