"""Partitioned queues over the wire: placement, deliveries, and what holds for the whole."""

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.core.admin.node import partition_of
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.partitioner import hash_key
from tests.support.client import Client, message
from tests.support.stage import Stage

KINDS = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
}
COUNT = 4


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open()


@pytest.fixture
def other(stage):
    return Client(stage).open()


def declare(client, kind="classic", **arguments):
    client.declare("q", durable=True, arguments={"x-partitions": COUNT, **KINDS[kind], **arguments})


def publish(client, *numbers, key=None):
    """Publish numbers, each with itself as its key, or all with one."""
    texts = [(str(number) if key is None else key, b"%d" % number) for number in numbers]
    client.feed(
        b"".join(message("q", body, headers={"x-partition-key": key}) for key, body in texts)
    )


def bodies(client):
    return [delivery.body for delivery in client.deliveries()]


def numbers(client):
    return sorted(int(body) for body in bodies(client))


def lengths(stage):
    return [part.message_count for part in stage.queue("q").partitions]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_lie_in_the_partition_of_their_key(stage, client, kind):
    declare(client, kind)
    publish(client, *range(40))
    expected = [0] * COUNT
    for number in range(40):
        expected[hash_key(b"%d" % number) % COUNT] += 1
    assert lengths(stage) == expected
    assert client.count("q") == 40


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_consumer_gets_everything_and_each_key_in_order(client, other, kind):
    declare(client, kind)
    for at in range(30):
        publish(client, at, key=f"key-{at % 5}")
    other.consume("q", no_ack=True)
    found = [int(body) for body in bodies(other)]
    assert sorted(found) == list(range(30))
    for key in range(5):
        of_key = [number for number in found if number % 5 == key]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_consumers_compete_over_all_partitions(client, other, kind):
    declare(client, kind)
    publish(client, *range(40))
    for each in (client, other):
        each.prefetch(10)
        each.consume("q", "c")
    held = numbers(client), numbers(other)
    assert [len(one) for one in held] == [10, 10]
    assert not set(held[0]) & set(held[1])
    client.send(commands.Basic.Ack(0, multiple=True))
    assert len(numbers(client)) == 10
    assert client.count("q") == 10


def test_a_consumer_never_holds_more_than_its_prefetch(stage, client, other):
    declare(client)
    other.prefetch(3)
    other.consume("q")
    publish(client, *range(20))
    first = other.deliveries()
    assert len(first) == 3
    seen = {delivery.body for delivery in first}
    while first:
        other.send(commands.Basic.Ack(first[0].tag))
        more = other.deliveries()
        assert len(more) <= 1
        first = first[1:] + more
        seen |= {delivery.body for delivery in more}
    assert len(seen) == 20
    assert lengths(stage) == [0] * COUNT


def test_a_channel_prefetch_holds_for_all_partitions(client, other):
    declare(client)
    publish(client, *range(20))
    other.prefetch(4, global_=True)
    other.consume("q")
    assert len(other.deliveries()) == 4


def test_a_consumer_without_room_starves_no_partition(stage, client, other):
    declare(client)
    publish(client, *range(200))
    other.prefetch(1)
    other.consume("q")
    for _ in range(60):
        (delivery,) = other.deliveries()
        other.send(commands.Basic.Ack(delivery.tag))
    assert max(lengths(stage)) - min(lengths(stage)) < 40


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_get_takes_from_the_partitions_in_turn(stage, client, kind):
    declare(client, kind)
    publish(client, *range(40))
    seen = []
    for _ in range(8):
        client.send(commands.Basic.Get(queue="q", no_ack=True))
        seen += bodies(client)
    places = [hash_key(body) % COUNT for body in seen]
    assert sorted(places) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_get_says_how_many_are_left_and_ends_with_empty(client):
    declare(client)
    publish(client, *range(3))
    counts = []
    for _ in range(3):
        client.send(commands.Basic.Get(queue="q", no_ack=True))
        found = [value for _, value in client.received()]
        counts += [value.message_count for value in found if hasattr(value, "message_count")]
    assert counts == [2, 1, 0]
    assert client.call(commands.Basic.Get(queue="q")).name == "Basic.GetEmpty"


