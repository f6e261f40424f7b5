"""`leveret log dump` on files that a store has written."""

import json

import pytest
from typer.testing import CliRunner

from leveret.cli.app import app
from tests.storage.harness import open_log, put, store_at


@pytest.fixture
async def segment(tmp_path):
    async with store_at(tmp_path) as store:
        log = open_log(store)
        put(log, b"a", b"b")
        log.settle([(0, 1)])
        log.write_settlements()
        put(log, b"c")
    (path,) = tmp_path.rglob("*.log")
    return path


def dump(*arguments, status=0):
    result = CliRunner().invoke(app, ["log", "dump", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def test_batches_in_columns(segment):
    assert [line.split() for line in dump(segment).output.splitlines()] == [
        ["position", "bytes", "first", "stop", "count", "kind", "checksum", "settled", "key"],
        ["0", "65", "0", "0", "0", "checkpoint", "ok"],
        ["65", "138", "0", "2", "2", "messages", "ok"],
        ["203", "81", "2", "2", "0", "settlements", "ok", "0-0"],
        ["284", "101", "2", "3", "1", "messages", "ok"],
    ]


def test_batches_in_json(segment):
    rows = json.loads(dump(segment, "--json").stdout)
    assert [row["kind"] for row in rows] == ["checkpoint", "messages", "settlements", "messages"]
    assert [row["settled"] for row in rows] == [[], None, [[0, 1]], None]
    assert {row["checksum"] for row in rows} == {"ok"}


def test_damage_is_shown_and_what_stands_behind_it(segment):
    raw = bytearray(segment.read_bytes())
    raw[-1] ^= 1
    raw[65] ^= 1
    segment.write_bytes(raw)
    result = dump(segment, "--json", status=1)
    rows = json.loads(result.stdout)
    assert [row["checksum"] for row in rows] == ["ok", "bad", "ok", "bad"]
    assert (rows[1]["first"], rows[3]["first"]) == ("", 2)
    assert result.stderr.count("leveret: damage at byte") == 2


def test_a_file_that_is_not_there(tmp_path):
    assert "No such file" in dump(tmp_path / "none.log", status=1).stderr
