"""`leveret doctor` on the files of a stopped node, and on a running one."""

import asyncio
import json
import os
import shutil
import socket
import stat
import time
from pathlib import Path

import pytest

from leveret.storage.files import RealFileSystem
from leveret.storage.lock import DirectoryLock
from leveret.storage.metadata import SqliteMetadataStore
from leveret.storage.state import LmdbStateStore
from tests.storage.harness import open_log, put, store_at
from tests.storage.keys import MASTER, encrypted_keyring
from tests.support.command_line import FREE_PORTS, CommandLine
from tests.support.node import node_in_thread


@pytest.fixture
def data_dir(tmp_path):
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def doctor(data_dir):
    return CommandLine(data_dir, "doctor", **FREE_PORTS)


@pytest.fixture
def checks(doctor):
    def run(*arguments, **options):
        rows = doctor.json(*arguments, **options)
        assert all(row["what"] and row["why"] and row["remedy"] for row in rows)
        return [row["check"] for row in rows]

    return run


@pytest.fixture
def logs(data_dir):
    async def write():
        async with asyncio.TaskGroup() as group:
            path = data_dir / "leveret.db"
            store = await SqliteMetadataStore.open(path, group.create_task)
            await store.close()
        async with store_at(data_dir, segment_bytes_max=400) as topics:
            log = open_log(topics)
            for _ in range(6):
                put(log, b"x" * 100)

    asyncio.run(write())
    return sorted(data_dir.rglob("*.log"))


def test_nothing_is_wrong_with_an_empty_directory(doctor, data_dir):
    assert doctor() == f"{data_dir}, whose node is stopped: nothing is wrong\n"
    assert doctor.json() == []


def test_a_warning_says_what_why_and_what_to_do(doctor, logs, data_dir):
    topic = f"{data_dir}/topics/%2F/orders~~i1"
    assert doctor(status=1) == (
        f"WARNING log.orphan: {topic}\n"
        "  belongs to no queue that is defined\n"
        "  Why it matters: it takes disk space, and nobody reads it: left by a crash while its "
        "queue was deleted, or by definitions that were lost\n"
        "  To do: make a queue of it again: `leveret adopt '%2F/orders~~i1' --queue NAME`; "
        "`leveret dump` shows what it holds. Remove it only if nothing in it is needed\n"
        f"{data_dir}, whose node is stopped: 0 errors, 1 warning\n"
    )


def test_an_error_is_the_status_and_comes_first(checks, logs):
    raw = bytearray(logs[0].read_bytes())
    raw[-1] ^= 1
    logs[0].write_bytes(raw)
    assert checks("--deep", status=2) == ["log.damaged", "log.orphan"]
    assert checks(status=1) == ["log.orphan"]


def test_definitions_that_are_gone(checks, data_dir, logs):
    (data_dir / "leveret.db").unlink()
    assert checks(status=2)[0] == "definitions.missing"


def test_who_else_may_look(checks, data_dir, logs):
    data_dir.chmod(0o755)
    (data_dir / "leveret.db").chmod(0o644)
    assert checks(status=1) == ["directory.mode", "directory.mode", "log.orphan"]


def test_a_port_that_is_taken(checks):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert checks(status=2, LEVERET_PORT=str(port)) == ["port.taken"]


def test_a_full_disk(checks, tmp_path):
    config = tmp_path / "leveret.toml"
    config.write_text(f"disk_free_bytes_min = {1 << 60}\n")
    assert checks("--config", config, status=2) == ["disk.space"]


def test_a_clock_that_was_set_back(checks, data_dir):
    file = data_dir / "notes"
    file.touch()
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    assert checks(status=2) == ["clock"]


def test_keys_need_their_master_key(checks, data_dir, tmp_path):
    encrypted_keyring(RealFileSystem(), data_dir)
    (data_dir / "keyring.json").chmod(0o600)
    assert checks(status=2) == ["definitions.missing", "keys.master"]
    file = tmp_path / "master"
    file.write_text(MASTER.secret.hex())
    file.chmod(0o600)
    assert checks("--key-file", file, status=2) == ["definitions.missing"]
    (data_dir / "keyring.json").write_text("nonsense")
    assert checks(status=2) == ["definitions.missing", "keys.unreadable"]


def test_a_wrong_setting_is_said(doctor, tmp_path):
    config = tmp_path / "leveret.toml"
    config.write_text("prot = 5\n")
    assert "unknown setting 'prot'" in doctor("--config", config, status=1)


def test_no_directory(tmp_path):
    doctor = CommandLine(tmp_path / "typo", "doctor")
    assert "is not a data directory" in doctor(status=1)