def test_what_was_got_is_returned_to_its_partition(stage, client):
    declare(client)
    publish(client, 7)
    before = lengths(stage)
    client.send(commands.Basic.Get(queue="q"))
    (got,) = client.deliveries()
    assert sum(lengths(stage)) == 0
    client.send(commands.Basic.Nack(got.tag, requeue=True))
    assert lengths(stage) == before


def test_every_reader_of_a_stream_gets_all_partitions(client, other):
    declare(client, "stream")
    publish(client, *range(10))
    other.prefetch(100)
    other.consume("q", arguments={"x-stream-offset": "first"})
    received = other.received()
    headers = [
        value.properties.headers for _, value in received if isinstance(value, ContentHeader)
    ]
    places = [(found["x-partition"], found["x-stream-offset"]) for found in headers]
    assert len(set(places)) == 10
    assert {place for place, _ in places} == {hash_key(b"%d" % n) % COUNT for n in range(10)}


def test_a_group_shares_the_partitions_among_its_members(client, other):
    declare(client, "stream")
    for each in (client, other):
        each.prefetch(100)
        each.consume("q", "c", arguments={"x-consumer-group": "g", "x-stream-offset": "first"})
    publisher = Client(client.stage).open()
    publish(publisher, *range(40))
    one, two = numbers(client), numbers(other)
    assert sorted(one + two) == list(range(40))
    places = [{hash_key(b"%d" % n) % COUNT for n in of} for of in (one, two)]
    assert [len(found) for found in places] == [2, 2]
    assert not places[0] & places[1]


def test_publishes_are_confirmed(client):
    declare(client)
    client.call(commands.Confirm.Select())
    publish(client, *range(20))
    acks = [value for _, value in client.received() if value.name == "Basic.Ack"]
    assert max(ack.delivery_tag for ack in acks) == 20


@pytest.mark.parametrize("by", ["round-robin", "random"])
def test_messages_can_be_spread_without_a_key(stage, client, by):
    declare(client, **{"x-partition-by": by})
    publish(client, *range(40), key="same")
    assert sum(lengths(stage)) == 40
    assert min(lengths(stage)) > 2


def test_a_queue_may_name_the_header_with_the_key(stage, client):
    declare(client, **{"x-partition-by": "customer"})
    client.feed(b"".join(message("q", b"x", headers={"customer": "c-1"}) for _ in range(5)))
    expected = [0] * COUNT
    expected[hash_key(b"c-1") % COUNT] = 5
    assert lengths(stage) == expected


def test_purge_and_delete_count_all_partitions(stage, client):
    declare(client)
    publish(client, *range(20))
    assert client.call(commands.Queue.Purge(queue="q")).message_count == 20
    publish(client, *range(5))
    assert client.call(commands.Queue.Delete(queue="q")).message_count == 5
    assert "q" not in stage.broker.vhosts["/"].queues
    assert all(log.deleted for place, log in stage.topics.logs.items() if place[1] == "q")


def test_a_deleted_queue_cancels_each_consumer_once(client, other):
    declare(client)
    capable = Client(client.stage).open(capabilities={"consumer_cancel_notify": True})
    capable.consume("q", "c")
    client.call(commands.Queue.Delete(queue="q"))
    assert capable.names() == ["Basic.Cancel"]


def test_an_unequal_redeclaration_is_refused(client):
    declare(client)
    answer = client.call(
        commands.Queue.Declare(queue="q", durable=True, arguments={"x-partitions": COUNT + 1})
    )
    assert answer.reply_code == 406
    assert "x-partitions" in answer.reply_text


