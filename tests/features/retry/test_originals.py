"""Deleting an attempt deletes the message, also where a crash has brought that back."""

import asyncio

import pytest
from pamqp import commands

from leveret.features.browse.commands import message_delete, message_edit, message_move
from leveret.features.retry.commands import retry_cancel
from tests.recovery.node import Node

ARGUMENTS = {"x-retention": "14d", "x-retry-delays": [1000, 1000]}
IN_ORDER = {"x-retry-keep-order": "key"}
ORIGINAL, ATTEMPT = 0, 2  # offsets


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def lives(loop):
    """Lives of a node, of which the last one runs."""
    lives = [Node(loop)]
    yield lives
    lives[-1].kill()


def start(lives, **order):
    """Have a message fail and come back, and the node killed before it wrote that down."""
    node = lives[0]
    for name in ("q", "other"):
        node.client.declare(name, durable=True, arguments={**ARGUMENTS, **order})
    node.publish("q", b"first", b"second")
    node.reject("q")
    node.advance(1.1)
    node.run()
    return restart(lives)


def restart(lives):
    lives[-1].kill()
    lives.append(lives[-1].next_life())
    lives[-1].run()
    return lives[-1]


def chosen(offset):
    return {"queue": "q", "select": {"offsets": [offset]}, "after": None, "limit": None}


def delete(node, offset):
    node.operate(message_delete, **chosen(offset))


def move(node, offset):
    target = {"to_queue": "other", "exchange": None, "routing_key": None}
    node.operate(message_move, **chosen(offset), **target)


def edit(node, offset):
    node.operate(message_edit, queue="q", offset=offset, changes={"payload": "edited"})


@pytest.mark.parametrize("order", [{}, IN_ORDER])
@pytest.mark.parametrize("act", [delete, move, edit])
def test_a_message_that_a_crash_has_brought_back_is_erased_with_its_attempt(lives, act, order):
    node = start(lives, **order)
    assert ORIGINAL not in node.queue("q").log.settled
    act(node, ATTEMPT)
    assert ATTEMPT in node.queue("q").log.erased
    assert ORIGINAL in node.queue("q").log.erased
    assert ORIGINAL in restart(lives).queue("q").log.erased


def test_it_is_erased_with_an_attempt_that_is_cancelled_although_it_is_blocked(lives):
    node = start(lives, **IN_ORDER)
    log = node.queue("q").log
    node.reject("q")  # the attempt, which blocks the others
    node.client.send(commands.Basic.Get(queue="q"))
    assert isinstance(node.client.received()[0][1], commands.Basic.GetEmpty)
    assert ORIGINAL not in log.settled
    node.operate(retry_cancel, queue="q", ids=[], all_=True)
    assert ORIGINAL in log.erased
    assert node.queue("q").message_count == 2


def test_it_is_erased_when_the_consumer_that_has_it_is_done_with_it(lives):
    node = start(lives)
    log = node.queue("q").log
    (tag,) = node.get("q")
    delete(node, ATTEMPT)
    assert ORIGINAL not in log.erased
    node.client.send(commands.Basic.Ack(delivery_tag=tag))
    assert ORIGINAL in log.erased
    assert node.queue("q").message_count == 2
