"""The examples of docs/spark.md, run in order."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pika

from leveret.spark.option_reader import OptionReader
from leveret.spark.read_options import read_options

PAGE = (Path(__file__).parents[1] / "docs" / "spark.md").read_text()
BLOCK = re.compile(r"```python spark\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_the_page_is_true(spark, node, channel, tmp_path):
    channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
    for number in (1, 2):
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", "orders", b"order %d" % number, properties)
    names: dict[str, object] = {}
    examples = BLOCK.findall(PAGE)
    assert len(examples) == 2
    for code, expected in examples:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(with_places(code, node, tmp_path), names)
        assert output.getvalue() == expected


def with_places(code, node, directory):
    """Return an example with the node's address, and with absolute paths."""
    code = code.replace("localhost:15672", node.server)
    for name in ("checkpoint", "orders.parquet"):
        code = code.replace(f'"{name}"', f'"{directory / name}"')
    return code


def test_all_options_are_named():
    known = set()
    original = OptionReader.end
    OptionReader.end = lambda self: known.update(self._known)
    try:
        read_options({"servers": "a", "subscribe": "b"}, is_streaming=True)
    finally:
        OptionReader.end = original
    named = {name.lower() for name in re.findall(r"`(\w+)`", PAGE)}
    assert known <= named