def test_a_length_limit_holds_for_all_partitions_together(stage, client):
    declare(client, **{"x-max-length": 10})
    publish(client, *range(100))
    assert client.count("q") == 10
    assert max(lengths(stage)) <= 4  # the fullest lose their heads


def test_a_limit_of_bytes_holds_for_all_partitions_together(stage, client):
    declare(client, **{"x-max-length-bytes": 1000})
    client.feed(
        b"".join(message("q", b"x" * 100, headers={"x-partition-key": str(at)}) for at in range(50))
    )
    assert client.count("q") == 10


def test_a_full_queue_refuses_whatever_partition_a_message_is_for(stage, client):
    declare(client, **{"x-max-length": 10, "x-overflow": "reject-publish"})
    client.call(commands.Confirm.Select())
    for at in range(5):
        publish(client, *range(at * 10, at * 10 + 10))
    answers = client.names()
    assert client.count("q") == 10
    assert answers.count("Basic.Ack") >= 1
    assert "Basic.Nack" in answers


def test_an_atomic_write_is_held_to_the_limit_of_the_whole(client):
    declare(client, **{"x-max-length": 10, "x-overflow": "reject-publish"})
    client.call(commands.Tx.Select())
    publish(client, *range(11))
    refused = client.call(commands.Tx.Commit())
    assert refused.name == "Channel.Close"
    client.send(commands.Channel.CloseOk())
    client.open_channel(2)
    client.call(commands.Tx.Select(), 2)
    client.feed(
        b"".join(
            message("q", b"%d" % at, 2, headers={"x-partition-key": str(at)}) for at in range(10)
        )
    )
    assert client.call(commands.Tx.Commit(), 2).name == "Tx.CommitOk"
    assert client.count("q", 2) == 10


def test_a_transaction_takes_and_gives_across_partitions(stage, client, other):
    declare(client)
    publish(client, *range(6))
    other.prefetch(10)
    other.call(commands.Tx.Select())
    other.consume("q")
    tags = [delivery.tag for delivery in other.deliveries()]
    publish(other, *range(100, 103))
    other.send(commands.Basic.Ack(max(tags), multiple=True))
    assert sum(part.leased_count for part in stage.queue("q").partitions) == 6
    other.send(commands.Tx.Commit())
    assert other.names() == ["Tx.CommitOk", *["Basic.Deliver"] * 3]
    assert sum(part.leased_count for part in stage.queue("q").partitions) == 3
    assert client.count("q") == 0


def test_dead_letters_are_placed_by_their_key(stage, client):
    declare(client)
    client.declare(
        "source",
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"},
    )
    client.feed(
        b"".join(
            message("source", b"%d" % at, headers={"x-partition-key": str(at)}) for at in range(20)
        )
    )
    for _ in range(20):
        client.send(commands.Basic.Get(queue="source"))
        (got,) = client.deliveries()
        client.send(commands.Basic.Reject(got.tag, requeue=False))
    expected = [0] * COUNT
    for at in range(20):
        expected[hash_key(b"%d" % at) % COUNT] += 1
    assert lengths(stage) == expected


