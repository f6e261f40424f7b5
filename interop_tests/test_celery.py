"""Celery with results over rpc://, in both of its minds about the broker's prefetch.

kombu takes a broker that calls itself RabbitMQ, of a version before 4, for one whose prefetch, when
global, can be changed at run time; any other is told its prefetch once, as the specification says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import chain, group  # type: ignore[import-untyped]
from celery.exceptions import TaskRevokedError  # type: ignore[import-untyped]

from interop_tests.brokers import UNDER_OWN_NAME, LeveretBroker, candidate
from interop_tests.celery_worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from interop_tests.brokers import Broker

RESULT_SECONDS_MAX = 30
LATER_SECONDS = 6  # long enough for a busy machine to do what is not for later
RABBITMQ, OWN_NAME = "as RabbitMQ", "own name"


@pytest.fixture(scope="module", params=[RABBITMQ, OWN_NAME])
def mind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == OWN_NAME and candidate() is not LeveretBroker:
        pytest.skip("RabbitMQ has one name")
    return name


@pytest.fixture(scope="module")
def worker(mind: str, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker of a single process, which takes four messages in advance."""
    directory = tmp_path_factory.mktemp("celery")
    renamed = LeveretBroker(directory, UNDER_OWN_NAME) if mind == OWN_NAME else None
    if renamed:
        renamed.start()
    try:
        url = (renamed or broker).address.url()
        settings = {"broker_url": url, "task_default_queue": "celery.rpc"}
        with Worker(directory, settings) as running:
            yield running
    finally:
        if renamed:
            renamed.close()


@pytest.fixture
def app(worker: Worker) -> Celery:
    return worker.app


@pytest.mark.covers("B-500")
def test_kombu_knows_what_prefetch_means(app: Celery, mind: str) -> None:
    with app.connection() as connection:
        assert connection.qos_semantics_matches_spec is (mind == OWN_NAME)


def test_result(app: Celery) -> None:
    assert app.tasks["add"].delay(2, 3).get(timeout=RESULT_SECONDS_MAX) == 5


def test_many_results_in_a_group(app: Celery) -> None:
    results = group(app.tasks["add"].s(number, number) for number in range(50))()
    assert results.get(timeout=RESULT_SECONDS_MAX) == [2 * number for number in range(50)]


def test_chain(app: Celery) -> None:
    add = app.tasks["add"]
    result = chain(add.s(1, 1), add.s(10), add.s(100))()
    assert result.get(timeout=RESULT_SECONDS_MAX) == 112


def test_failure_is_told(app: Celery) -> None:
    with pytest.raises(ValueError, match="boom"):
        app.tasks["fail"].delay("boom").get(timeout=RESULT_SECONDS_MAX)


def test_retries_with_a_countdown(app: Celery) -> None:
    assert app.tasks["succeed_at_last"].delay(2).get(timeout=RESULT_SECONDS_MAX) == 2


@pytest.mark.covers("B-500")
def test_tasks_for_later_hold_up_others_only_where_prefetch_is_static(
    app: Celery, mind: str
) -> None:
    """A worker asks for one more message, at run time, for each that it holds for later."""
    add = app.tasks["add"]
    later = [add.apply_async((number, 1), countdown=LATER_SECONDS) for number in range(20)]
    at_once = add.delay(40, 2)
    assert at_once.get(timeout=RESULT_SECONDS_MAX) == 42
    if mind == RABBITMQ:
        assert not any(result.ready() for result in later)
    assert [result.get(timeout=RESULT_SECONDS_MAX) for result in later] == list(range(1, 21))


def test_remote_control(app: Celery, worker: Worker) -> None:
    assert app.control.ping(limit=1, timeout=5.0) == [{worker.name: {"ok": "pong"}}]
    registered = app.control.inspect([worker.name], timeout=5.0).registered()
    assert "add" in registered[worker.name]


def test_worker_consumes_from_another_queue_when_told(app: Celery, worker: Worker) -> None:
    queue = "celery.rpc.other"
    app.control.add_consumer(queue, destination=[worker.name], reply=True, timeout=5.0)
    result = app.tasks["add"].apply_async((3, 4), queue=queue)
    assert result.get(timeout=RESULT_SECONDS_MAX) == 7
    told = app.control.cancel_consumer(queue, destination=[worker.name], reply=True, timeout=5.0)
    assert "no longer consuming" in told[0][worker.name]["ok"]


def test_revoked_task_does_not_run(app: Celery, worker: Worker) -> None:
    result = app.tasks["add"].apply_async((1, 1), countdown=1.0)
    app.control.revoke(result.id, destination=[worker.name], reply=True, timeout=5.0)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=RESULT_SECONDS_MAX)
