"""A node and a Spark session for all tests, and topics of their own for each."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import count

import pika
import pytest
from pika.exceptions import AMQPError

from spark_tests.node import Node
from spark_tests.session import spark_session

os.environ["PYSPARK_PYTHON"] = sys.executable
names = (f"topic-{number}" for number in count())


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    with Node(tmp_path_factory.mktemp("node")).running() as node:
        yield node


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    session = spark_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def channel(node):
    connection = pika.BlockingConnection(node.parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    with suppress(AMQPError):  # the test may have ended the node
        connection.close()


@pytest.fixture
def topic(channel):
    """Declare a stream with two partitions."""
    name = next(names)
    channel.queue_declare(
        name, durable=True, arguments={"x-queue-type": "stream", "x-partitions": 2}
    )
    return name


def pytest_collection_modifyitems(items):
    """Give each test the time that a first job on a loaded machine takes."""
    for item in items:
        item.add_marker(pytest.mark.timeout(300))
