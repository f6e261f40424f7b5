"""Consumer groups over the wire: what members get, commit, and hand over to each other."""

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.core.definitions.administration import AdministrationError
from leveret.core.settings.stream_offsets import FromAge, FromOffset, FromTime, Place
from leveret.errors import StorageError
from leveret.features.groups.commands import (
    group_delete,
    group_describe,
    group_reset_offsets,
)
from leveret.features.groups.places import FromTags, Shift, parse_reset
from leveret.ports.definitions import GroupDefinition
from leveret.ports.records import RecordFlag
from tests.features.groups.context import GroupContext
from tests.support.client import Client
from tests.support.gate import Gate

STREAM = {"x-queue-type": "stream"}
KEEPING = {"x-retention": "1d"}
KINDS = {"stream": STREAM, "classic": KEEPING, "quorum": {"x-queue-type": "quorum"} | KEEPING}


@pytest.fixture
def clients(stage):
    """Three connections: of two members, and of a publisher."""
    return [Client(stage).open() for _ in range(3)]


@pytest.fixture
def one(clients):
    return clients[0]


@pytest.fixture
def two(clients):
    return clients[1]


@pytest.fixture
def publisher(clients):
    return clients[2]


@pytest.fixture(params=KINDS)
def queue(publisher, request):
    publisher.declare("q", durable=True, arguments=KINDS[request.param])
    return "q"


def join(client, group="g", prefetch=10, **arguments):
    client.prefetch(prefetch)
    arguments = {"x-consumer-group": group} | arguments
    client.consume("q", "c", arguments=arguments)


def bodies(client):
    return [delivery.body for delivery in client.deliveries()]


def ack(client, tag, **options):
    client.send(commands.Basic.Ack(tag, **options))


def numbered(first, stop):
    return [b"%d" % number for number in range(first, stop)]


@pytest.mark.covers("C-212")
def test_each_group_gets_every_message_and_so_does_the_queue(one, two, publisher, queue):
    join(one, "one", **{"x-stream-offset": "first"})
    join(two, "two", **{"x-stream-offset": "first"})
    publisher.publish("q", *numbered(0, 5))
    assert bodies(one) == bodies(two) == numbered(0, 5)


def test_deliveries_say_which_partition_and_offset(one, two, publisher, queue):
    join(one)
    publisher.publish("q", *numbered(0, 3))
    received = [value for _, value in one.received() if isinstance(value, ContentHeader)]
    headers = [value.properties.headers for value in received]
    assert [(h["x-partition"], h["x-offset"]) for h in headers] == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", 0),
        ("earliest", 0),
        ("last", 4),
        ("next", 5),
        ("latest", 5),
        (2, 2),
        (99, 5),
        (None, 5),
    ],
)
def test_a_new_group_begins_where_its_first_member_says(
    one, two, publisher, queue, offset, expected
):
    publisher.publish("q", *numbered(0, 5))
    join(one, **({} if offset is None else {"x-stream-offset": offset}))
    publisher.publish("q", b"5")
    assert bodies(one) == numbered(expected, 6)


def test_a_member_that_comes_later_goes_on_where_the_group_was(one, two, publisher, queue):
    join(one)
    publisher.publish("q", *numbered(0, 6))
    assert len(bodies(one)) == 6
    ack(one, 3, multiple=True)
    ack(one, 5)
    one.send(commands.Channel.Close(200, "", 0, 0))
    join(two, **{"x-stream-offset": "first"})
    again = two.deliveries()
    assert [delivery.body for delivery in again] == [b"3", b"5"]  # an island above is remembered
    assert all(delivery.redelivered for delivery in again)


def test_a_partition_has_one_member_at_a_time(one, two, publisher, queue):
    join(one)
    join(two)
    publisher.publish("q", *numbered(0, 4))
    assert (bodies(one), bodies(two)) == (numbered(0, 4), [])


def test_another_member_takes_over_once_nothing_is_unsettled(one, two, publisher, queue):
    join(one, prefetch=2)
    join(two)
    publisher.publish("q", *numbered(0, 4))
    assert bodies(one) == numbered(0, 2)
    one.call(commands.Basic.Cancel("c"))
    assert bodies(two) == []
    ack(one, 1)
    assert bodies(two) == []
    ack(one, 2)
    assert bodies(two) == numbered(2, 4)


