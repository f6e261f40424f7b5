"""Changes of the partitions of a queue in use, as commands make them."""

import pytest
from pamqp import commands

from leveret.core.definitions.administration import AdministrationError
from leveret.errors import StorageError
from leveret.features.topics.commands import topic_describe, topic_list, topic_set_partitions
from leveret.features.topics.partition_changes import LOOK_MS
from leveret.ports.after_all import AfterAll
from leveret.ports.definitions import PartitionLayout
from tests.support.client import Client, message
from tests.support.gate import Gate
from tests.support.queue_bench import content_header
from tests.support.stage import Stage


class Node:
    """Parts of a node that the commands use."""

    def __init__(self, stage):
        self.broker, self.vhosts = stage.broker, stage.broker.vhosts
        self.groups, self.partitions = stage.broker.groups, stage.broker.partitions
        self.administration = self

    def vhost(self, name):
        """Return a virtual host."""
        return self.vhosts[name]


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open()


def perform(stage, handler, **parameters):
    """Carry out a command and return its result."""
    results = []

    async def work():
        results.append(await handler.handler(Node(stage), vhost="/", **parameters))

    stage.spawn(work())
    stage.run()
    return results[0]


def declare(client, count=2, **arguments):
    client.declare("q", durable=True, arguments={"x-partitions": count, **arguments})


def publish(client, *numbers):
    client.feed(
        b"".join(
            message("q", b"%d" % number, headers={"x-partition-key": str(number)})
            for number in numbers
        )
    )


def resize(stage, count, **options):
    return perform(stage, topic_set_partitions, name="q", count=count, **options)


def waited(stage):
    stage.advance(2 * LOOK_MS / 1000)


def test_new_partitions_are_published_to_and_read_by_those_who_are_there(stage, client):
    declare(client)
    client.consume("q", no_ack=True)
    assert resize(stage, 4) == {"active": [0, 1, 2, 3], "retired": []}
    publish(client, *range(40))
    assert sorted(int(each.body) for each in client.deliveries()) == list(range(40))
    counts = [part.log.end for part in stage.queue("q").partitions]
    assert all(counts)
    assert sum(counts) == 40


def test_a_dry_run_changes_nothing(stage, client):
    declare(client)
    assert resize(stage, 4, dry_run=True) == {"active": [0, 1, 2, 3], "retired": []}
    assert len(stage.queue("q").partitions) == 2


def test_retired_partitions_are_read_until_they_are_empty(stage, client):
    declare(client, 4)
    publish(client, *range(40))
    resize(stage, 1)
    publish(client, *range(40, 60))
    waited(stage)
    assert len(stage.queue("q").partitions) == 4
    client.prefetch(100)
    client.consume("q")
    found = client.deliveries()
    assert sorted(int(each.body) for each in found) == list(range(60))
    waited(stage)
    assert len(stage.queue("q").partitions) == 4  # unsettled messages may come back
    client.send(commands.Basic.Ack(found[-1].tag, multiple=True))
    waited(stage)
    queue = stage.queue("q")
    assert [part.number for part in queue.partitions] == [0]
    assert queue.definition.layout == PartitionLayout((0,), (), 4)
    assert stage.topics.logs["/", "q", 3].deleted
    assert client.names() == []  # nobody was cancelled


def test_partitions_that_are_empty_are_removed_soon(stage, client):
    declare(client, 3)
    resize(stage, 1)
    waited(stage)
    assert len(stage.queue("q").partitions) == 1


def test_a_retired_partition_may_come_back(stage, client):
    declare(client, 2)
    publish(client, *range(10))
    resize(stage, 1)
    assert resize(stage, 2) == {"active": [0, 1], "retired": []}
    waited(stage)
    assert client.count("q") == 10


def test_retired_partitions_wait_for_retries(stage, client):
    declare(client, 2, **{"x-retry-delays": [60_000], "x-retry-max-attempts": 3})
    publish(client, *range(10))
    for _ in range(10):
        client.send(commands.Basic.Get(queue="q"))
        (got,) = client.deliveries()
        client.send(commands.Basic.Nack(got.tag, requeue=False))
    resize(stage, 1)
    waited(stage)
    assert len(stage.queue("q").partitions) == 2
    stage.advance(70)
    assert client.count("q") == 10