def test_a_node_that_does_not_answer(checks, data_dir):
    with DirectoryLock(data_dir):
        assert checks(status=2) == ["node.silent"]


def test_a_running_node(checks, data_dir):
    with node_in_thread(data_dir):
        assert set(checks("--deep", status=None)) <= {"loop.lag"}
    with node_in_thread(data_dir, disk_free_bytes_min=1 << 60):
        assert checks("--deep", status=2)[0] == "alarm.disk"


@pytest.fixture
def node_files(data_dir, logs):
    """Make the files of a node that ended: definitions, state and a log."""
    store = LmdbStateStore(data_dir / "state.lmdb", pytest.fail)
    store.write([(b"key %d" % number, bytes(1000)) for number in range(50)], durable=True)
    store.close()
    (data_dir / "lock").touch()
    return data_dir


def files_of(directory):
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[path] = status.st_mode, status.st_mtime_ns, content
    return found


def replaced(name, make):
    def do(data):
        target = data / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        make(target)

    return do


def in_log(name, make):
    return lambda data: make(next(data.rglob("*.log")).parent / name)


def nowhere(path):
    path.symlink_to("/nowhere/at/all")


def cut(name, size):
    return lambda data: os.truncate(data / name, size)


SEGMENT = "00000000000000099999.log"


@pytest.fixture
def examine(doctor, node_files):
    def examine(do, check):
        do(node_files)
        before = files_of(node_files)
        result = doctor.run("--deep", "--json", status=None)
        rows = json.loads(result.stdout)
        assert not check or check in {row["check"] for row in rows}
        severities = {row["severity"] for row in rows}
        assert result.exit_code == (2 if "error" in severities else 1)
        told = doctor(status=result.exit_code)
        assert all(line.isprintable() for line in told.splitlines())
        assert files_of(node_files) == before

    return examine


@pytest.mark.parametrize(
    ("do", "check"),
    [
        (replaced("extra", nowhere), ""),
        (replaced("extra", lambda path: path.symlink_to(path)), ""),
        (in_log(SEGMENT, nowhere), "directory.unreadable"),
        (in_log(SEGMENT, Path.mkdir), "log.unreadable"),
        (in_log(SEGMENT, os.mkfifo), ""),
        (in_log("\udcff\udcfe", Path.touch), "log.foreign"),
        (replaced("topics", Path.touch), "directory.unreadable"),
        (replaced("topics/file", Path.touch), "directory.unreadable"),
        (replaced("topics/%2F/file", Path.touch), "directory.unreadable"),
        (cut("leveret.db", 5000), "definitions.unreadable"),
        (replaced("leveret.db", os.mkfifo), "definitions.unreadable"),
        (replaced("leveret.db", Path.mkdir), "definitions.unreadable"),
        (replaced("leveret.db", nowhere), "definitions.missing"),
        (replaced("audit.db", os.mkfifo), "records.unreadable"),
        (replaced("keyring.json", os.mkfifo), "keys.unreadable"),
        (replaced("keyring.json", Path.mkdir), "keys.unreadable"),
        (replaced("keyring.json", lambda path: path.write_text("[" * 100_000)), "keys.unreadable"),
        (replaced("cluster.json", os.mkfifo), "cluster.unreadable"),
        (replaced("cluster.json", Path.mkdir), "cluster.unreadable"),
        (replaced("cluster.json", lambda path: path.write_text("{}")), "cluster.unreadable"),
        (replaced("cluster.json", nowhere), ""),
        (replaced("lock", Path.mkdir), "directory.lock"),
        (replaced("lock", os.mkfifo), "directory.lock"),
        (replaced("lock", nowhere), "directory.lock"),
        (replaced("lock", lambda _: None), ""),
    ],
)
def test_whatever_lies_there_is_told_and_left_as_it_is(examine, sound_state, do, check):
    examine(do, check)


# LMDB may kill the process that reads its file.
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("do", "check"),
    [
        (replaced("extra", nowhere), ""),
        (cut("state.lmdb/data.mdb", 10_000), "state.unreadable"),
        (cut("state.lmdb/data.mdb", 0), "state.unreadable"),
        (replaced("state.lmdb", Path.touch), "state.unreadable"),
        (replaced("state.lmdb/data.mdb", Path.mkdir), "state.unreadable"),
    ],
)
def test_state_that_kills_its_reader_is_told_and_left_as_it_is(examine, do, check):
    examine(do, check)


def test_a_directory_that_no_node_has_used_stays_empty(doctor, data_dir):
    doctor()
    assert not any(data_dir.iterdir())
