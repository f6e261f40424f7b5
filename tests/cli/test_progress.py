"""How far something has come, on a terminal and without one."""

import io
import sys

import pytest

from leveret.cli.progress import progress


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
