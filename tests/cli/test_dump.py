"""`leveret dump` on files that a store has written."""

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leveret.cli.app import app
from leveret.core.routing.message import MadeMessage
from tests.storage.harness import open_log, put, store_at
from tests.storage.keys import MASTER

SEALED = Path(__file__).parent.parent / "golden" / "log-v3"
THEN = "2023-11-14T22:13:20.000Z"


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


def dump(*arguments, status=0, env=None):
    result = CliRunner().invoke(app, ["dump", *map(str, arguments)], env=env)
    assert result.exit_code == status, result.output
    return result


def rows(*arguments, kind=None, **options):
    lines = dump(*arguments, "--json", **options).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return [row for row in found if kind is None or row["type"] == kind]


def test_people_see_the_file_its_batches_and_their_messages(segment):
    assert dump(segment).output.splitlines() == [
        "00000000000000000000.log: 385 bytes, begins with offset 0",
        "",
        f"byte 0: checkpoint, 65 bytes, at offset 0, {THEN}, CONTROL, checksum ok",
        "  settled: nothing",
        "",
        f"byte 65: messages, 138 bytes, offsets 0 to 1, {THEN} to {THEN}, PERSISTENT, checksum ok",
        f"  0  {THEN}  PERSISTENT",
        '    exchange "x", routing key "key"',
        '    body: 1 bytes "a"',
        f"  1  {THEN}  PERSISTENT",
        '    exchange "x", routing key "key"',
        '    body: 1 bytes "b"',
        "",
        f"byte 203: settlements, 81 bytes, at offset 2, {THEN}, CONTROL, checksum ok",
        "  settled: 0",
        "",
        f"byte 284: messages, 101 bytes, offsets 2 to 2, {THEN} to {THEN}, PERSISTENT, checksum ok",
        f"  2  {THEN}  PERSISTENT",
        '    exchange "x", routing key "key"',
        '    body: 1 bytes "c"',
    ]


def test_programs_get_an_object_a_line(segment):
    (head,) = rows(segment, kind="segment")
    assert (head["bytes"], head["first"], head["generation"]) == (385, 0, 0)
    batches = rows(segment, kind="batch")
    kinds = ["checkpoint", "messages", "settlements", "messages"]
    assert [row["kind"] for row in batches] == kinds
    assert [row["settled"] for row in batches] == [[], None, [[0, 1]], None]
    assert {row["checksum"] for row in batches} == {"ok"}
    assert [row["payload"] for row in rows(segment, kind="record")] == ["a", "b", "c"]


def test_batches_alone(segment):
    assert not rows(segment, "--batches", kind="record")
    assert "exchange" not in dump(segment, "--batches").output


@pytest.mark.parametrize(
    ("chosen", "offsets"), [(("--from", 1), [1, 2]), (("--to", 0), [0]), (("--from", 9), [])]
)
def test_a_part_of_the_offsets(segment, chosen, offsets):
    assert [row["offset"] for row in rows(segment, *chosen, kind="record")] == offsets


async def one_message(directory, message):
    async with store_at(directory) as store:
        log = open_log(store)
        log.builder.add(message.flags, 0, b"", b"k\x1b[2J", message.header, message.body)
        log.append()
    (path,) = directory.rglob("*.log")
    return path


async def test_properties_flags_and_bodies(tmp_path):
    message = MadeMessage(b"", b"", {"shop": 7}, b"\xff\x00", persistent=True)
    path = await one_message(tmp_path, message)
    (record,) = rows(path, kind="record")
    assert record["flags"] == ["PERSISTENT", "HAS_HEADERS", "PUT_BACK"]
    assert record["properties"] == {"headers": {"shop": 7}, "delivery_mode": 2}
    assert (record["payload"], record["payload_encoding"]) == ("/wA=", "base64")
    assert rows(path, "--body", "hex", kind="record")[0]["payload"] == "ff00"
    assert "payload" not in rows(path, "--body", "length", kind="record")[0]
    text = dump(path).output
    assert 'headers: {"shop": 7}' in text
    assert "body: 2 bytes ff00" in text
    assert dump(path, "--body", "length").output.endswith("body: 2 bytes\n")


