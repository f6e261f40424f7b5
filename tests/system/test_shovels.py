"""Shovels between processes: nothing that is confirmed gets lost, whichever of them is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import httpx
import pika
import pytest

from tests.process import STOP_SECONDS_MAX
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_SECONDS, wait_until

COUNT = 400
LOGIN = ("guest", "guest")


class Node:
    """A node on ports that it keeps over kills."""

    def __init__(self, directory):
        self.directory = directory
        self.port, self.http_port = free_ports(2)
        self.uri = f"amqp://guest:guest@127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = [sys.executable, "-m", "leveret", "serve", "--data-dir", str(self.directory)]
        command += ["--port", str(self.port), "--http-port", str(self.http_port)]
        self.process = subprocess.Popen(
            [*command, "--prometheus-port", "0"], stdout=subprocess.PIPE, text=True
        )
        ready = self.process.stdout.readline()
        assert ready.startswith("ready "), ready

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS_MAX)
        self.process.stdout.close()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(STOP_SECONDS_MAX) == 0
        self.process.stdout.close()

    def ask(self, method, path, body=None):
        url = f"http://127.0.0.1:{self.http_port}/api/{path}"
        return httpx.request(method, url, json=body, auth=LOGIN, timeout=PATIENCE_SECONDS)

    def shovels(self):
        return {row["name"]: row for row in self.ask("GET", "shovels").json()}

    def state(self, name):
        return self.shovels().get(name, {}).get("state")

    def count(self, queue):
        answer = self.ask("GET", f"queues/%2F/{queue}")
        return answer.json().get("messages") if answer.status_code == 200 else None

    @contextmanager
    def channel(self):
        with pika.BlockingConnection(pika.ConnectionParameters(port=self.port)) as connection:
            yield connection.channel()

    def publish(self, queue, first, count, **properties):
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True)
            channel.confirm_delivery()
            for number in range(first, first + count):
                said = pika.BasicProperties(delivery_mode=2, **properties)
                channel.basic_publish("", queue, str(number).encode(), said)

    def bodies(self, queue):
        with self.channel() as channel:
            found = []
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(int(got[2]))
            return found

    def shovel(self, name, **value):
        value = {key.replace("_", "-"): each for key, each in value.items()}
        answer = self.ask("PUT", f"parameters/shovel/%2F/{name}", {"value": value})
        assert answer.status_code in {201, 204}, answer.text


@pytest.fixture
def nodes(tmp_path):
    """Start nodes, and stop those that still run."""
    with ExitStack() as stack:

        def start(name):
            node = Node(tmp_path / name)
            stack.callback(node.stop)
            return node

        yield start


def test_messages_move_and_the_shovel_ends_itself(nodes, tmp_path):
    node = nodes("a")
    node.publish("source", 0, COUNT, user_id="guest", app_id="before")
    node.shovel(
        "move",
        src_uri="amqp://",
        src_queue="source",
        src_delete_after="queue-length",
        dest_uri=["amqp://nobody:hush@127.0.0.1:1", node.uri],
        dest_queue="moved",
        dest_queue_args={"x-queue-type": "quorum"},
        dest_add_forward_headers=True,
        dest_publish_properties={"app_id": "after"},
        reconnect_delay=0.1,
    )
    wait_until(lambda: node.count("moved") == COUNT, "all is moved")
    wait_until(lambda: not node.shovels(), "the shovel is gone")
    assert node.ask("GET", "parameters/shovel").json() == []
    assert node.count("source") == 0
    with node.channel() as channel:
        _, properties, body = channel.basic_get("moved")
    assert (properties.user_id, properties.app_id, body) == ("guest", "after", b"0")
    (route,) = properties.headers["x-shovelled"]
    assert (route["shovel-name"], route["src-queue"]) == ("move", "source")
    assert "hush" not in json.dumps(properties.headers)


def test_passwords_are_nowhere_to_be_seen(nodes, capfd):
    node = nodes("a")
    uri = f"amqp://guest:hush@127.0.0.1:{node.port}"
    node.shovel("wrong", src_uri=uri, src_queue="a", dest_uri="amqp://", dest_queue="b")
    wait_until(lambda: node.state("wrong") == "terminated", "the login is refused")
    row = node.shovels()["wrong"]
    assert "ACCESS_REFUSED" in row["reason"]
    shown = node.ask("GET", "parameters/shovel/%2F/wrong").json()
    assert shown["value"]["src-uri"] == uri.replace("hush", "…")
    assert node.ask("GET", "shovels/vhost/%2F/wrong").json() == shown
    # What comes back as it was shown is what it was.
    node.shovel("wrong", **{**shown["value"], "reconnect-delay": 0})
    (exported,) = node.ask("GET", "definitions").json()["parameters"]
    assert exported["value"]["src-uri"] == uri
    for text in (json.dumps(row), json.dumps(shown), "".join(capfd.readouterr())):
        assert "hush" not in text


def test_a_queue_that_must_be_there_is_waited_for(nodes):
    node = nodes("a")
    node.publish("source", 0, 1)
    node.shovel(
        "wait",
        src_uri="amqp://",
        src_queue="source",
        dest_uri="amqp://",
        dest_queue="later",
        dest_predeclared=True,
        reconnect_delay=0.1,
    )
    wait_until(lambda: node.state("wait") == "terminated", "it waits")
    assert "no queue 'later'" in node.shovels()["wait"]["reason"]
    node.publish("later", 7, 1)
    wait_until(lambda: node.count("later") == 2, "it goes on")
    assert node.state("wait") == "running"
    assert node.ask("DELETE", "shovels/vhost/%2F/wait/restart").status_code == 204
    wait_until(lambda: node.state("wait") == "running", "it runs again")
    assert node.ask("DELETE", "shovels/vhost/%2F/wait").status_code == 204
    assert node.state("wait") is None


def test_from_an_exchange_without_acknowledgements(nodes):
    node = nodes("a")
    node.shovel(
        "copy",
        src_uri="amqp://",
        src_exchange="amq.topic",
        src_exchange_key="#",
        dest_uri="amqp://",
        dest_exchange="amq.fanout",
        ack_mode="no-ack",
    )
    wait_until(lambda: node.state("copy") == "running", "it runs")
    with node.channel() as channel:
        channel.queue_declare("q")
        channel.queue_bind("q", "amq.fanout")
        for number in range(COUNT):
            channel.basic_publish("amq.topic", "k", str(number).encode())
        wait_until(lambda: node.count("q") == COUNT, "all is copied")
    assert node.bodies("q") == list(range(COUNT))


def test_a_destination_queue_that_is_deleted_swallows_nothing(nodes):
    node = nodes("a")
    node.shovel(
        "s",
        src_uri="amqp://",
        src_queue="source",
        dest_uri="amqp://",
        dest_queue="target",
        reconnect_delay=0.1,
    )
    wait_until(lambda: node.state("s") == "running", "it runs")
    assert node.ask("DELETE", "queues/%2F/target").status_code == 204
    node.publish("source", 0, 5)
    wait_until(lambda: node.count("target") == 5, "it is declared again")


@pytest.mark.parametrize("victim", ["source", "destination", "shovel"])
def test_nothing_is_lost_when_a_node_is_killed(nodes, victim):
    source, destination, middle = nodes("source"), nodes("destination"), nodes("shovel")
    source.publish("q", 0, COUNT)
    middle.shovel(
        "s",
        src_uri=source.uri,
        src_queue="q",
        src_prefetch_count=20,
        dest_uri=destination.uri,
        dest_queue="q",
        reconnect_delay=0.1,
    )
    wait_until(lambda: (destination.count("q") or 0) > 20, "it moves")
    killed = {"source": source, "destination": destination, "shovel": middle}[victim]
    killed.kill()
    killed.start()
    source.publish("q", COUNT, 5)
    wait_until(lambda: source.count("q") == 0, "the source is empty")
    wait_until(lambda: middle.shovels()["s"].get("pending") == 0, "nothing is on its way")
    assert set(destination.bodies("q")) == set(range(COUNT + 5))
