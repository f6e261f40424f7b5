"""Queues that a start leaves unopened, on the storage engine and its threads."""

import asyncio
import errno

import pytest
from pamqp import commands

from tests.recovery.node import Node

QUEUES = 50


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def node(loop):
    """Return a node that has found empty queues at its start, bound to a fanout exchange."""
    node = Node(loop)
    for number in range(QUEUES):
        node.declare(f"q{number}")
        node.client.call(commands.Queue.Bind(queue=f"q{number}", exchange="amq.fanout"))
    node.publish("", b"before", exchange="amq.fanout")
    for number in range(QUEUES):
        node.take(f"q{number}")
    bindings = node.broker.vhosts["/"].topology.definitions().bindings
    node.close()
    node = node.next_life(keeps_state=True)
    node.broker.vhosts["/"].topology.restore([], [], bindings)
    assert opened(node) == set()
    assert node.client.call(commands.Confirm.Select()).name == "Confirm.SelectOk"
    yield node
    if not node.is_over:
        node.close()


def opened(node):
    return {name for name, queue in node.broker.vhosts["/"].queues.items() if queue.is_opened}


def test_a_message_to_all_of_them_is_confirmed_once_all_are_opened(node):
    node.publish("", b"after", exchange="amq.fanout")
    assert node.client.names() == ["Basic.Ack"]
    assert len(opened(node)) == QUEUES
    assert {node.queue(f"q{number}").message_count for number in range(QUEUES)} == {1}
    assert node.reported == []


def test_a_message_is_refused_where_the_log_cannot_be_recovered(node):
    files, listed = node.files, node.files.list_names

    def refuse(path):
        if path.parent.name.startswith("q7~~"):
            raise OSError(errno.EIO, "refused")
        return listed(path)

    files.list_names = refuse
    node.publish("", b"after", exchange="amq.fanout")
    assert node.client.names() == ["Basic.Nack"]
    assert opened(node) == {f"q{number}" for number in range(QUEUES) if number != 7}
    assert len(node.reported) == 1
    files.list_names = listed
    node.publish("q7", b"again")
    assert node.client.names() == ["Basic.Ack"]
    assert node.queue("q7").message_count == 1


def test_a_node_that_ends_before_they_are_opened_refuses_its_publishers(node):
    node.topics._recoveries._parallel = 0  # none begins
    queue = node.queue("q3")
    queue.builder.add(1, node.now, b"", b"q3", b"", b"after")
    heard = []
    queue.await_commit(Waiter(heard))
    queue.flush()
    node.loop.run_until_complete(node.topics.close())
    node.run()
    assert heard == [True]
    assert not queue.is_opened
    node.close()
    after = node.next_life(keeps_state=True)
    assert after.queue("q3").message_count == 0
    after.close()


class Waiter:
    def __init__(self, heard):
        self.heard = heard

    def done(self, *, failed):
        self.heard.append(failed)