def test_what_a_member_held_is_delivered_again_in_order_when_it_dies(one, two, publisher, queue):
    join(one, prefetch=3)
    join(two)
    publisher.publish("q", *numbered(0, 5))
    ack(one, 2)
    one.send(commands.Channel.Close(200, "", 0, 0))
    assert sorted(bodies(two)) == [b"0", b"2", b"3", b"4"]


def test_a_rejected_message_comes_again_in_its_place(one, two, publisher, queue):
    join(one, prefetch=2)
    publisher.publish("q", *numbered(0, 3))
    assert bodies(one) == numbered(0, 2)
    one.send(commands.Basic.Nack(1, requeue=True))
    assert bodies(one) == [b"0"]


def test_a_member_that_does_not_settle_in_time_loses_its_partitions(
    stage, one, two, publisher, queue
):
    join(one, prefetch=2, **{"x-group-session": 5000})
    join(two, prefetch=1)
    publisher.publish("q", *numbered(0, 3))
    assert bodies(one) == numbered(0, 2)
    stage.advance(6)
    assert bodies(two) == [b"0"]
    ack(one, 1)  # too late, but a sign of life
    ack(two, 1)
    assert bodies(two) == [b"1"]


def test_a_lone_member_that_was_too_slow_gets_its_messages_when_it_settles(
    stage, one, two, publisher, queue
):
    join(one, **{"x-group-session": 5000})
    publisher.publish("q", b"0")
    assert bodies(one) == [b"0"]
    stage.advance(6)
    assert bodies(one) == []
    ack(one, 1)
    assert bodies(one) == [b"0"]


@pytest.mark.parametrize("kind", KINDS)
def test_members_ask_for_partitions(one, two, publisher, kind):
    arguments = KINDS[kind] | {"x-partitions": 2, "x-partition-by": "round-robin"}
    publisher.declare("q", durable=True, arguments=arguments)
    join(one, **{"x-group-assign": [1]})
    join(two, **{"x-group-assign": [0]})
    publisher.publish("q", b"0", b"1")
    assert (bodies(one), bodies(two)) == ([b"1"], [b"0"])


def test_acks_of_a_transaction_commit_with_it(one, two, publisher, queue):
    one.call(commands.Tx.Select())
    join(one, prefetch=5)
    publisher.publish("q", *numbered(0, 2))
    assert bodies(one) == numbered(0, 2)
    ack(one, 1)
    one.call(commands.Tx.Rollback())
    ack(one, 2)
    one.call(commands.Tx.Commit())
    one.send(commands.Channel.Close(200, "", 0, 0))
    join(two)
    assert bodies(two) == [b"0"]


def test_a_partition_that_was_acknowledged_goes_over_when_that_is_committed(
    one, two, publisher, queue
):
    one.call(commands.Tx.Select())
    join(one)
    publisher.publish("q", *numbered(0, 2))
    assert bodies(one) == numbered(0, 2)
    ack(one, 2, multiple=True)
    one.call(commands.Basic.Cancel("c"))
    join(two)
    publisher.publish("q", b"2")
    assert bodies(two) == []
    one.call(commands.Tx.Commit())
    assert bodies(two) == [b"2"]


def test_a_slow_member_is_delivered_to_again_when_it_commits(stage, one, publisher, queue):
    one.call(commands.Tx.Select())
    join(one, prefetch=2, **{"x-group-session": 5000})
    publisher.publish("q", *numbered(0, 2))
    assert bodies(one) == numbered(0, 2)
    ack(one, 1)
    stage.advance(6)
    assert bodies(one) == []
    one.send(commands.Tx.Commit())
    assert "Basic.Deliver" in one.names()


def test_who_consumes_the_queue_is_not_affected(one, two, publisher):
    publisher.declare("q", durable=True, arguments=KEEPING)
    publisher.publish("q", *numbered(0, 2))
    two.consume("q", "plain", no_ack=True)
    assert bodies(two) == numbered(0, 2)
    join(one, **{"x-stream-offset": "first"})
    assert bodies(one) == numbered(0, 2)  # settled, and read again
    assert publisher.count("q") == 0


