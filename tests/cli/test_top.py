"""`leveret top`, on a terminal and without one."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pika
import pytest

from leveret.cli.output import printable
from tests.process import running_node

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def port(data_dir):
    with running_node(data_dir) as port:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for count, name in enumerate(("few", "more", "most"), start=1):
                channel.queue_declare(name, durable=True)
                for _ in range(count):
                    channel.basic_publish("", name, b"m")
        yield port


@pytest.fixture
def command(data_dir, port):
    return [sys.executable, "-m", "leveret", "top", "--data-dir", data_dir, "--interval", "0.1"]


def test_one_look(command):
    done = subprocess.run([*command, "--once"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[1] == "alarms: none"
    assert lines[2].startswith("published 0/s (0.0 MiB/s)   delivered 0/s (0.0 MiB/s)")
    assert lines[3].startswith("latency -   loop ")
    assert "3 queues" in lines[5]
    assert lines[6] == "messages 6 ready   0 unacknowledged"
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("sort", "names"), [("ready", ["most", "more", "few"]), ("name", ["few", "more", "most"])]
)
def test_one_look_for_programs(command, sort, names):
    arguments = [*command, "--once", "--json", "--sort", sort, "--limit", "2"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert [row["name"] for row in seen["queues_shown"]] == names[:2]
    assert seen["rates"]["messages_in"] == 0
    assert seen["queues"] == 3


def test_rates_are_those_of_the_window(command, port):
    look = [*command[:-1], "2", "--once", "--json"]
    with (
        subprocess.Popen(look, stdout=subprocess.PIPE, text=True) as process,
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("busy", durable=True)
        while process.poll() is None:
            channel.basic_publish("", "busy", b"m")
            channel.basic_get("busy", auto_ack=True)
        seen = json.loads(process.stdout.read())
        channel.queue_delete("busy")
    assert seen["rates"]["messages_in"] > 0
    assert seen["rates"]["messages_out"] > 0
    assert seen["latency_ms"]["p50"] is not None
    assert seen["queues_shown"][0]["name"] == "busy"
    assert seen["queues_shown"][0]["in_rate"] > 0


def test_without_a_terminal_one_text_follows_the_other(command):
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        seen = 0
        while seen < 2:
            seen += "alarms: none" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 0


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, command, term="xterm"):
        self.process_id, self.handle = pty.fork()
        if not self.process_id:
            environment = {**os.environ, "TERM": term, "LINES": "24", "COLUMNS": "100"}
            os.execvpe(command[0], [str(word) for word in command], environment)
        self.shown = b""

    def wait_for(self, text):
        end = time.monotonic() + SECONDS_MAX
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self.handle], [], [], 0.1)[0]:
                self.shown += os.read(self.handle, 65_536)

    def press(self, key):
        os.write(self.handle, key)

    def status(self):
        end = time.monotonic() + SECONDS_MAX
        while True:
            try:  # else it would wait for somebody to read what it writes
                while select.select([self.handle], [], [], 0)[0]:
                    self.shown += os.read(self.handle, 65_536)
            except OSError:
                pass  # it has ended
            ended, status = os.waitpid(self.process_id, os.WNOHANG)
            if ended:
                os.close(self.handle)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, "it does not end"
            time.sleep(0.05)


def test_on_a_terminal_it_draws_sorts_and_leaves(command):
    terminal = Terminal(command)
    terminal.wait_for(b"now: in")
    assert b"\x1b[?1049h" in terminal.shown  # on a screen of its own
    assert b"most" in terminal.shown
    terminal.press(b"r")
    terminal.wait_for(b"now: ready")
    terminal.press(b"q")
    assert terminal.status() == 0
    assert b"\x1b[?1049l" in terminal.shown


def test_a_dumb_terminal_gets_plain_text(command):
    terminal = Terminal(command, term="dumb")
    terminal.wait_for(b"alarms: none")
    terminal.wait_for(b"most")
    assert b"\x1b" not in terminal.shown
    terminal.press(b"\x03")
    assert terminal.status() == 0


def test_a_node_that_stops_is_said(tmp_path):
    with running_node(tmp_path):
        command = [sys.executable, "-m", "leveret", "top", "--data-dir", tmp_path]
        terminal = Terminal([*command, "--interval", "0.1"])
        terminal.wait_for(b"now: in")
    assert terminal.status() == 1
    assert b"leveret: " in terminal.shown


def test_without_a_node_there_is_nothing_to_see(tmp_path):
    command = [sys.executable, "-m", "leveret", "top", "--once", "--data-dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "no node is running on" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\u202eb", "a\x7fb", "a\x9bb"])
def test_a_name_steers_no_terminal(name):
    assert printable(name).isprintable()
    assert printable(name).startswith("a\\u")
