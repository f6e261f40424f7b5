"""Definitions of RabbitMQ load into Leveret unchanged, and those of Leveret into RabbitMQ."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from interop_tests.brokers import LeveretBroker, RabbitBroker
from interop_tests.differential.client import Connection
from interop_tests.differential.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from interop_tests.brokers import Address
    from interop_tests.differential.client import Channel

pytestmark = pytest.mark.skipif(not RabbitBroker.installed(), reason="RabbitMQ is not installed")

# What says which broker wrote it, and what only one of the two writes.
ABOUT = {
    *("rabbit_version", "rabbitmq_version", "product_name", "product_version"),
    "rabbitmq_definition_format",
}
CREATION = {"created_at", "created_by"}  # of a queue: RabbitMQ does not say, and does not mind


@contextmanager
def connected(
    address: Address, user: str = "guest", password: str = "guest", vhost: str = "/"
) -> Iterator[Channel]:
    connection = Connection(address, Transcript(""), "definitions")
    connection.handshake(user=user, password=password, vhost=vhost)
    yield connection.channel()
    connection.close()


# A value of each kind that JSON can say again.
CONDITIONS = {
    "x-match": "any",
    "table": {"list": [1, "x", True, 1.5, {"deep": [[]]}]},
    "fraction": 0.1,
    "time": datetime(2030, 1, 1, tzinfo=UTC),
    "negative": -1,
    "large": 2**40,
}


def exported_after_defining(broker: RabbitBroker) -> str:
    """The definitions of a broker that was told some of everything."""
    control = broker.control
    control("add_user", "alice", "old password")
    control("set_user_tags", "alice", "monitoring", "policymaker")
    control("set_user_limits", "alice", '{"max-connections": 5, "max-channels": 20}')
    control("add_vhost", "v", "--description", "a vhost", "--tags", "x,y")
    control("set_vhost_limits", "-p", "v", '{"max-queues": 100}')
    control("set_permissions", "-p", "v", "alice", ".*", ".*", ".*")
    control("set_topic_permissions", "-p", "v", "alice", "amq.topic", "^{username}", ".*")
    policy = '{"message-ttl": 1000, "dead-letter-exchange": "x"}'
    control("set_policy", "-p", "v", "p", "^q", policy, "--priority", "3", "--apply-to", "queues")
    control("set_operator_policy", "-p", "v", "o", "^q", '{"max-length": 5}')
    control("set_global_parameter", "g", '{"a": [1, 2.5, "x"]}')
    with connected(broker.address) as channel:
        done = [
            channel.declare(
                "classic",
                durable=True,
                arguments={"x-message-ttl": 5000, "x-max-length": 2**40, "x-overflow": "drop-head"},
            ),
            channel.declare("quorum", durable=True, arguments={"x-queue-type": "quorum"}),
            channel.declare("stream", durable=True, arguments={"x-queue-type": "stream"}),
            channel.declare("passing", auto_delete=True),
            channel.declare("mine", exclusive=True),
            channel.exchange(
                "x", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"}
            ),
            channel.exchange("h", "headers", durable=True),
            channel.call(commands.Exchange.Bind(destination="h", source="x", routing_key="#.a")),
            channel.bind("classic", "h", "k", arguments=CONDITIONS),
            channel.bind("mine", "h", "k", arguments=CONDITIONS),
            channel.bind("classic", "amq.topic", "#"),
        ]
        assert all(answer.name.endswith("Ok") for answer in done), done
        # While the exclusive queue is there: it must not go along.
        return broker.control("export_definitions", "-")


def normal(document: dict[str, Any]) -> dict[str, Any]:
    """A document without what says who wrote it, in an order, its objects as objects."""
    sections = {key: rows for key, rows in document.items() if key not in ABOUT}
    sections["vhosts"] = [_vhost(row) for row in sections["vhosts"]]
    sections["exchanges"] = [
        {**row, "internal": row.get("internal", False)} for row in sections["exchanges"]
    ]
    sections["queues"] = [
        {key: row[key] for key in row.keys() - CREATION} for row in sections["queues"]
    ]
    queues = {(row["vhost"], row["name"]) for row in sections["queues"]}
    sections["bindings"] = [
        row
        for row in sections["bindings"]
        if row["destination_type"] == "exchange" or (row["vhost"], row["destination"]) in queues
    ]
    return {key: sorted(map(_objects, rows), key=json.dumps) for key, rows in sections.items()}


def _vhost(row: dict[str, Any]) -> dict[str, Any]:
    metadata = row["metadata"]
    tags = metadata["tags"]  # 3.10 writes those of its command line as one text
    queue_type = metadata.get("default_queue_type", "classic")
    return {
        "name": row["name"],
        "description": metadata["description"],
        "tags": tags.split(",") if isinstance(tags, str) else tags,
        "default_queue_type": "classic" if queue_type == "undefined" else queue_type,
    }


def _objects(value: Any) -> Any:
    """Objects sorted by key; RabbitMQ 3.10 writes some as lists of pairs."""
    if isinstance(value, list) and value and all(_is_pair(one) for one in value):
        value = dict(value)
    if isinstance(value, dict):
        return {key: _objects(inner) for key, inner in sorted(value.items())}
    return [_objects(one) for one in value] if isinstance(value, list) else value


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


class Importing(LeveretBroker):
    """A Leveret that imports a file when it starts."""

    def __init__(self, directory: Path, definitions: Path) -> None:
        super().__init__(directory)
        self.definitions = definitions

    def options(self) -> list[str]:
        return [*super().options(), "--definitions", str(self.definitions)]


@pytest.fixture(scope="module")
def from_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the definitions that RabbitMQ exports."""
    directory = tmp_path_factory.mktemp("exporting")
    broker = RabbitBroker(directory)
    broker.start()
    try:
        file = directory / "exported.json"
        file.write_text(exported_after_defining(broker))
        return file
    finally:
        broker.close()


@pytest.mark.covers("B-422", "B-405")
def test_what_rabbitmq_exports_loads_unchanged(from_rabbitmq: Path, tmp_path: Path) -> None:
    broker = Importing(tmp_path, from_rabbitmq)
    expected = normal(json.loads(from_rabbitmq.read_text()))
    for _ in range(2):  # imported again at the second start, over what was kept
        broker.start()
        try:
            exported = json.loads(broker.control("definitions", "export"))
            assert normal(exported) == expected
            with connected(broker.address, "alice", "old password", "v") as channel:
                assert channel.declare("q").name == "Queue.DeclareOk"
            with connected(broker.address) as channel:  # guest's password came along
                assert channel.declare("classic", passive=True).name == "Queue.DeclareOk"
        finally:
            broker.close()


@pytest.mark.covers("B-422")
def test_what_leveret_exports_loads_into_rabbitmq(from_rabbitmq: Path, tmp_path: Path) -> None:
    leveret = Importing(tmp_path, from_rabbitmq)
    leveret.start()
    try:
        exported = json.loads(leveret.control("definitions", "export"))
    finally:
        leveret.close()
    file = tmp_path / "from_leveret.json"
    file.write_text(json.dumps(exported))
    directory = tmp_path / "rabbitmq"
    directory.mkdir()
    rabbitmq = RabbitBroker(directory)
    rabbitmq.start()
    try:
        rabbitmq.control("import_definitions", str(file))
        again = normal(json.loads(rabbitmq.control("export_definitions", "-")))
        assert again == normal(exported)
        with connected(rabbitmq.address, "alice", "old password", "v"):
            pass
    finally:
        rabbitmq.stop()
