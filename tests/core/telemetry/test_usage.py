"""Metering and keeping: every message counts once, on the accounts that it should."""

from __future__ import annotations

import json

import pytest
from pamqp import commands

from leveret.broker.usage_keeping import USAGE_STREAM, UsageKeeper
from leveret.core.telemetry.usage import UsageMeter
from leveret.errors import StorageError
from leveret.ports.after_all import AfterAll
from leveret.ports.usage import (
    HOUR_SECONDS,
    NOTHING_COUNTED,
    Account,
    CountedLog,
    CountedLogs,
    Subject,
    Usage,
)
from tests.support.client import Client
from tests.support.stage import Stage

VHOST = Account(Subject.VHOST, "/", "/")
GUEST = Account(Subject.USER, "/", "guest")
QUEUE = Account(Subject.QUEUE, "/", "q")


class MemoryUsageStore:
    def __init__(self) -> None:
        self.hours: dict[int, dict[Account, Usage]] = {}
        self.published: set[int] = set()
        self.error: StorageError | None = None
        self.ends: dict[CountedLog, int] = {}
        self.at_ms: int | None = None

    async def add(self, hour, used, counted=NOTHING_COUNTED):
        if self.error is not None:
            raise self.error
        self.ends |= counted.ends
        self.at_ms = self.at_ms if counted.at_ms is None else counted.at_ms
        known = self.hours.setdefault(hour, {})
        for account, usage in used.items():
            known[account] = known.get(account, Usage()).plus(usage)

    async def counted(self):
        return CountedLogs(dict(self.ends), self.at_ms)

    async def forget_logs(self, logs):
        for log in logs:
            del self.ends[log]

    async def forget_counted(self):
        self.ends, self.at_ms = {}, None

    async def read(self, since, until):
        return [
            (hour, account, usage)
            for hour in sorted(self.hours)
            if since <= hour < until
            for account, usage in sorted(self.hours[hour].items())
        ]

    async def unpublished(self, before):
        return [hour for hour in sorted(self.hours) if hour < before and hour not in self.published]

    async def mark_published(self, hour):
        self.published.add(hour)

    async def forget(self, before):
        self.hours = {hour: used for hour, used in self.hours.items() if hour >= before}


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def store():
    return MemoryUsageStore()


@pytest.fixture
def keeper(made_keeper):
    return made_keeper()


@pytest.fixture
def made_keeper(stage, store):
    async def committed(queues):
        gate = AfterAll(len(queues))
        for queue in queues:
            queue.await_commit(gate)
        return not await gate

    def make(kept_in=store, **options):
        return UsageKeeper(stage.broker, kept_in, lambda: stage.now, committed, 2, **options)

    return make


def run(stage, work):
    stage.spawn(work)
    stage.run()


def look(stage):
    meter: UsageMeter = stage.broker.usage
    meter.look(stage.broker.metered())
    return meter.take()


def test_what_is_published_and_delivered_counts_for_all_concerned(stage):
    client = Client(stage).open()
    client.declare("q")
    client.publish("q", b"x" * 100, b"y" * 100)
    used = look(stage)
    assert used[VHOST] == used[GUEST]
    assert used[GUEST].messages_in == used[QUEUE].messages_in == 2
    assert used[GUEST].bytes_in == used[QUEUE].bytes_in > 200
    assert used[QUEUE].messages_out == 0
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert len(client.deliveries()) == 1
    client.consume("q")
    again = look(stage)
    assert again[QUEUE] == again[GUEST] == Usage(0, 0, 2, used[QUEUE].bytes_in)
    assert look(stage) == {}


def test_the_last_messages_of_those_who_end_count(stage):
    client = Client(stage).open()
    client.declare("q")
    client.publish("q", b"x")
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("q"))
    client.transport.lose()
    used = look(stage)
    assert used[GUEST].messages_in == used[QUEUE].messages_in == 1
    assert look(stage) == {}


def test_what_nobody_takes_counts_for_its_publisher_alone(stage):
    client = Client(stage).open()
    client.publish("nowhere", b"x")
    assert set(look(stage)) == {VHOST, GUEST}


def test_usage_counts_for_its_hour_and_is_told_when_that_is_over(stage, store, keeper):
    hour = stage.now // 1000 // HOUR_SECONDS * HOUR_SECONDS
    client = Client(stage).open()
    client.declare("q")
    client.publish("q", b"x")
    run(stage, keeper.keep())
    assert store.hours[hour][QUEUE].messages_in == 1
    assert USAGE_STREAM not in stage.broker.vhosts["/"].queues
    stage.now += HOUR_SECONDS * 1000
    client.publish("q", b"late")
    run(stage, keeper.keep())  # moved since the last time: it counts for the hour of that time
    assert store.hours[hour][QUEUE].messages_in == 2
    assert store.published == {hour}
    (batch,) = stage.log(USAGE_STREAM).batches
    records = [json.loads(record[6]) for record in batch.records()]
    assert [record["subject"] for record in records] == ["queue", "user", "vhost"]
    assert records[0] == {
        "hour": hour,
        "subject": "queue",
        "vhost": "/",
        "name": "q",
        **store.hours[hour][QUEUE]._asdict(),
    }