def test_its_own_dead_letters_come_from_every_partition(client):
    client.declare("dead")
    declare(client, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    publish(client, *range(20))
    client.prefetch(100)
    client.consume("q", "c")
    for delivery in client.deliveries():
        client.send(commands.Basic.Reject(delivery.tag, requeue=False))
    assert client.count("dead") == 20


def test_messages_expire_in_every_partition(stage, client):
    declare(client, **{"x-message-ttl": 1000})
    publish(client, *range(20))
    stage.advance(2)
    assert client.count("q") == 0


def test_an_unused_queue_expires_once(stage, client):
    declare(client, **{"x-expires": 1000})
    publish(client, *range(8))
    stage.advance(0.6)
    client.send(commands.Basic.Get(queue="q", no_ack=True))  # a use of the whole queue
    client.received()
    stage.advance(0.6)
    assert "q" in stage.broker.vhosts["/"].queues
    stage.advance(0.6)
    assert "q" not in stage.broker.vhosts["/"].queues


def test_retries_come_back_to_their_partition(stage, client):
    declare(client, **{"x-retry-delays": [100], "x-retry-max-attempts": 3})
    publish(client, *range(12))
    before = lengths(stage)
    client.prefetch(100)
    client.consume("q", "c")
    for delivery in client.deliveries():
        client.send(commands.Basic.Nack(delivery.tag, requeue=False))
    client.call(commands.Basic.Cancel("c"))
    assert client.count("q") == 0
    stage.advance(1)
    assert lengths(stage) == before


def test_one_consumer_is_active_in_all_partitions(client, other):
    declare(client, **{"x-single-active-consumer": True})
    for each in (client, other):
        each.consume("q", "c", no_ack=True)
    publisher = Client(client.stage).open()
    publish(publisher, *range(20))
    assert (len(numbers(client)), len(numbers(other))) == (20, 0)
    client.call(commands.Basic.Cancel("c"))
    publish(publisher, *range(20))
    assert len(numbers(other)) == 20


def test_an_exclusive_consumer_keeps_others_out(client, other):
    declare(client)
    client.consume("q", "c", exclusive=True)
    refused = other.call(commands.Basic.Consume(queue="q", consumer_tag="c"))
    assert refused.reply_code == 403


def test_duplicates_of_a_key_are_dropped(client):
    declare(client, **{"x-dedup-window": 60_000})
    for _ in range(3):
        client.feed(
            b"".join(
                message("q", b"x", message_id=str(at), headers={"x-partition-key": str(at)})
                for at in range(10)
            )
        )
    assert client.count("q") == 10


def test_delayed_messages_are_placed_when_they_are_due(stage, client):
    declare(client)
    client.feed(
        b"".join(
            message("q", b"%d" % at, headers={"x-partition-key": str(at), "x-delay": 100})
            for at in range(20)
        )
    )
    assert client.count("q") == 0
    stage.advance(1)
    expected = [0] * COUNT
    for at in range(20):
        expected[hash_key(b"%d" % at) % COUNT] += 1
    assert lengths(stage) == expected


def test_a_rate_holds_for_all_partitions_together(stage, client):
    declare(client, **{"x-consume-rate": 5, "x-consume-burst": 5})
    publish(client, *range(40))
    client.consume("q", no_ack=True)
    assert len(client.deliveries()) == 5
    stage.advance(1)
    assert len(client.deliveries()) == 5


def test_a_partition_must_be_stated_where_one_is_meant(stage, client):
    declare(client)
    queue = stage.queue("q")
    assert partition_of(queue, 2) is queue.partitions[2]
    with pytest.raises(AdministrationError, match="has the partitions 0 to 3"):
        partition_of(queue)
    with pytest.raises(AdministrationError, match="has the partitions 0 to 3"):
        partition_of(queue, 9)


def test_a_routing_key_is_the_key_of_messages_without_headers_only(stage, client):
    declare(client)
    key = b"q"  # of the default exchange
    for at in range(3):
        client.feed(message("q", b"plain"))
        client.feed(message("q", b"other", headers={"x-partition-key": str(at)}))
    expected = [0] * COUNT
    for each in (key, b"0", key, b"1", key, b"2"):
        expected[hash_key(each) % COUNT] += 1
    assert lengths(stage) == expected


def test_a_cached_route_follows_the_partitions(stage, client):
    declare(client)
    partitions = stage.queue("q").partitions
    client.feed(message("q", b"before"))
    before = lengths(stage)
    others = [part for part, count in zip(partitions, before, strict=True) if not count]
    stage.queue("q").builder.set_builders(part.builder for part in others)
    client.feed(message("q", b"after"))
    after = lengths(stage)
    assert sum(after) == 2
    assert [a - b for a, b in zip(after, before, strict=True) if b] == [0]