def test_groups_share_new_partitions_and_lose_removed_ones(stage, client):
    declare(client, 2, **{"x-retention": "1d"})
    members = [Client(stage).open() for _ in range(2)]
    for member in members:
        member.prefetch(100)
        member.consume("q", "c", arguments={"x-consumer-group": "g"})
    (group,) = stage.broker.groups.of_queue(stage.queue("q")).values()
    resize(stage, 4)
    shares = [group.coordinator.partitions_of(each) for each in group.coordinator.members]
    assert sorted(map(len, shares)) == [2, 2]
    publish(client, *range(20))
    assert sorted(int(d.body) for member in members for d in member.deliveries()) == list(range(20))
    resize(stage, 1)
    waited(stage)
    # What a retention keeps can be read again; the empty ones go.
    kept = {part.number for part in stage.queue("q").partitions}
    assert kept == {0} | {part.number for part in stage.queue("q").partitions if part.log.end}
    assert set(group.subscriptions) == kept


def test_a_change_is_stored_before_it_is_used(stage, client):
    declare(client, 1)
    resize(stage, 3)
    key = next(key for key in stage.metadata.kept if "q" in key[1])
    assert stage.metadata.kept[key].layout == PartitionLayout((0, 1, 2), (), 3)


def test_what_is_written_for_a_partition_that_is_removed_meanwhile_is_refused(stage, client):
    declare(client, 4)
    write = stage.broker.atomic.begin()  # as that of a staged batch, over many passes
    _, header = content_header(1)
    for number in range(40):
        write.publish(stage.queue("q"), 0, b"", b"%d" % number, header, b"x")
    resize(stage, 1)
    waited(stage)
    outcome = []
    write.commit(AfterAll(1, lambda *, failed: outcome.append(failed)))
    stage.run()
    assert outcome == [True]
    assert client.count("q") == 0
    assert "was removed with a partition" in str(stage.reported.pop()[1])


def test_a_partition_stays_while_it_is_published_to(stage, client):
    declare(client, 4)
    publish(client, *range(40))
    client.prefetch(100)
    client.consume("q")
    held = client.deliveries()
    resize(stage, 3)  # the last one goes when all of it is read

    async def refuse():
        raise StorageError("no space")

    flush, stage.metadata.flush = stage.metadata.flush, refuse
    refused = []

    async def shrink():
        try:
            await topic_set_partitions.handler(Node(stage), vhost="/", name="q", count=1)
        except StorageError as error:
            refused.append(error)

    stage.spawn(shrink())
    stage.run()
    assert refused
    gate = Gate(is_open=False)

    async def wait():
        await gate
        await flush()

    stage.metadata.flush = wait
    for each in held:
        client.send(commands.Basic.Ack(each.tag))
    waited(stage)
    client.transport.lose()
    other = Client(stage).open()
    publish(other, *range(40))
    gate.open()
    stage.run()
    waited(stage)
    assert other.count("q") == 40


@pytest.mark.parametrize("refuses", [False, True])
def test_what_is_written_for_a_partition_while_its_removal_is_stored_is_refused(
    stage, client, refuses
):
    declare(client, 4)
    write = stage.broker.atomic.begin()
    _, header = content_header(1)
    for number in range(40):
        write.publish(stage.queue("q"), 0, b"", b"%d" % number, header, b"x")
    resize(stage, 1)
    gate, flush = Gate(is_open=False), stage.metadata.flush

    async def wait():
        await gate
        if refuses:
            stage.metadata.flush = flush
            raise StorageError("no space")
        await flush()

    stage.metadata.flush = wait
    waited(stage)
    outcome = []
    write.commit(AfterAll(1, lambda *, failed: outcome.append(failed)))
    stage.run()
    assert outcome == [True]
    assert "was removed with a partition" in str(stage.reported.pop()[1])
    logs = [stage.topics.logs["/", "q", number] for number in (1, 2, 3)]
    assert not any(log.deleted for log in logs)  # what is stored still names them
    gate.open()
    stage.run()
    if refuses:
        assert str(stage.reported.pop()[1]) == "no space"
        waited(stage)  # it is tried again
    assert all(log.deleted for log in logs)
    key = next(key for key in stage.metadata.kept if "q" in key[1])
    assert stage.metadata.kept[key].layout == PartitionLayout((0,), (), 4)


