"""`leveret top`, on a terminal and without one."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.cli.output import printable
from tests.support.command_line import CommandLine
from tests.support.node import node_in_thread
from tests.support.waiting import LIMIT_SECONDS


@pytest.fixture(scope="module")
def node(node):
    with node.connected() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for count, name in enumerate(("few", "more", "most"), start=1):
            channel.queue_declare(name, durable=True)
            for _ in range(count):
                channel.basic_publish("", name, b"m")
    return node


@pytest.fixture
def top(node):
    return CommandLine(node.data_dir, "top", "--interval", "0.1", "--once")


def test_one_look(top):
    shown = top()
    lines = shown.splitlines()
    assert lines[1] == "alarms: none"
    assert lines[2].startswith("published 0/s (0.0 MiB/s)   delivered 0/s (0.0 MiB/s)")
    assert lines[3].startswith("latency -   loop ")
    assert "3 queues" in lines[5]
    assert lines[6] == "messages 6 ready   0 unacknowledged"
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("sort", "names"), [("ready", ["most", "more", "few"]), ("name", ["few", "more", "most"])]
)
def test_one_look_for_programs(top, sort, names):
    seen = top.json("--sort", sort, "--limit", "2")
    assert [row["name"] for row in seen["queues_shown"]] == names[:2]
    assert seen["rates"]["messages_in"] == 0
    assert seen["queues"] == 3


def test_rates_are_those_of_the_window(top, channel):
    channel.queue_declare("busy", durable=True)
    with ThreadPoolExecutor(1) as watcher:
        look = watcher.submit(top.json, "--interval", "1")
        while not look.done():
            channel.basic_publish("", "busy", b"m")
            channel.basic_get("busy", auto_ack=True)
    seen = look.result()
    channel.queue_delete("busy")
    assert seen["rates"]["messages_in"] > 0
    assert seen["rates"]["messages_out"] > 0
    assert seen["latency_ms"]["p50"] is not None
    assert seen["queues_shown"][0]["name"] == "busy"
    assert seen["queues_shown"][0]["in_rate"] > 0


def command_on(data_dir):
    """The command as a process: what a terminal and its keys do to it."""
    return [sys.executable, "-m", "leveret", "top", "--data-dir", data_dir, "--interval", "0.1"]


@pytest.fixture
def command(node, processes):
    return command_on(node.data_dir)


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
        end = time.monotonic() + LIMIT_SECONDS
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self.handle], [], [], 0.1)[0]:
                self.shown += os.read(self.handle, 65_536)

    def press(self, key):
        os.write(self.handle, key)

    def status(self):
        end = time.monotonic() + LIMIT_SECONDS
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


@pytest.mark.smoke
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


@pytest.mark.usefixtures("processes")
def test_a_node_that_stops_is_said(tmp_path):
    with node_in_thread(tmp_path):
        terminal = Terminal(command_on(tmp_path))
        terminal.wait_for(b"now: in")
    assert terminal.status() == 1
    assert b"leveret: " in terminal.shown


def test_without_a_node_there_is_nothing_to_see(tmp_path):
    result = CommandLine(tmp_path).run("top", "--once", status=1)
    assert "no node is running on" in result.stderr


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\u202eb", "a\x7fb", "a\x9bb"])
def test_a_name_steers_no_terminal(name):
    assert printable(name).isprintable()
    assert printable(name).startswith("a\\u")