def test_a_rejected_message_is_dead_lettered_though_the_queue_was_renamed(
    stage, one, two, publisher
):
    arguments = KEEPING | {"x-dead-letter-exchange": "amq.fanout"}
    publisher.declare("old", durable=True, arguments=arguments)
    publisher.declare("dead")
    publisher.call(commands.Queue.Bind(queue="dead", exchange="amq.fanout"))
    one.prefetch(5)
    one.consume("old", "c", arguments={"x-consumer-group": "g"})
    stage.broker.vhosts["/"].rename_queue(stage.queue("old"), "new")
    publisher.publish("new", b"poison")
    assert bodies(one) == [b"poison"]
    one.send(commands.Basic.Reject(1, requeue=False))
    assert publisher.count("dead") == 1
    [group] = stage.broker.groups.of_queue(stage.queue("new")).values()
    assert group.subscriptions[0].lag == 0


def test_members_are_delivered_to_within_the_rate_of_their_queue(stage, one, publisher):
    arguments = KEEPING | {"x-consume-rate": 10, "x-consume-burst": 10}
    publisher.declare("q", durable=True, arguments=arguments)
    join(one, prefetch=100)
    publisher.publish("q", *numbered(0, 30))
    assert len(bodies(one)) <= 11
    stage.advance(5)
    assert 5 <= len(bodies(one)) <= 30


def test_a_queue_that_keeps_nothing_has_no_groups(one, two, publisher):
    publisher.declare("q", durable=True)
    one.send(commands.Basic.Consume(queue="q", arguments={"x-consumer-group": "g"}))
    [(_, closed)] = one.received()
    assert closed.reply_code == 406
    assert "keeps no messages for consumer groups" in closed.reply_text


def test_an_exclusive_consumer_cannot_be_a_member(one, two, publisher, queue):
    arguments = {"x-consumer-group": "g"}
    one.prefetch(1)
    one.send(commands.Basic.Consume(queue="q", exclusive=True, arguments=arguments))
    [(_, closed)] = one.received()
    assert (closed.reply_code, "cannot be exclusive" in closed.reply_text) == (406, True)


# At most once: members without acknowledgements


def join_once(client, prefetch=0, **arguments):
    client.prefetch(prefetch)
    client.consume("q", "c", no_ack=True, arguments={"x-consumer-group": "g"} | arguments)


def test_a_member_without_acknowledgements_gets_everything_once(one, two, publisher, queue):
    join_once(one)
    publisher.publish("q", *numbered(0, 2500))
    assert bodies(one) == numbered(0, 2500)
    one.call(commands.Basic.Cancel("c"))
    join(two)
    assert bodies(two) == []


def test_what_is_sent_at_most_once_was_committed_before(stage, one, publisher, queue, monkeypatch):
    join_once(one)
    (group,) = stage.broker.groups.of_queue(stage.queue("q")).values()
    log, gate = group.subscriptions[0].log, Gate()

    async def safe():
        await gate

    monkeypatch.setattr(type(log), "settlements_safe", lambda _: safe())
    publisher.publish("q", *numbered(0, 3))
    assert bodies(one) == []
    assert list(log.settled) == [(0, 3)]
    gate.open()
    assert bodies(one) == numbered(0, 3)


def test_a_disk_that_refuses_holds_back_what_is_sent_at_most_once(
    stage, one, publisher, queue, monkeypatch
):
    join_once(one)
    (group,) = stage.broker.groups.of_queue(stage.queue("q")).values()
    errors = [StorageError("no space left"), None]

    async def safe(_log):
        if errors and (error := errors.pop(0)) is not None:
            raise error

    monkeypatch.setattr(type(group.subscriptions[0].log), "settlements_safe", safe)
    publisher.publish("q", b"0")
    assert bodies(one) == []
    stage.advance(2)
    assert bodies(one) == [b"0"]
    assert [str(error) for _, error in stage.reported] == ["no space left"]
    stage.reported.clear()


def test_a_slow_member_without_acknowledgements_gets_the_rest_later(stage, one, publisher, queue):
    join_once(one)
    publisher.publish("q", *(b"x" * 100_000 for _ in range(200)))
    received = bodies(one)
    assert 0 < len(received) < 200
    while len(received) < 200:
        one.connection.channels.wake_consumers()  # as a link does when its peer has read
        more = bodies(one)
        assert more
        received += more
    assert [len(body) for body in received] == [100_000] * 200


def test_a_partition_changes_hands_once_what_was_committed_is_sent(one, two, publisher, queue):
    join_once(one, prefetch=2)
    join(two)
    publisher.publish("q", *numbered(0, 5))
    assert bodies(one) == numbered(0, 5)
    one.call(commands.Basic.Cancel("c"))
    publisher.publish("q", b"5")
    assert bodies(two) == [b"5"]


