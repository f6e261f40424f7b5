"""A node and a Spark session for all tests, and topics of their own for each."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from itertools import count

import pika
import pytest
from pika.exceptions import AMQPError

from leveret.spark.jobs.job import ALWAYS, JobContext
from leveret.spark.jobs.runner import common_arguments, job_of
from spark_tests.node import Node
from spark_tests.quick_java import start_quickly
from spark_tests.session import spark_session

os.environ["PYSPARK_PYTHON"] = sys.executable
start_quickly()
# Begun first, so that no worker is left with one of them at the end.
LONGEST = {"test_kills.py", "test_queue_kills.py", "test_cluster.py"}
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


SHORT = {
    "x-queue-type": "stream",
    "x-partitions": 2,
    "x-max-length-bytes": 200_000,
    "x-stream-max-segment-size-bytes": 50_000,
    "x-retention-waits-for": ["archive"],
    "x-retention-waits-max": 7 * 86400 * 1000,
}


@pytest.fixture
def short(channel, topic):
    """Declare a topic whose retention deletes early, and waits for the archive."""
    name = f"{topic}-short"
    channel.queue_declare(name, durable=True, arguments=SHORT)
    return name


@pytest.fixture
def context(spark, node):
    """Return a function that makes the context of a job with arguments."""
    for name, value in ALWAYS.items():
        spark.conf.set(name, value)

    def context(job, *arguments):
        parser = argparse.ArgumentParser(parents=[common_arguments()])
        job_of(job).add_arguments(parser)
        made = JobContext(job, parser.parse_args(["--servers", node.server, *arguments]))
        made._spark = spark
        return made

    return context


@pytest.fixture
def run(context):
    """Return a function that runs a job, and returns its summary."""

    def run(job, *arguments):
        return job_of(job).run(context(job, *arguments))

    return run


@pytest.fixture
def place(tmp_path):
    return tmp_path / "archive %41"


def pytest_collection_modifyitems(items):
    """Begin with the longest, and give each the time of a first job on a loaded machine."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        item.add_marker(pytest.mark.timeout(600))
