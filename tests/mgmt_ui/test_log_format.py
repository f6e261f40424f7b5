import json
import logging
import subprocess
import sys

import pytest

from leveret.mgmt_ui.log_format import formatter
from tests.support.waiting import LIMIT_SECONDS


def record(message, *args, exc_info=None):
    made = logging.LogRecord("leveret.node", logging.ERROR, "f.py", 1, message, args, exc_info)
    made.created = 1_772_357_400.125
    return made


def test_text_is_what_people_read():
    line = formatter("text", "leveret@test").format(record("no space in %s", "/data"))
    assert line.endswith(" ERROR leveret.node: no space in /data")


def test_json_says_when_who_and_what():
    line = formatter("json", "leveret@test").format(record("no space in %s", "/data"))
    assert json.loads(line) == {
        "time": "2026-03-01T09:30:00.125Z",
        "level": "error",
        "logger": "leveret.node",
        "message": "no space in /data",
        "node": "leveret@test",
    }


@pytest.mark.parametrize("name", ['a\nb", "level": "info', "\x1b[31mred", "\ud800", "\u2028é"])
def test_nothing_a_stranger_names_makes_a_second_line(name):
    line = formatter("json", "leveret@test").format(record("user %r or %s", name, name))
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert json.loads(line)["message"] == f"user {name!r} or {name}"
    assert json.loads(line)["level"] == "error"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "a\n2026-03-01 09:30:00,125 INFO leveret.node: forged",
            "a\\n2026-03-01 09:30:00,125 INFO",
        ),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\ud800", "\\ud800"),
        ("\u2028é", "\\u2028é"),
    ],
)
def test_nothing_a_stranger_names_makes_a_second_line_of_text(name, shown):
    line = formatter("text", "leveret@test").format(record("group '%s'", name))
    assert len(line.splitlines()) == 1
    assert f" ERROR leveret.node: group '{shown}" in line


def test_exception_is_a_field():
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        line = formatter("json", "n").format(record("failed", exc_info=sys.exc_info()))
    assert len(line.splitlines()) == 1
    text = json.loads(line)["exception"]
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_every_line_of_a_node_is_json(tmp_path):
    command = [sys.executable, "-m", "leveret", "serve", "--data-dir", str(tmp_path)]
    command += ["--port", "0", "--http-port", "0", "--prometheus-port", "-1"]
    command += ["--log-format", "json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert "amqp" in json.loads(process.stdout.readline())["ready"]
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any(line["message"].startswith("stopping") for line in lines)
    assert lines[0]["node"].startswith("leveret@")