def test_the_end_of_a_connection_drops_what_was_under_way(
    stage, one, two, publisher, queue, monkeypatch
):
    join_once(one)
    (group,) = stage.broker.groups.of_queue(stage.queue("q")).values()
    gate = Gate()

    async def safe():
        await gate

    monkeypatch.setattr(type(group.subscriptions[0].log), "settlements_safe", lambda _: safe())
    publisher.publish("q", b"0")
    one.transport.lose()
    join(two)
    publisher.publish("q", b"1")
    assert bodies(two) == []  # the partition is still the other's
    gate.open()
    assert bodies(two) == [b"1"]


def test_members_are_cancelled_when_the_queue_is_deleted(stage, one, two, publisher, queue):
    join(one)
    join(two)
    publisher.call(commands.Queue.Delete(queue="q"))
    assert stage.broker.groups._groups == {}
    assert not any(isinstance(kept, GroupDefinition) for kept in stage.metadata.kept.values())
    for client in (one, two):
        assert client.send(commands.Basic.Cancel("c")) is None
        assert client.names() == ["Basic.CancelOk"]


def test_members_count_as_consumers(one, two, publisher, queue):
    join(one)
    declared = publisher.call(commands.Queue.Declare(queue="q", passive=True))
    assert declared.consumer_count == 1


# Commands


async def perform(stage, command, **parameters):
    return await command(GroupContext(stage), vhost="/", queue="q", name="g", **parameters)


@pytest.mark.parametrize(
    ("to", "place"),
    [
        ("earliest", Place.FIRST),
        ("first", Place.FIRST),
        ("latest", Place.NEXT),
        ("next", Place.NEXT),
        ("last", Place.LAST),
        ("shift:-100", Shift(-100)),
        ("shift:7", Shift(7)),
        ("17", FromOffset(17)),
        ("2h", FromAge(7_200_000)),
        ("1970-01-01T00:00:01", FromTime(1000)),
        ("1970-01-01T01:00:01+01:00", FromTime(1000)),
        ("tag:red && !sale", FromTags("red && !sale")),
    ],
)
def test_a_place_to_reset_to_is_a_word_an_offset_an_age_or_a_time(to, place):
    assert parse_reset(to) == place


@pytest.mark.parametrize(
    "to",
    ["", "soon", "-1", "9" * 30, "2026-13-01", "²", "tag:", "tag:a &&", "shift:", "shift:1.5"],
)
def test_no_other_place_is_understood(to):
    with pytest.raises(AdministrationError, match="is no place in a queue"):
        parse_reset(to)


@pytest.mark.covers("C-212")
async def test_a_group_is_reset_and_reads_again(stage, one, two, publisher, queue):
    join(one)
    publisher.publish("q", *numbered(0, 4))
    ack(one, 3, multiple=True)
    with pytest.raises(AdministrationError, match="is in use"):
        await perform(stage, group_reset_offsets, to="earliest")
    one.send(commands.Channel.Close(200, "", 0, 0))
    told = [{"partition": 0, "before": 3, "after": 1}]
    assert await perform(stage, group_reset_offsets, to="1", dry_run=True) == told
    [row] = (await perform(stage, group_describe))["partition_details"]
    assert (row["committed"], row["end"], row["lag"]) == (3, 4, 1)
    assert await perform(stage, group_reset_offsets, to="1") == told
    join(two)
    assert bodies(two) == numbered(1, 4)


@pytest.mark.covers("C-212")
async def test_a_group_is_moved_to_the_first_message_with_tags(stage, one, two, publisher, queue):
    join(one)
    for tags in ("blue", "red", "blue", "red"):
        publisher.publish("q", tags.encode(), headers={"x-tags": tags})
    assert len(bodies(one)) == 4
    ack(one, 4, multiple=True)
    one.send(commands.Channel.Close(200, "", 0, 0))
    with pytest.raises(AdministrationError, match="no message has the tags 'green'"):
        await perform(stage, group_reset_offsets, to="tag:green", dry_run=True)
    for to, after in (("tag:red", 1), ("tag:blue", 0)):
        [row] = await perform(stage, group_reset_offsets, to=to, dry_run=True)
        assert (row["before"], row["after"]) == (4, after)
    await perform(stage, group_reset_offsets, to="tag:red")
    join(two)
    assert bodies(two) == [b"red", b"blue", b"red"]


