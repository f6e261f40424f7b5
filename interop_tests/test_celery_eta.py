"""Celery tasks with an ETA on a queue that holds them: no worker pins its prefetch for them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from interop_tests.brokers import LeveretBroker, candidate
from interop_tests.celery_worker import Worker
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.skipif(
    candidate() is not LeveretBroker, reason="RabbitMQ's workers hold such tasks themselves"
)

QUEUE = "celery.held"
SETTINGS = {
    "task_default_queue": QUEUE,
    "task_queues": {
        QUEUE: {
            "exchange": QUEUE,
            "routing_key": QUEUE,
            "queue_arguments": {"x-celery-eta": True},
        }
    },
}
FAR_TASKS = 50


@pytest.fixture(scope="module", params=[1, 4])
def worker(
    broker: LeveretBroker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Worker]:
    """A worker of a single process, which takes one message at a time; after it one that takes 4.

    The far tasks of the first are cancelled by then, and must not hold up those of the second.
    """
    settings = {
        **SETTINGS,
        "broker_url": broker.address.url(),
        "worker_prefetch_multiplier": request.param,
    }
    with Worker(tmp_path_factory.mktemp("celery"), settings) as running:
        yield running
        leveret(broker, "cancel", "--queue", QUEUE, "--all")


def leveret(broker: LeveretBroker, *arguments: str) -> object:
    command = [sys.executable, "-m", "leveret", "schedule", *arguments, "--json"]
    command += ["--data-dir", str(broker.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def held(broker: LeveretBroker) -> list[dict[str, object]]:
    rows = leveret(broker, "list", "--queue", QUEUE, "--limit", "0")
    assert isinstance(rows, list)
    return rows


@pytest.mark.covers("C-217")
def test_far_tasks_stand_in_nobody_s_way(broker: LeveretBroker, worker: Worker) -> None:
    add = worker.app.tasks["add"]
    for hours in range(FAR_TASKS):
        add.apply_async((1, 1), countdown=3600 * (hours + 1))
    begun = time.monotonic()
    assert [add.delay(number, 1).get(timeout=LIMIT_SECONDS) for number in range(5)] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert time.monotonic() - begun < LIMIT_SECONDS
    rows = held(broker)
    assert len(rows) == FAR_TASKS
    assert {row["headers"]["task"] for row in rows} == {"add"}  # type: ignore[index]
    scheduled = worker.app.control.inspect(timeout=5).scheduled()
    assert scheduled == {Worker.name: []}


@pytest.mark.covers("C-217")
@pytest.mark.parametrize("kind", ["countdown", "eta", "eta without offset"])
def test_a_task_runs_at_its_time(worker: Worker, kind: str) -> None:
    add = worker.app.tasks["add"]
    moment = datetime.now(UTC) + timedelta(seconds=2)
    begun = time.monotonic()
    if kind == "countdown":
        result = add.apply_async((2, 3), countdown=2)
    elif kind == "eta":
        result = add.apply_async((2, 3), eta=moment)
    else:
        result = add.apply_async((2, 3), eta=moment.replace(tzinfo=None).isoformat())
    assert result.get(timeout=LIMIT_SECONDS) == 5
    assert time.monotonic() - begun >= 1.9


@pytest.mark.covers("C-217")
def test_retries_with_a_countdown_are_held_too(worker: Worker) -> None:
    result = worker.app.tasks["succeed_at_last"].delay(2)
    assert result.get(timeout=LIMIT_SECONDS) == 2
