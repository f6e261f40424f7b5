from dataclasses import replace

import pytest

from leveret.core.settings.equivalence import check_exchange, check_queue
from leveret.errors import ChannelError
from leveret.ports.definitions import ExchangeDefinition, QueueDefinition

QUEUE = QueueDefinition("/", "q")
EXCHANGE = ExchangeDefinition("/", "x", "direct")


def with_arguments(**arguments):
    return replace(QUEUE, arguments={f"x-{k.replace('_', '-')}": v for k, v in arguments.items()})


@pytest.mark.covers("B-207")
@pytest.mark.parametrize(
    ("current", "received", "text"),
    [
        (QUEUE, replace(QUEUE, durable=False), "'durable'|'false'|'true'"),
        (replace(QUEUE, durable=False), QUEUE, "'durable'|'true'|'false'"),
        (QUEUE, replace(QUEUE, auto_delete=True, arguments={"x-expires": 1}),
         "'auto_delete'|'true'|'false'"),
        (with_arguments(message_ttl=1000), QUEUE,
         "'x-message-ttl'|none|the value '1000' of type 'signedint'"),
        (QUEUE, with_arguments(message_ttl=5 * 10**9),
         "'x-message-ttl'|the value '5000000000' of type 'long'|none"),
        (with_arguments(dead_letter_exchange="dlx"), QUEUE,
         "'x-dead-letter-exchange'|none|the value 'dlx' of type 'longstr'"),
        (QUEUE, with_arguments(single_active_consumer=True),
         "'x-single-active-consumer'|the value 'true' of type 'bool'|none"),
        (with_arguments(message_ttl=1000), with_arguments(message_ttl=2000),
         "'x-message-ttl'|'2000'|'1000'"),
        (with_arguments(message_ttl=1000), with_arguments(message_ttl="1000"),
         "'x-message-ttl'|'1000'|'1000'"),
        (with_arguments(message_ttl=1), with_arguments(message_ttl=1.0),
         "'x-message-ttl'|'1.0'|'1'"),
        (QUEUE, with_arguments(queue_type="quorum"),
         "'x-queue-type'|the value 'quorum' of type 'longstr'|none"),
        (with_arguments(queue_type="quorum"), with_arguments(queue_type="classic"),
         "'x-queue-type'|'classic'|'quorum'"),
        (with_arguments(replicas=3), with_arguments(replicas=2), "'x-replicas'|'2'|'3'"),
        (QUEUE, with_arguments(acks="all"), "'x-acks'|the value 'all' of type 'longstr'|none"),
        (with_arguments(min_isr=2), QUEUE,
         "'x-min-isr'|none|the value '2' of type 'signedint'"),
        (with_arguments(max_length=1, expires=1), with_arguments(max_length=2, expires=2),
         "'x-expires'|'2'|'1'"),
    ],
)  # fmt: skip
def test_a_queue_that_differs_is_refused_by_what_differs_first(current, received, text):
    key, new, old = text.split("|")
    with pytest.raises(ChannelError) as caught:
        check_queue(current, received)
    assert caught.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg {key} for queue 'q' in vhost '/': "
        f"received {new} but current is {old}"
    )


@pytest.mark.covers("B-207")
@pytest.mark.parametrize(
    ("current", "received"),
    [
        (QUEUE, QUEUE),
        (QUEUE, with_arguments(queue_type="classic")),
        (with_arguments(queue_type="classic"), QUEUE),
        (QUEUE, with_arguments(unheard_of=1, delayed_retry_min=3)),
        (with_arguments(overflow="drop-head"), with_arguments(overflow=b"drop-head")),
    ],
)
def test_a_queue_that_means_the_same_is_the_same(current, received):
    check_queue(current, received)


@pytest.mark.covers("B-207")
@pytest.mark.parametrize(
    ("received", "text"),
    [
        (replace(EXCHANGE, type="topic", durable=False), "'type'|'topic'|'direct'"),
        (replace(EXCHANGE, type="x-random"), "'type'|''x-random''|'direct'"),
        (replace(EXCHANGE, durable=False, auto_delete=True), "'durable'|'false'|'true'"),
        (replace(EXCHANGE, auto_delete=True, internal=True), "'auto_delete'|'true'|'false'"),
        (
            replace(EXCHANGE, internal=True, arguments={"alternate-exchange": "a"}),
            "'internal'|'true'|'false'",
        ),
        (
            replace(EXCHANGE, arguments={"alternate-exchange": "a"}),
            "'alternate-exchange'|the value 'a' of type 'longstr'|none",
        ),
    ],
)
def test_an_exchange_that_differs_is_refused_by_what_differs_first(received, text):
    key, new, old = text.split("|")
    with pytest.raises(ChannelError) as caught:
        check_exchange(EXCHANGE, received)
    assert caught.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg {key} for exchange 'x' in vhost '/': "
        f"received {new} but current is {old}"
    )


@pytest.mark.covers("B-207")
def test_other_arguments_of_an_exchange_do_not_matter():
    check_exchange(EXCHANGE, replace(EXCHANGE, arguments={"x-whatever": 1}))
