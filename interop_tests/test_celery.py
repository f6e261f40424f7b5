"""A Celery worker process with results over rpc://."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from celery import chain, group  # type: ignore[import-untyped]

from interop_tests import celery_tasks
from interop_tests.brokers import REPOSITORY, Process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from interop_tests.brokers import Broker

WORKER_SECONDS_MAX = 30
RESULT_SECONDS_MAX = 20


@pytest.fixture(scope="module")
def app(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """The application with a worker that answers pings."""
    application = celery_tasks.app
    application.conf.broker_url = broker.address.url()
    command = [sys.executable, "-m", "celery", "-A", "interop_tests.celery_tasks", "worker"]
    command += ["--pool", "solo", "--without-mingle", "--hostname", "interop@localhost"]
    environment = {"INTEROP_BROKER_URL": broker.address.url(), "PYTHONPATH": str(REPOSITORY)}
    log = tmp_path_factory.mktemp("celery") / "worker.log"
    worker = Process(command, log, {**os.environ, **environment})
    try:
        _await_ping(application, worker)
        yield application
    finally:
        worker.popen.terminate()
        try:
            worker.popen.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
        application.close()


def _await_ping(application: Celery, worker: Process) -> None:
    deadline = time.monotonic() + WORKER_SECONDS_MAX
    while time.monotonic() < deadline:
        if application.control.ping(timeout=1.0):
            return
        worker.check_alive()
    pytest.fail(f"the worker did not answer a ping:\n{worker.tail()}")


@pytest.mark.usefixtures("app")
def test_result() -> None:
    assert celery_tasks.add.delay(2, 3).get(timeout=RESULT_SECONDS_MAX) == 5


@pytest.mark.usefixtures("app")
def test_many_results_in_a_group() -> None:
    results = group(celery_tasks.add.s(number, number) for number in range(50))()
    assert results.get(timeout=RESULT_SECONDS_MAX) == [2 * number for number in range(50)]


@pytest.mark.usefixtures("app")
def test_chain() -> None:
    result = chain(celery_tasks.add.s(1, 1), celery_tasks.add.s(10), celery_tasks.add.s(100))()
    assert result.get(timeout=RESULT_SECONDS_MAX) == 112


@pytest.mark.usefixtures("app")
def test_failure_is_told() -> None:
    with pytest.raises(ValueError, match="boom"):
        celery_tasks.fail.delay("boom").get(timeout=RESULT_SECONDS_MAX)


@pytest.mark.usefixtures("app")
def test_retries_with_a_countdown() -> None:
    assert celery_tasks.succeed_at_last.delay(2).get(timeout=RESULT_SECONDS_MAX) == 2


@pytest.mark.usefixtures("app")
def test_task_for_later() -> None:
    """An ETA raises the worker's prefetch at run time, by global or per-consumer qos."""
    result = celery_tasks.add.apply_async((4, 4), countdown=0.5)
    assert result.get(timeout=RESULT_SECONDS_MAX) == 8


def test_remote_control(app: Celery) -> None:
    inspect = app.control.inspect(timeout=5.0)
    registered = inspect.registered()
    assert registered is not None
    assert "interop_tests.celery_tasks.add" in registered["interop@localhost"]


def test_revoked_task_does_not_run(app: Celery) -> None:
    result = celery_tasks.add.apply_async((1, 1), countdown=1.0)
    app.control.revoke(result.id, reply=True, timeout=5.0)
    with pytest.raises(Exception, match="revoked"):
        result.get(timeout=RESULT_SECONDS_MAX)
