"""Celery workers of their own for each test: killed, stopped, and with queues of special kinds."""

# mypy: allow-untyped-calls

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import chord  # type: ignore[import-untyped]
from kombu.connection import Connection
from kombu.entity import Queue

from interop_tests.celery_tasks import application
from interop_tests.celery_worker import Worker
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from interop_tests.brokers import Broker

DELAY_SECONDS = 2  # queues number 1 of the 28: 2 ** 1 seconds


@pytest.fixture
def settings(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Results in files: that backend knows chords, and no broker is asked for them."""
    return {
        "broker_url": broker.address.url(),
        "result_backend": tmp_path.as_uri(),
        "task_default_queue": f"celery.{request.node.name}",
    }


def messages_in(broker: Broker, name: str) -> int:
    with Connection(broker.address.url()) as connection, connection.channel() as channel:
        count: int = Queue(name, channel=channel).queue_declare(passive=True).message_count
        return count


def test_chord(settings: dict[str, Any], tmp_path: Path) -> None:
    with Worker(tmp_path, settings) as worker:
        add, total = worker.app.tasks["add"], worker.app.tasks["total"]
        result = chord(add.s(number, 1) for number in range(10))(total.s())
        assert result.get(timeout=LIMIT_SECONDS) == 55


def test_task_of_a_killed_worker_is_run_by_another(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    settings |= {"task_acks_late": True}
    with Worker(tmp_path, settings, "prefork") as worker:
        result = worker.app.tasks["hold"].delay(str(tmp_path))
        wait_until((tmp_path / "held").exists, "the task's start")
        worker.kill()
        (tmp_path / "release").touch()
        with Worker(tmp_path, settings, "prefork"):
            assert result.get(timeout=LIMIT_SECONDS) is True  # it was redelivered


def test_worker_that_is_stopped_ends_its_task_and_returns_the_others(
    broker: Broker, settings: dict[str, Any], tmp_path: Path
) -> None:
    with Worker(tmp_path, settings, "prefork") as worker:
        held = worker.app.tasks["hold"].delay(str(tmp_path))
        wait_until((tmp_path / "held").exists, "the task's start")
        others = [worker.app.tasks["add"].delay(number, 1) for number in range(6)]
        wait_until(
            lambda: messages_in(broker, settings["task_default_queue"]) == len(others) - 4,
            "the worker taking four in advance",
        )
        worker.signal(signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in worker.log, "the worker's stopping")
        (tmp_path / "release").touch()
        assert worker.wait() == 0
        assert held.get(timeout=LIMIT_SECONDS) is False
        assert messages_in(broker, settings["task_default_queue"]) == len(others)


def test_worker_lives_through_the_death_of_its_broker(
    own_broker: Broker, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings |= {"broker_url": own_broker.address.url(), "task_acks_late": True}
    with Worker(tmp_path, settings) as worker:
        add = worker.app.tasks["add"]
        assert add.delay(1, 2).get(timeout=LIMIT_SECONDS) == 3
        own_broker.kill()
        own_broker.start()
        assert add.delay(3, 4).get(timeout=LIMIT_SECONDS) == 7


def test_priorities(settings: dict[str, Any], tmp_path: Path) -> None:
    settings |= {"task_queue_max_priority": 10, "worker_prefetch_multiplier": 1}
    notes, caller = tmp_path / "notes", application(settings)
    for priority in (0, 9, 3, 9, 1, 5):
        caller.tasks["note"].apply_async((str(notes), str(priority)), priority=priority)
    caller.close()
    with Worker(tmp_path, settings):
        wait_until(lambda: notes.exists() and len(notes.read_text().split()) == 6, "six notes")
    assert notes.read_text().split() == ["9", "9", "5", "3", "1", "0"]


@pytest.fixture
def quorum(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that Celery's documentation asks for with quorum queues."""
    settings |= {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}
    settings |= {"task_default_exchange": "celery.quorum", "task_default_routing_key": "tasks"}
    return settings


@pytest.mark.covers("B-501")
def test_quorum_queues_are_detected(quorum: dict[str, Any], tmp_path: Path) -> None:
    with Worker(tmp_path, quorum) as worker:
        assert "Global QoS is disabled" in worker.log
        results = [worker.app.tasks["add"].delay(number, 1) for number in range(50)]
        answers = [result.get(timeout=LIMIT_SECONDS) for result in results]
        assert answers == list(range(1, 51))


@pytest.mark.covers("B-501", "C-217")
def test_native_delayed_delivery(broker: Broker, quorum: dict[str, Any], tmp_path: Path) -> None:
    """The broker holds tasks for later, in 28 queues by the bits of their delay in seconds."""
    with Worker(tmp_path, quorum) as worker:
        start = time.monotonic()
        result = worker.app.tasks["add"].apply_async((2, 3), countdown=DELAY_SECONDS)
        wait_until(lambda: messages_in(broker, "celery_delayed_1") == 1, "a delayed message")
        wait_until(result.ready, "the delayed task's result")
        assert result.get() == 5
        assert time.monotonic() - start >= DELAY_SECONDS