def test_a_queue_that_is_deleted_takes_partitions_along_whose_removal_was_not_stored(stage, client):
    declare(client, 2)
    resize(stage, 1)

    async def refuse():
        raise StorageError("no space")

    flush, stage.metadata.flush = stage.metadata.flush, refuse
    waited(stage)
    stage.metadata.flush = flush
    client.call(commands.Queue.Delete(queue="q"))
    waited(stage)
    assert all(log.deleted for place, log in stage.topics.logs.items() if place[1] == "q")
    assert {str(error) for _, error in stage.reported} == {"no space"}
    stage.reported.clear()


def test_a_partition_stays_while_it_is_opened_for_what_was_published(stage, client):
    declare(client, 4)
    definition, topics = stage.queue("q").definition, stage.topics
    topics.unrecovered.update(place for place in topics.logs if "q" in place[1])
    topics.leave_unopened = lambda *_: True
    topics.recovering = Gate(is_open=False)
    again = Stage(topics=topics, state=stage.state)
    found = again.definitions()
    found.queues.append(definition)
    again.restore(found)
    client = Client(again).open()
    client.call(commands.Confirm.Select())
    publish(client, *range(40))
    resize(again, 1)
    waited(again)
    assert client.names() == []
    topics.recovering.open()
    waited(again)
    assert client.names() == ["Basic.Ack"]
    assert client.count("q") == 40


def test_what_cannot_be_is_refused_with_the_reason(stage, client):
    declare(client, 2)
    client.declare("plain")
    partitions = stage.broker.partitions
    with pytest.raises(AdministrationError, match="1 to 256"):
        partitions.planned(stage.queue("q"), 0)
    with pytest.raises(AdministrationError, match="1 to 256"):
        partitions.planned(stage.queue("q"), 257)
    with pytest.raises(AdministrationError, match="declared with 'x-partitions'"):
        partitions.planned(stage.queue("plain"), 2)


def test_topics_are_listed_and_described(stage, client):
    declare(client, 2)
    client.declare("plain")
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    publish(client, *range(10))
    rows = perform(stage, topic_list)
    assert [(row["name"], row["type"], row["partitions"]) for row in rows] == [
        ("q", "classic", 2),
        ("s", "stream", 1),
    ]
    found = perform(stage, topic_describe, name="q")
    assert found["messages"] == 10
    assert [row["state"] for row in found["partition_details"]] == ["active", "active"]
    assert sum(row["messages"] for row in found["partition_details"]) == 10


def test_a_deleted_queue_takes_its_retired_partitions_along(stage, client):
    declare(client, 3)
    publish(client, *range(10))
    resize(stage, 1)
    client.call(commands.Queue.Delete(queue="q"))
    waited(stage)
    assert all(log.deleted for place, log in stage.topics.logs.items() if place[1] == "q")


def test_a_queue_of_a_virtual_host_that_goes_is_not_stored_again(stage, client):
    declare(client, 3)
    resize(stage, 1)
    queue = stage.queue("q")
    del stage.broker.vhosts["/"]  # it has many queues, and this one is still to be deleted
    waited(stage)
    assert len(queue.partitions) == 3


def test_a_disk_that_refuses_a_new_partition_leaves_the_others_in_use(stage, client, monkeypatch):
    declare(client, 1)
    queue = stage.queue("q")
    opened = stage.topics.open

    def refuses(vhost, topic, incarnation, partition, *rest, **options):
        if partition == 2:
            raise StorageError("no space left")
        return opened(vhost, topic, incarnation, partition, *rest, **options)

    monkeypatch.setattr(stage.topics, "open", refuses)
    monkeypatch.setattr(stage.topics, "leave_unopened", lambda *_: False)
    layout = stage.broker.partitions.planned(queue, 4)
    failed = []

    async def work():
        try:
            await stage.broker.partitions.apply(queue, layout)
        except StorageError as error:
            failed.append(str(error))

    stage.spawn(work())
    stage.run()
    assert failed == ["no space left"]
    publish(client, *range(10))
    assert client.count("q") == 10
    monkeypatch.setattr(stage.topics, "open", opened)
    assert resize(stage, 4)["active"] == [0, 1, 2, 3]
    publish(client, *range(10, 50))
    client.consume("q", no_ack=True)
    assert sorted(int(each.body) for each in client.deliveries()) == list(range(50))