@pytest.mark.parametrize("dry_run", [True, False])
async def test_an_offset_behind_the_end_is_refused_with_the_bounds(
    stage, one, publisher, queue, dry_run
):
    publisher.publish("q", *numbered(0, 4))
    stage.broker.groups.create(stage.queue("q"), "g", {})
    for to in ("5", "1795884267383"):
        bounds = f"partition 0 has the offsets 0 to 4, its end, and not {to}; a time is written as"
        with pytest.raises(AdministrationError, match=bounds) as refused:
            await perform(stage, group_reset_offsets, to=to, dry_run=dry_run)
        assert refused.value.code == "invalid"
    assert (await perform(stage, group_reset_offsets, to="4"))[0]["after"] == 4


async def test_a_group_is_moved_by_a_number_of_messages(stage, publisher, queue):
    publisher.publish("q", *numbered(0, 6))
    stage.broker.groups.create(stage.queue("q"), "g", {0: 3})
    for to, after in (("shift:-2", 1), ("shift:+2", 5), ("shift:-9", 0), ("shift:9", 6)):
        [row] = await perform(stage, group_reset_offsets, to=to, dry_run=True)
        assert (row["before"], row["after"]) == (3, after)


@pytest.fixture
def parted(stage, publisher):
    """Three partitions, of which 0 and 2 have two messages each, and a group that has read one."""
    publisher.declare("q", durable=True, arguments=STREAM | {"x-partitions": 3})
    for number in (0, 2):
        tags = {"x-tags": f"in{number}"}
        header = ContentHeader(0, 1, commands.Basic.Properties(headers=tags)).marshal()
        part = stage.queue("q").partitions[number]
        for body in (b"0", b"1"):
            part.builder.add(
                RecordFlag.HAS_HEADERS | RecordFlag.HAS_TAGS, 0, b"", b"", header, body
            )
        stage.turn.touch(part)
    stage.run()
    stage.broker.groups.create(stage.queue("q"), "g", {0: 1, 1: 0, 2: 1})


async def moves(stage, **parameters):
    rows = await perform(stage, group_reset_offsets, **parameters)
    return {row["partition"]: (row["before"], row["after"]) for row in rows}


async def test_some_partitions_are_reset(stage, parted):
    assert await moves(stage, to="first", partitions=[2, 2], dry_run=True) == {2: (1, 0)}
    assert await moves(stage, to="first", partitions=[2]) == {2: (1, 0)}
    assert await moves(stage, to="2", partitions=[0]) == {0: (1, 2)}
    with pytest.raises(AdministrationError, match="partition 1 has the offsets 0 to 0"):
        await moves(stage, to="2")
    with pytest.raises(AdministrationError, match="there is no partition '3'; there are 0, 1, 2"):
        await moves(stage, to="first", partitions=[0, 3])
    places = (await perform(stage, group_describe))["partition_details"]
    assert [row["committed"] for row in places] == [2, 0, 0]


async def test_tags_move_a_group_only_where_a_message_has_them(stage, parted):
    assert await moves(stage, to="tag:in0", dry_run=True) == {0: (1, 0), 1: (0, 0), 2: (1, 1)}
    assert await moves(stage, to="tag:in0") == {0: (1, 0), 1: (0, 0), 2: (1, 1)}
    with pytest.raises(AdministrationError, match="no message has the tags 'typo'"):
        await moves(stage, to="tag:typo")
    with pytest.raises(AdministrationError, match="no message has the tags 'in0'"):
        await moves(stage, to="tag:in0", partitions=[1, 2])


def test_consumers_of_a_stream_have_the_words_of_rabbitmq_only(one, publisher):
    publisher.declare("q", durable=True, arguments=STREAM)
    one.prefetch(1)
    one.send(commands.Basic.Consume(queue="q", arguments={"x-stream-offset": "earliest"}))
    [(_, closed)] = one.received()
    assert (closed.reply_code, "invalid_stream_offset_arg" in closed.reply_text) == (406, True)


async def test_a_deleted_group_begins_afresh(stage, one, two, publisher, queue):
    join(one)
    publisher.publish("q", *numbered(0, 2))
    ack(one, 2, multiple=True)
    one.send(commands.Channel.Close(200, "", 0, 0))
    await perform(stage, group_delete)
    with pytest.raises(AdministrationError, match="no consumer group 'g'"):
        await perform(stage, group_delete)
    join(two, **{"x-stream-offset": "first"})
    assert bodies(two) == numbered(0, 2)
