"""The examples of docs/spark.md and the commands of docs/spark-jobs.md, run in order."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from pathlib import Path

import pika
import pytest

from leveret.spark.jobs.job import ALWAYS, JobContext
from leveret.spark.jobs.runner import _lines, common_arguments, job_of
from leveret.spark.option_reader import OptionReader
from leveret.spark.queue_options import read_queue_options
from leveret.spark.read_options import read_options
from leveret.spark.write_options import write_options
from spark_tests.node import Node

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "spark.md").read_text()
COMMAND = re.compile(r"^    \$ leveret spark (.*)\n((?:    .*\n)+)", re.MULTILINE)
BLOCK = re.compile(r"```python spark\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
PLACES = ("archive", "orders.csv", "report")  # the directory of the JVM is another one


def test_the_page_is_true(spark, node, tmp_path):
    names: dict[str, object] = {}
    examples = BLOCK.findall(PAGE)
    assert len(examples) == PAGE.count("```python spark\n") == 5
    for code, expected in examples:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(with_places(code, node, tmp_path), names)
        assert output.getvalue() == expected


def with_places(code, node, directory):
    """Return an example with the node's address, and with absolute paths."""
    code = code.replace("localhost:15672", node.server)
    code = code.replace('"localhost", 5672', f'"127.0.0.1", {node.amqp_port}')
    for name in ("checkpoint", "orders.parquet", "invoices.checkpoint", "invoices.parquet"):
        code = re.sub(rf'"{re.escape(name)}(?=["/])', f'"{directory / name}', code)
    return code


def test_all_options_are_named():
    known = set()
    original = OptionReader.end
    OptionReader.end = lambda self: known.update(self._known.values())
    try:
        read_options({"servers": "a", "subscribe": "b"}, is_streaming=True)
        write_options({"servers": "a", "topic": "b"}, is_streaming=False)
        read_queue_options({"servers": "a", "consume": "b"})
    finally:
        OptionReader.end = original
    assert known <= set(re.findall(r"`(\w+)`", PAGE))


@pytest.fixture
def shop(tmp_path):
    """Run a node with a topic of orders, and with payments that were rejected."""
    (tmp_path / "shop").mkdir()
    with Node(tmp_path / "shop").running() as shop:
        connection = pika.BlockingConnection(shop.parameters)
        channel = connection.channel()
        topic = {"x-queue-type": "stream", "x-partitions": 2}
        channel.queue_declare("orders", durable=True, arguments=topic)
        channel.queue_declare("orders-again", durable=True, arguments=topic)
        channel.queue_declare("payments", durable=True, arguments={"x-dead-letter-topic": True})
        channel.confirm_delivery()
        for number in range(100):
            headers = {"x-partition-key": f"customer-{number}"}
            persistent = pika.BasicProperties(delivery_mode=2, headers=headers)
            channel.basic_publish("", "orders", b"order %d" % number, persistent)
        channel.basic_publish("", "payments", b"payment", pika.BasicProperties(delivery_mode=2))
        delivered, _, _ = channel.basic_get("payments")
        channel.basic_reject(delivered.delivery_tag, requeue=False)
        connection.close()
        yield shop


def test_commands_print_what_the_page_says(spark, shop, tmp_path):
    for name, value in ALWAYS.items():
        spark.conf.set(name, value)
    commands = COMMAND.findall((DOCS / "spark-jobs.md").read_text())
    assert [each.split()[0] for each, _ in commands] == [
        *("archive", "verify", "replay", "export", "usage", "dlq"),
    ]
    for command, expected in commands:
        name, *given = shlex.split(command)
        arguments = [str(tmp_path / each) if each in PLACES else each for each in given]
        parser = argparse.ArgumentParser(parents=[common_arguments()])
        job_of(name).add_arguments(parser)
        context = JobContext(name, parser.parse_args(["--servers", shop.server, *arguments]))
        context._spark = spark
        printed = "\n".join(_lines(job_of(name).run(context)))
        assert labels(printed.replace(f"{tmp_path}/", "")) == labels(expected), command


def labels(text):
    """Return what does not depend on the data: numbers, and ids, are left out."""
    return [
        re.sub(r"\b[\d,a-f]*\d[0-9a-f]*\b", "N", line.strip()) for line in text.strip().splitlines()
    ]
