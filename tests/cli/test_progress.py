"""How far something has come, on a terminal and without one."""

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from leveret.cli.progress import progress
from tests.support.command_line import FREE_PORTS


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def seen_by(monkeypatch):
    def seen_by(stream, **options):
        monkeypatch.setenv("TERM", "xterm")
        with monkeypatch.context() as patched:  # during the test: pytest has its own before
            patched.setattr(sys, "stderr", stream)
            with progress("reading", **options) as bar:
                bar.total(10)
                bar.advance(5)
                bar.reach(10)
        return stream.getvalue()

    return seen_by


def test_a_terminal_sees_it(seen_by):
    seen = seen_by(Terminal())
    assert "reading" in seen
    assert "100%" in seen


def test_nobody_else_does(seen_by):
    assert seen_by(Terminal(), shown=False) == ""
    assert seen_by(io.StringIO()) == ""


def run_watched(*command, stdin=b""):
    """Return what a command writes to standard output, a pipe, and standard error, a terminal."""
    ours, theirs = os.openpty()
    with ThreadPoolExecutor(1) as watcher:
        seen = watcher.submit(everything, ours)  # meanwhile: a terminal's buffer is small
        try:
            result = subprocess.run(
                [sys.executable, "-m", "leveret", *command],
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=theirs,
                env={**os.environ, **FREE_PORTS, "TERM": "xterm"},
                check=False,
            )
        finally:
            os.close(theirs)
        return result.stdout.decode(), seen.result()


def everything(terminal):
    """Return what is written to a terminal until nobody can write any more."""
    seen = b""
    with os.fdopen(terminal, "rb") as stream, suppress(OSError):
        while part := stream.read1():
            seen += part
    return seen.decode()


QUEUES = json.dumps({"queues": [{"vhost": "/", "name": f"q{number}"} for number in range(500)]})
LONG = pytest.mark.parametrize(
    ("command", "stdin", "what"),
    [
        (("definitions", "import", "-"), QUEUES, "importing"),
        (("doctor", "--deep"), "", "reading logs"),
    ],
)


@LONG
@pytest.mark.usefixtures("processes")
def test_long_work_shows_on_a_terminal_that_it_goes_on(tmp_path, command, stdin, what):
    told, seen = run_watched(*command, "--data-dir", tmp_path, stdin=stdin.encode())
    assert what in seen
    assert what not in told
    assert "\x1b" not in told


@LONG
def test_long_work_shows_nothing_of_it_in_a_pipe(leveret, command, stdin, what):
    result = leveret.run(*command, stdin=stdin, TERM="xterm", **FREE_PORTS)
    assert result.stdout
    assert what not in result.output
    assert "\x1b" not in result.output
