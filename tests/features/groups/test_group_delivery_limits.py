"""Delivery limits of consumer groups: how often a group gets what its members return."""

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from tests.support.client import Client

LIMIT = {"x-group-delivery-limit": 2}
KINDS = {
    "stream": {"x-queue-type": "stream"},
    "classic": {"x-retention": "1d"},
    "quorum": {"x-queue-type": "quorum", "x-retention": "1d"},
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def declare(publisher, arguments):
    publisher.declare("q.dlq", durable=True)
    publisher.declare("q", durable=True, arguments=arguments)


def join(stage, group="g"):
    member = Client(stage).open()
    member.prefetch(1)
    member.consume("q", "c", arguments={"x-consumer-group": group})
    return member


def requeue_all(member, count):
    """Return each message as soon as it comes; return the delivery counts that came with them."""
    counts = []
    for _ in range(count):
        for _, value in member.received():
            if isinstance(value, ContentHeader):
                counts.append(value.properties.headers.get("x-delivery-count"))
        if len(counts) == count:
            break
        member.send(commands.Basic.Nack(len(counts), requeue=True))
    return counts


def lag(stage, group="g"):
    return stage.broker.groups.of_queue(stage.queue("q"))[group].lag


def test_a_group_gets_a_message_once_more_than_the_limit_says(stage, publisher, kind):
    declare(publisher, kind | LIMIT)
    member, other = join(stage), join(stage, "other")
    publisher.publish("q", b"poison", b"next")
    assert requeue_all(member, 4) == [None, 1, 2, None]
    assert lag(stage) == 1
    assert [each.body for each in other.deliveries()] == [b"poison"]  # it has its own count


@pytest.mark.parametrize(("kind", "dead"), [("stream", 0), ("classic", 1), ("quorum", 0)])
def test_what_exceeds_it_is_a_dead_letter_where_the_queue_has_any(stage, publisher, kind, dead):
    declare(publisher, KINDS[kind] | LIMIT)
    member = join(stage)
    publisher.publish("q", b"poison", b"next")
    requeue_all(member, 4)
    assert publisher.count("q.dlq") == dead


@pytest.mark.parametrize("limit", [{}, LIMIT | {"x-group-delivery-limit": -1}])
@pytest.mark.parametrize("kind", ["stream", "classic"])
def test_without_a_limit_a_message_comes_for_ever(stage, publisher, kind, limit):
    declare(publisher, KINDS[kind] | limit)
    member = join(stage)
    publisher.publish("q", b"poison")
    assert requeue_all(member, 30) == [None] * 30


def test_the_limit_of_the_queue_holds_for_its_groups(stage, publisher):
    declare(publisher, KINDS["classic"] | {"x-delivery-limit": 1})
    member = join(stage)
    publisher.publish("q", b"poison", b"next")
    assert requeue_all(member, 3) == [None, 1, None]
    assert publisher.count("q.dlq") == 1


def test_the_own_consumers_of_the_queue_have_no_limit_by_that(stage, publisher):
    declare(publisher, KINDS["classic"] | LIMIT)
    publisher.publish("q", b"poison")
    for tag in range(1, 9):
        publisher.send(commands.Basic.Get(queue="q"))
        assert len(publisher.deliveries()) == 1
        publisher.send(commands.Basic.Nack(tag, requeue=True))
    assert publisher.count("q") == 1