async def test_a_long_body_is_cut_and_nothing_in_it_steers_the_terminal(tmp_path):
    body = "\x1b]0;mine\x07ü".encode() * 50
    path = await one_message(tmp_path, MadeMessage(b"", b"", {}, body))
    text = dump(path, "--body-bytes", 11).output
    assert "\x1b" not in text
    assert "\x07" not in text
    assert f'body: {len(body)} bytes "\\u001b]0;mine\\u0007ü"…' in text
    assert len(rows(path, kind="record")[0]["payload"]) == 10 * 50


def test_damage_is_shown_and_what_stands_behind_it(segment):
    raw = bytearray(segment.read_bytes())
    raw[-1] ^= 1
    raw[65] ^= 1
    segment.write_bytes(raw)
    result = dump(segment, "--json", status=1)
    batches = [json.loads(line) for line in result.stdout.splitlines()]
    batches = [row for row in batches if row["type"] == "batch"]
    assert [row["checksum"] for row in batches] == ["ok", "bad", "ok", "bad"]
    assert "first" not in batches[1]
    assert batches[3]["first"] == 2
    assert "leveret: damage at byte 65: " in result.stderr
    assert "leveret: damage at byte 284: " in result.stderr
    assert "byte 65: damaged" in dump(segment, status=1).stdout


def test_nothing_is_written_and_a_file_that_may_only_be_read_is_enough(segment):
    segment.chmod(0o400)
    before = segment.stat()
    dump(segment)
    after = segment.stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)


def test_files_that_are_none(tmp_path):
    assert "not the name of a segment" in dump(tmp_path / "none", status=1).stderr
    missing = tmp_path / "00000000000000000000.log"
    assert "No such file" in dump(missing, status=1).stderr


class TestEncrypted:
    @pytest.fixture
    def sealed(self, tmp_path):
        shutil.copytree(SEALED, tmp_path / "data")
        return tmp_path / "data" / "log" / "00000000000000000000.log"

    @pytest.fixture
    def key_file(self, tmp_path):
        file = tmp_path / "master"
        file.write_text(MASTER.secret.hex())
        file.chmod(0o600)
        return file

    def test_without_a_key_the_batches_are_seen_and_the_messages_are_not(self, sealed):
        found = rows(sealed)
        assert not [row for row in found if row["type"] == "record"]
        assert all(row["key"] for row in found if row.get("kind") == "messages")
        assert "--key-file" in dump(sealed).output

    def test_with_the_key_all_is_seen(self, sealed, key_file):
        assert rows(sealed, "--key-file", key_file, kind="record")

    def test_elsewhere_the_keyring_is_named(self, sealed, key_file, tmp_path):
        copy = tmp_path / sealed.name
        shutil.copy(sealed, copy)
        assert not rows(copy, "--key-file", key_file, kind="record")
        data = sealed.parent.parent
        assert rows(copy, "--key-file", key_file, "--data-dir", data, kind="record")

    def test_a_wrong_key_is_said_so(self, sealed):
        env = {"LEVERET_ENCRYPTION_KEY": "ab" * 32}
        assert "belongs to the master key" in dump(sealed, status=1, env=env).stderr


def test_whatever_byte_is_wrong_the_rest_is_shown(segment):
    sound = segment.read_bytes()[:203]
    offset_of_batch = {*range(8, 16), *range(73, 81)}  # written last, and not in the checksum
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 0x80
        segment.write_bytes(damaged)
        result = CliRunner().invoke(app, ["dump", *["--json"] * (position % 2), str(segment)])
        assert isinstance(result.exception, SystemExit | None), (position, result.exception)
        assert result.exit_code == (0 if position in offset_of_batch else 1)
        assert ("damage at byte" in result.stderr) == bool(result.exit_code)


def test_whatever_it_is_cut_to(segment):
    sound = segment.read_bytes()
    for size in range(0, len(sound), 3):
        segment.write_bytes(sound[:size])
        result = CliRunner().invoke(app, ["dump", str(segment)])
        assert result.exit_code == (0 if size in {0, 65, 203, 284} else 1), result.exception


def test_what_is_no_file(tmp_path):
    pipe, directory = tmp_path / f"{0:020d}.log", tmp_path / f"{1:020d}.log"
    os.mkfifo(pipe)
    directory.mkdir()
    assert "0 bytes" in dump(pipe).output
    assert "Is a directory" in dump(directory, status=1).output
