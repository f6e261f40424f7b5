"""Celery tasks with an ETA wait beside their queue."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pamqp import commands

from leveret.core.settings.queue_settings import resolve_settings
from leveret.errors import DiskFullError, NotEnoughCopiesError, StorageError
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.delay.schedules import DelayedMessageFilter
from leveret.ports import Durability
from tests.support.client import Client, message
from tests.support.stage import Stage

ETA_QUEUE = {"x-celery-eta": True}


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def client(stage: Stage) -> Client:
    client = Client(stage).open()
    client.declare("tasks", arguments=ETA_QUEUE)
    return client


def eta(stage: Stage, seconds: float) -> dict[str, object]:
    moment = datetime.fromtimestamp(stage.now / 1000 + seconds, UTC)
    return {"eta": moment.isoformat(), "task": "app.add", "id": "1"}


def bodies(client: Client, queue: str = "tasks") -> list[bytes]:
    found = []
    while True:
        client.send(commands.Basic.Get(queue=queue, no_ack=True))
        frames = [frame for _, frame in client.received()]
        if frames[0].name == "Basic.GetEmpty":
            return found
        found.append(b"".join(part.value for part in frames[2:]))


def wait(stage: Stage, seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        stage.advance(0.1)


def test_a_task_comes_at_its_time(stage: Stage, client: Client) -> None:
    client.publish("tasks", b"later", headers=eta(stage, 2))
    client.publish("tasks", b"now", headers={**eta(stage, 0), "eta": None})
    client.publish("tasks", b"past", headers=eta(stage, -5))
    assert bodies(client) == [b"now", b"past"]
    assert stage.queue("tasks").extension(EtaHold).pending_count == 1
    wait(stage, 1.9)
    assert bodies(client) == []
    wait(stage, 0.1)
    assert bodies(client) == [b"later"]
    wait(stage, 1)
    assert stage.queue("tasks").extension(EtaHold).pending_count == 0
    assert not stage.reported


def test_some_of_a_batch(stage: Stage, client: Client) -> None:
    later = eta(stage, 1)
    client.feed(
        b"".join(
            message("tasks", b"%d" % n, headers=later if n % 3 == 0 else {"eta": None})
            for n in range(9)
        )
    )
    assert bodies(client) == [b"1", b"2", b"4", b"5", b"7", b"8"]
    wait(stage, 1)
    assert bodies(client) == [b"0", b"3", b"6"]


def test_only_where_the_queue_says_so(stage: Stage, client: Client) -> None:
    client.declare("plain")
    client.publish("plain", b"m", headers=eta(stage, 5))
    assert bodies(client, "plain") == [b"m"]


@pytest.mark.parametrize("value", ["soon", 5, None, "", {"a": 1}])
def test_what_is_no_time_goes_its_way(client: Client, value: object) -> None:
    client.publish("tasks", b"m", headers={"eta": value})
    assert bodies(client) == [b"m"]


@pytest.mark.covers("C-217")
def test_no_prefetch_slot_is_pinned(stage: Stage, client: Client) -> None:
    client.prefetch(1)
    client.consume("tasks")
    for _ in range(100):
        client.publish("tasks", b"far", headers=eta(stage, 3600))
    client.publish("tasks", b"now")
    assert [delivery.body for delivery in client.deliveries()] == [b"now"]


class TestConfirms:
    @pytest.fixture
    def stage(self) -> Stage:
        return Stage(Durability.FSYNC)

    @pytest.fixture
    def client(self, stage: Stage) -> Client:
        client = Client(stage).open()
        client.declare("tasks", durable=True, arguments=ETA_QUEUE)
        client.call(commands.Confirm.Select())
        return client

    def test_they_wait_for_what_is_held(self, stage: Stage, client: Client) -> None:
        client.publish("tasks", b"held", headers=eta(stage, 5), delivery_mode=2)
        assert client.methods() == []
        stage.log("tasks.eta").commit()
        stage.run()
        assert client.methods() == [("Basic.Ack", 1, False)]

    def test_they_wait_for_both(self, stage: Stage, client: Client) -> None:
        tasks = [(b"held", eta(stage, 5)), (b"now", {"eta": None})]
        client.feed(
            b"".join(message("tasks", body, headers=h, delivery_mode=2) for body, h in tasks)
        )
        stage.log("tasks").commit()
        stage.run()
        assert client.methods() == []
        stage.log("tasks.eta").commit()
        stage.run()
        assert client.methods() == [("Basic.Ack", 2, True)]

    def test_a_held_task_that_is_lost_is_told(self, stage: Stage, client: Client) -> None:
        client.publish("tasks", b"held", headers=eta(stage, 5), delivery_mode=2)
        stage.log("tasks.eta").fail(DiskFullError("no space"))
        stage.run()
        assert client.methods()[0][:2] == ("Basic.Nack", 1)

    def test_it_stays_held_until_the_queue_has_it(self, stage: Stage, client: Client) -> None:
        client.publish("tasks", b"held", headers=eta(stage, 1), delivery_mode=2)
        held = stage.log("tasks.eta")
        held.commit()
        wait(stage, 2)
        assert stage.log("tasks").end == 1
        assert not held.settled
        stage.log("tasks").commit()
        wait(stage, 1)
        assert list(held.settled) == [(0, 1)]

    def test_it_comes_once_though_its_queue_lacks_copies_meanwhile(
        self, stage: Stage, client: Client
    ) -> None:
        client.publish("tasks", b"held", headers=eta(stage, 1), delivery_mode=2)
        stage.log("tasks.eta").commit()
        wait(stage, 2)
        queue = stage.log("tasks")
        queue.refuse(NotEnoughCopiesError("it needs 2 nodes in sync, and has 1"))
        wait(stage, 3)
        queue.refuse(None)
        wait(stage, 3)
        queue.commit()
        wait(stage, 1)
        assert queue.end == 1
        assert list(stage.log("tasks.eta").settled) == [(0, 1)]

    @pytest.mark.parametrize("is_in_its_batch", [False, True])
    def test_it_comes_once_though_another_task_lacks_copies_as_well(
        self, stage: Stage, client: Client, is_in_its_batch: bool
    ) -> None:
        client.publish("tasks", b"held", headers=eta(stage, 1), delivery_mode=2)
        held = stage.log("tasks.eta")
        held.commit()
        wait(stage, 0.9)
        another = message("tasks", b"other", headers=eta(stage, 3600), delivery_mode=2)
        if is_in_its_batch:
            store = stage.queue("tasks").extension(EtaHold).store
            hand_out = store._on_due
            store._on_due = lambda due: (hand_out(due), client.feed(another))
        else:
            client.feed(another)
        wait(stage, 1)
        queue = stage.log("tasks")
        assert (queue.end, queue.committed, held.end, held.committed) == (1, 0, 2, 1)
        lacks = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")
        for log in (queue, held):
            log.refuse(lacks)
        wait(stage, 3)
        for log in (queue, held):
            log.refuse(None)
        for _ in range(3):
            wait(stage, 1)
            queue.commit()
            held.commit()
        assert queue.end == 1
        assert held.settled.contains(0, 1)


def test_held_tasks_have_as_many_copies_as_the_queue(stage: Stage, client: Client) -> None:
    client.declare("q", durable=True, arguments={**ETA_QUEUE, "x-queue-type": "quorum"})
    client.publish("q", b"held", headers=eta(stage, 60), delivery_mode=2)
    queue, held = stage.queue("q"), stage.log("q.eta")
    assert held.copies_min == stage.log("q").copies_min == 2
    queue.reconfigure(resolve_settings(queue.definition, {"min-isr": 3}))
    assert held.copies_min == 3
    client.call(commands.Confirm.Select())
    held.refuse(NotEnoughCopiesError("it needs 3 nodes in sync, and has 2"))
    client.publish("q", b"lost", headers=eta(stage, 60), delivery_mode=2)
    assert client.methods()[0][:2] == ("Basic.Nack", 1)


def test_tasks_stay_held_while_their_queue_is_reordered(stage: Stage, client: Client) -> None:
    client.declare("q", durable=True, arguments=ETA_QUEUE)
    client.publish("q", b"held", headers=eta(stage, 1))
    queue = stage.queue("q")
    more = {"max-priority": 3, "min-isr": 2}
    queue.reorder(resolve_settings(queue.definition, more))
    assert stage.log("q.eta").copies_min == 2
    client.publish("q", b"also held", headers=eta(stage, 1))
    wait(stage, 1.5)
    assert bodies(client, "q") == [b"held", b"also held"]


def test_a_full_queue_gets_it_later(stage: Stage, client: Client) -> None:
    limits = {**ETA_QUEUE, "x-max-length": 1, "x-overflow": "reject-publish"}
    client.declare("small", arguments=limits)
    client.publish("small", b"held", headers=eta(stage, 1))
    client.publish("small", b"full")
    wait(stage, 3)
    assert bodies(client, "small") == [b"full"]
    wait(stage, 1)
    assert bodies(client, "small") == [b"held"]


def test_without_a_topic_tasks_go_to_the_workers_early(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no more files")

    monkeypatch.setattr(stage.topics, "open", refuse)
    for _ in range(2):
        client.publish("tasks", b"m", headers=eta(stage, 60))
    assert bodies(client) == [b"m", b"m"]
    assert len(stage.reported) == 1


def test_a_policy_can_say_so(stage: Stage, client: Client) -> None:
    client.declare("plain")
    queue = stage.queue("plain")
    queue.reconfigure(resolve_settings(queue.definition, {"celery-eta": True}))
    client.publish("plain", b"m", headers=eta(stage, 5))
    assert bodies(client, "plain") == []
    queue.reconfigure(resolve_settings(queue.definition, {}))
    client.publish("plain", b"now", headers=eta(stage, 5))
    assert bodies(client, "plain") == [b"now"]
    wait(stage, 5)
    assert bodies(client, "plain") == [b"m"]


def test_a_deleted_queue_takes_its_tasks_with_it(stage: Stage, client: Client) -> None:
    client.publish("tasks", b"m", headers=eta(stage, 5))
    client.call(commands.Queue.Delete(queue="tasks"))
    stage.run()
    assert stage.log("tasks.eta").deleted
    wait(stage, 6)
    assert not stage.reported


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-celery-eta": "yes"}, "invalid arg 'x-celery-eta' for queue 'bad' in vhost '/'"),
        ({"x-celery-eta": True, "x-queue-type": "stream"}, "invalid arg 'x-celery-eta'"),
    ],
)
def test_wrong_values_are_refused(client: Client, arguments: dict[str, object], text: str) -> None:
    answer = client.call(commands.Queue.Declare(queue="bad", durable=True, arguments=arguments))
    assert answer.name == "Channel.Close"
    assert text in answer.reply_text


async def test_held_tasks_are_listed(stage: Stage, client: Client) -> None:
    for hours in (3, 1, 2):
        client.publish("tasks", b"%d" % hours, headers=eta(stage, 3600 * hours))
    schedules = stage.broker.schedules
    page = await schedules.page("/", DelayedMessageFilter(), 10, queue="tasks")
    assert [row["id"] for row in page.rows] == ["@1", "@2", "@0"]
    assert (await schedules.find("/", "@1", queue="tasks")).body == b"1"
    assert schedules.pending_count("/", "tasks") == 3
    assert schedules.pending_count("/") == 0
    assert await schedules.cancel("/", "@1", queue="tasks") == 1
    wait(stage, 0)
    assert schedules.pending_count("/", "tasks") == 2