def test_what_two_nodes_have_counted_of_an_hour_is_told_apart(stage, made_keeper):
    stores = [MemoryUsageStore(), MemoryUsageStore()]
    client = Client(stage).open()
    client.declare("q")
    for node, store in enumerate(stores):
        client.publish("q", *[b"x"] * (node + 1))
        run(stage, made_keeper(store, node_id=node).keep())
    stage.now += HOUR_SECONDS * 1000
    for node in (1, 0):  # who leads at the end of the hour, and who leads again later
        run(stage, made_keeper(stores[node], node_id=node).keep())
    records = [
        json.loads(record[6])
        for batch in stage.log(USAGE_STREAM).batches
        for record in batch.records()
    ]
    told = {each["node"]: each["messages_in"] for each in records if each["subject"] == "queue"}
    assert told == {0: 1, 1: 2}
    assert len({each["hour"] for each in records}) == 1


def test_without_the_stream_hours_that_end_are_never_told(stage, store, made_keeper):
    client = Client(stage).open()
    client.declare("q")
    client.publish("q", b"x")
    keeper = made_keeper(publishes=False)
    run(stage, keeper.keep())
    stage.now += HOUR_SECONDS * 1000
    run(stage, keeper.keep())
    (first,) = store.hours
    assert store.published == {first}
    assert USAGE_STREAM not in stage.broker.vhosts["/"].queues
    client.publish("q", b"y")
    keeper = made_keeper()
    run(stage, keeper.keep())
    stage.now += HOUR_SECONDS * 1000
    run(stage, keeper.keep())
    (batch,) = stage.log(USAGE_STREAM).batches
    hours = {json.loads(record[6])["hour"] for record in batch.records()}
    assert hours == {first + HOUR_SECONDS}


def test_a_write_that_fails_is_made_up_for(stage, store, keeper):
    client = Client(stage).open()
    client.declare("q")
    client.publish("q", b"x")
    store.error = StorageError("no room")

    async def fail():
        with pytest.raises(StorageError):
            await keeper.keep()

    run(stage, fail())
    store.error = None
    run(stage, keeper.keep())
    ((_, used),) = store.hours.items()
    assert used[QUEUE].messages_in == 1


def restart(queue):
    """Let the queue have been opened just now, with all that its log has."""
    queue._opened_at = queue.log.end
    queue.log.appended_bytes = 0


def test_what_an_earlier_run_has_not_counted_is_counted_at_the_start(stage, store, made_keeper):
    client = Client(stage).open()
    client.declare("q", durable=True)
    client.declare("old", durable=True)
    client.publish("old", b"from before usage was noted")
    restart(stage.queue("old"))
    keeper = made_keeper()
    run(stage, keeper.catch_up())
    client.publish("q", b"counted")
    run(stage, keeper.keep())
    hour = stage.now // 1000 // HOUR_SECONDS * HOUR_SECONDS
    counted = store.hours[hour][QUEUE]
    stage.now += 1
    client.publish("q", b"not-yet", b"not-yet")
    client.declare("new", durable=True)
    client.publish("new", b"not yet")
    stage.now += HOUR_SECONDS * 1000
    for name in ("q", "new"):
        restart(stage.queue(name))
    for _ in range(2):  # twice: nothing counts again
        run(stage, made_keeper().catch_up())
        used = store.hours[hour]
        assert used[QUEUE] == Usage(3, 3 * counted.bytes_in)
        assert used[QUEUE._replace(name="new")].messages_in == 1
        assert QUEUE._replace(name="old") not in used
    assert list(store.hours) == [hour]


def test_what_was_noted_of_deleted_queues_is_forgotten(stage, store, made_keeper):
    keeper = made_keeper()
    run(stage, keeper.catch_up())
    client = Client(stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"x")
    run(stage, keeper.keep())
    assert [log.queue for log in store.ends] == ["q"]
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("q"))
    client.declare("q", durable=True)  # another one
    run(stage, made_keeper().catch_up())
    assert store.ends == {}
    assert sum(used[QUEUE].messages_in for used in store.hours.values()) == 1


def test_a_member_of_a_cluster_counts_only_what_is_stored_while_it_leads(stage, store, made_keeper):
    def others_lead():
        client.publish("q", *[b"while others led"] * 3)
        restart(queue)
        stage.broker.usage = UsageMeter()

    client = Client(stage).open()
    client.declare("q", durable=True)
    queue = stage.queue("q")
    run(stage, made_keeper().catch_up())
    client.publish("q", b"while it was alone")
    run(stage, made_keeper().keep())
    others_lead()
    fetch, queue.log.fetch = queue.log.fetch, None  # clients wait: nothing is read
    keeper = made_keeper(node_id=1)
    run(stage, keeper.catch_up())
    client.publish("q", b"while it led")
    run(stage, keeper.keep())
    queue.log.fetch = fetch
    others_lead()
    run(stage, made_keeper().catch_up())  # after it has left the cluster
    (used,) = store.hours.values()
    assert used[QUEUE].messages_in == 2


def test_old_hours_are_forgotten(stage, store, keeper):
    store.hours[0] = {QUEUE: Usage(1, 1, 1, 1)}
    run(stage, keeper.keep())
    assert store.hours == {}


def test_counts_that_went_back_are_no_usage():
    assert Usage(5, 5, 5, 5).since(Usage(6, 1, 5, 9)) == Usage(0, 4, 0, 0)
