"""A real Prometheus scrapes a loaded node, and answers whatever RabbitMQ's dashboard asks it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pika
import pytest

from interop_tests.metrics.overview import EXPRESSIONS, VARIABLES
from interop_tests.metrics.prometheus import Prometheus, require
from tests.process import node_addresses
from tests.support.http import http_text
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))

# What a viewer has chosen above the dashboard, and how wide its window is.
CHOICES = {
    "$rabbitmq_cluster": "leveret",
    "$namespace": "",
    "$endpoint": "aggregated",
    "$__rate_interval": "60s",
    "$__range": "1m",
}
SCRAPES_SECONDS = 6  # a rate needs two scrapes; everything happens at least once in this time
# RabbitMQ's names are what they are.
RABBITMQS_OWN = ("rabbitmq_unreachable_cluster_peers_count ",)
VIEWS = (
    "/metrics",
    "/metrics/per-object",
    "/metrics/detailed?family=queue_metrics&family=queue_coarse_metrics&vhost=%2F",
    "/metrics/memory-breakdown",
)


class Load:
    """Everything that clients do to a broker, over and over in a thread."""

    def __init__(self, port: int) -> None:
        self._parameters = pika.ConnectionParameters("127.0.0.1", port)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert self.failure is None, self.failure

    def _run(self) -> None:
        try:
            with pika.BlockingConnection(self._parameters) as connection:
                while not self._stopping.is_set():
                    self._round(connection)
        except Exception as error:  # noqa: BLE001  # the test shows it
            self.failure = error

    def _round(self, connection: pika.BlockingConnection) -> None:
        with pika.BlockingConnection(self._parameters) as another:
            another.channel().queue_declare("passing", exclusive=True)
        channel = connection.channel()
        for name in ("manual", "automatic"):
            channel.queue_declare(name, durable=True)
        channel.basic_publish("", "nobody", b"dropped")
        for size in (10, 500, 5_000):
            channel.basic_publish("", "manual", b"x" * size)
            channel.basic_publish("", "automatic", b"x" * size)
        for automatic in (True, False):
            method, _, _ = channel.basic_get("manual", auto_ack=automatic)
        channel.basic_nack(method.delivery_tag)
        channel.queue_purge("automatic")
        channel.basic_get("automatic")
        channel.basic_publish("", "automatic", b"one more")
        for queue, automatic in (("manual", False), ("automatic", True)):
            for method, _, _ in channel.consume(queue, auto_ack=automatic, inactivity_timeout=0.2):
                if method is None:
                    break
                if not automatic:
                    channel.basic_ack(method.delivery_tag)
            channel.cancel()
        channel.close()
        confirming = connection.channel()
        confirming.confirm_delivery()
        confirming.basic_publish("", "manual", b"confirmed")
        with pytest.raises(pika.exceptions.UnroutableError):
            confirming.basic_publish("", "nobody", b"returned", mandatory=True)
        confirming.close()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, str]]:
    """A Prometheus that has seen a node under load, and where the node's metrics are."""
    require("prometheus")
    directory: Path = tmp_path_factory.mktemp("metrics")
    with node_addresses(directory / "data", metrics=True) as addresses:
        target = addresses["prometheus"]
        port = int(addresses["amqp"].rpartition(":")[2])
        with (
            Prometheus(directory, target) as prometheus,
            Load(port),
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as standing,
        ):
            channel = standing.channel()
            channel.queue_declare("standing", durable=True)
            channel.basic_publish("", "standing", b"held")
            channel.basic_consume("standing", lambda *_: None)
            prometheus.await_scrape()
            standing.process_data_events(SCRAPES_SECONDS)
            yield prometheus, target


def _asked(expression: str) -> str:
    for variable, value in CHOICES.items():
        expression = expression.replace(variable, value)
    return expression


def _answer(prometheus: Prometheus, expression: str) -> list[dict[str, Any]]:
    """Return the result of an expression, as soon as enough was scraped for it."""
    until = time.monotonic() + LIMIT_SECONDS
    while not (found := prometheus.query(expression)):
        assert time.monotonic() < until, f"no data for {expression}"
        time.sleep(0.5)
    return found


@pytest.mark.covers("B-461")
@pytest.mark.parametrize("expression", [*EXPRESSIONS, *VARIABLES])
def test_dashboard_is_answered(scraped: tuple[Prometheus, str], expression: str) -> None:
    prometheus, _ = scraped
    found = _answer(prometheus, _asked(expression))
    assert not any(math.isnan(float(sample["value"][1])) for sample in found), found


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_our_dashboards_make_sense(scraped: tuple[Prometheus, str], path: Path) -> None:
    """Metrics that are scraped queue by queue are not there; all others are."""
    prometheus, _ = scraped
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = re.sub(r"\$(instance|vhost|queue)\b", ".*", _asked(target["expr"]))
            if "_detailed_" in expression:
                prometheus.query(expression)
            else:
                _answer(prometheus, expression)


def test_our_rules_are_valid() -> None:
    for arguments in (
        ["check", "rules", DEPLOY / "prometheus" / "alerts.yml"],
        ["check", "config", "--syntax-only", DEPLOY / "prometheus" / "prometheus.yml"],
    ):
        done = subprocess.run([require("promtool"), *arguments], capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_load_is_seen(scraped: tuple[Prometheus, str]) -> None:
    """Figures that the load brings about are not 0."""
    prometheus, _ = scraped
    for name in (
        "received",
        "received_confirm",
        "routed",
        "confirmed",
        "unroutable_dropped",
        "unroutable_returned",
        "delivered",
        "delivered_consume_auto_ack",
        "delivered_consume_manual_ack",
        "delivered_get_auto_ack",
        "delivered_get_manual_ack",
        "get_empty",
        "redelivered",
        "acknowledged",
    ):
        ((_, value),) = [
            sample["value"]
            for sample in prometheus.query(f"sum(rabbitmq_global_messages_{name}_total)")
        ]
        assert float(value) > 0, name


def test_scrapes_succeed(scraped: tuple[Prometheus, str]) -> None:
    prometheus, _ = scraped
    assert prometheus.await_scrape()["health"] == "up"


@pytest.mark.parametrize("view", VIEWS)
def test_promtool_finds_nothing_wrong(scraped: tuple[Prometheus, str], view: str) -> None:
    _, target = scraped
    text = http_text(f"http://{target}{view}").encode()
    done = subprocess.run(
        [require("promtool"), "check", "metrics"],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    complaints = done.stdout.decode().splitlines()
    assert [line for line in complaints if not line.startswith(RABBITMQS_OWN)] == []


def test_strangers_names_reach_prometheus(tmp_path: Path) -> None:
    """Metrics of queues with any name arrive, and never break the others."""
    require("prometheus")
    names = ['quote"', "back\\slash", "nul\0", "{brace}", "é 🐇", "# HELP x"]
    with node_addresses(tmp_path / "data", metrics=True) as addresses:
        port = int(addresses["amqp"].rpartition(":")[2])
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            for name in names:
                channel.queue_declare(name, durable=True)
        with Prometheus(tmp_path, addresses["prometheus"], "/metrics/per-object") as prometheus:
            prometheus.await_scrape()
            found = prometheus.query("rabbitmq_queue_messages")
    told = {sample["metric"]["queue"] for sample in found}
    expected = {name.replace("\0", "\\x00") for name in names}
    assert told == expected
