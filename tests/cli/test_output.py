"""Tables on a terminal, plain columns elsewhere."""

import io
import json
import re
import subprocess
import sys

import pytest

from leveret.cli.output import show_rows
from leveret.cli.session import Invocation, begin

ROWS: list[dict[str, object]] = [
    {"name": "[red]orders", "state": "paused", "messages": 7},
    {"name": "o" * 70, "state": "running", "messages": 12_345},
]
COLUMNS = ["name", "state", "messages"]


class Stream(io.StringIO):
    def __init__(self, *, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def shown(monkeypatch):
    """Return what is written, to a terminal of 60 columns unless it shall be none."""
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "60"), ("LINES", "20")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def show(rows, *, columns=COLUMNS, as_json=False, is_terminal=True):
        stream = Stream(is_terminal=is_terminal)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", stream)
            begin(Invocation(as_json=as_json))
            show_rows(rows, columns)
        return stream.getvalue()

    return show


def bare(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_gets_a_table(shown):
    text = shown(ROWS)
    lines = [line for line in bare(text).splitlines() if line.strip()]
    assert lines[0].split() == COLUMNS
    assert "\x1b[1m" in text  # the heads are bold
    assert lines[2].startswith("[red]orders")  # a name is no markup
    assert lines[2].rstrip().endswith("     7")
    assert lines[3].rstrip().endswith(" 12345")
    assert sum(len(word) for word in bare(text).split() if set(word) == {"o"}) == 70
    assert max(map(len, lines)) <= 60


def test_colour_is_for_states_and_for_who_wants_it(shown, monkeypatch):
    text = shown(ROWS)
    assert "\x1b[33mpaused" in text
    assert "\x1b[31m" not in text
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(ROWS)
    assert "\x1b[33m" not in text
    assert "paused" in text


def test_nothing_is_a_table_with_heads(shown):
    assert bare(shown([])).split()[:3] == COLUMNS


def test_json_is_json_on_a_terminal_too(shown):
    assert json.loads(shown(ROWS, as_json=True)) == ROWS


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_others_get_plain_columns(shown, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    assert shown(ROWS, is_terminal=term == "dumb").splitlines() == [
        f"{'name':70}  state    messages",
        f"{'[red]orders':70}  paused   7",
        f"{'o' * 70}  running  12345",
    ]


@pytest.mark.usefixtures("processes")
def test_only_who_watches_waits_for_rich():
    code = "import sys, leveret.cli.output; assert 'rich.table' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([*range(30), 31], "0-29,31"),
        ([1, 2, 5, 9], "1-2,5,9"),
        (list(range(1, 35, 2)), "1,3,5,… (17)"),
    ],
)
def test_staged_batches_are_shown_as_ranges_and_times(shown, numbers, text):
    row = {"writer": "w", "committed_at": 1_795_880_141_637, "staged": numbers}
    row["staged_since"] = None
    lines = shown([row], columns=list(row), is_terminal=False).splitlines()
    assert lines[1].split() == ["w", "2026-11-28T15:35:41.637Z", *text.split()]
    assert json.loads(shown([row], columns=list(row), as_json=True)) == [row]
