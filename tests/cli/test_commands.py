"""The commands on the files of a stopped node, and on a running one."""

import asyncio
import sqlite3
import subprocess
import sys

import pytest

from leveret import __version__
from leveret.cli.session import DATA_DIR
from leveret.config import Configuration
from leveret.ports.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from leveret.storage.lock import DirectoryLock
from leveret.storage.metadata import SqliteMetadataStore
from tests.support.command_line import CommandLine


def test_first_command_finds_what_a_first_start_makes(leveret):
    assert leveret.json("user", "list") == [
        {"name": "guest", "tags": ["administrator"], "limits": {}}
    ]
    assert leveret("permission", "list").splitlines() == [
        "vhost  user   configure  write  read",
        "/      guest  .*         .*     .*",
    ]


def test_users(leveret):
    leveret("user", "add", "u", "--tag", "a", "--tag", "b", "--password-stdin", stdin="pw\n")
    leveret("user", "set-password", "u", "--password-stdin", stdin="other\n")
    leveret("user", "set-tags", "u", "c")
    assert leveret.json("user", "list")[1] == {
        "name": "u",
        "tags": ["c"],
        "limits": {},
    }
    leveret("user", "set", "u")
    leveret("user", "delete", "u")
    assert leveret("user", "list").splitlines() == ["name   tags", "guest  administrator"]


def test_vhosts(leveret):
    leveret("vhost", "add", "v", "--description", "for tests")
    assert "description and tags" in leveret(
        "vhost", "set", "v", "--description", "x", "--tag", "a"
    )
    told = leveret("vhost", "set", "v", "--description", "for more")
    assert told == "vhost 'v': replaced description\n"
    assert "state what" in leveret("vhost", "set", "v", status=2)
    assert leveret.json("vhost", "list")[1] == {
        "name": "v",
        "description": "for more",
        "tags": ["a"],
        "default_queue_type": "classic",
        "protected": False,
        "creates_queues": False,
        "limits": {},
    }
    assert leveret.json("vhost", "delete", "v") == {"ok": True}
    assert "no vhost 'v'" in leveret("vhost", "delete", "v", status=1)


@pytest.mark.parametrize(("set_", "clear"), [("set", "clear"), ("add", "delete")])
def test_permissions(leveret, set_, clear):
    leveret("vhost", "add", "v")
    leveret("permission", set_, "guest", "^a", "", ".*", "--vhost", "v")
    assert leveret.json("permission", "list", "--vhost", "v") == [
        {"vhost": "v", "user": "guest", "configure": "^a", "write": "", "read": ".*"}
    ]
    leveret("permission", clear, "guest", "--vhost", "v")
    assert leveret.json("permission", "list", "--vhost", "v") == []


def test_refusals_say_why_and_fail(leveret):
    assert "exists already" in leveret(
        "user", "add", "guest", "--password-stdin", stdin="x\n", status=1
    )
    assert "cannot be blank" in leveret(
        "user", "add", "u", "--password-stdin", stdin="\n", status=1
    )
    assert "not a regular expression" in leveret(
        "permission", "set", "guest", "(", "", "", status=1
    )


def test_a_password_is_read_from_a_pipe(leveret):
    leveret("user", "add", "u", stdin="pw\n")
    assert "no password on standard input" in leveret("user", "add", "v", status=1)
    assert "cannot be blank" in leveret("user", "add", "v", stdin="\n", status=1)
    hashed = leveret.json("hash-password", stdin="pw\n")
    assert hashed["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert hashed["password_hash"]


def test_the_last_administrator_is_not_lost_by_accident(leveret):
    for command in (("delete", "guest"), ("set-tags", "guest", "monitoring")):
        told = leveret("user", *command, status=1)
        assert "'guest' is the last administrator" in told
        assert "--yes" in told
    leveret("user", "set-tags", "guest", "administrator", "more")
    leveret("user", "add", "u", "--tag", "administrator", stdin="pw\n")
    leveret("user", "set-tags", "guest")
    leveret("user", "delete", "u", "--yes")


def test_missing_data_directory_is_not_made(tmp_path):
    told = CommandLine(tmp_path / "typo")("user", "list", status=1)
    assert "is not a data directory" in told
    assert not (tmp_path / "typo").exists()


def test_deleted_vhost_takes_its_resources_along(leveret, tmp_path):
    async def declare_in_two_vhosts():
        async with asyncio.TaskGroup() as group:
            store = await SqliteMetadataStore.open(tmp_path / "leveret.db", group.create_task)
            for vhost in ("v", "w"):
                store.put(QueueDefinition(vhost, "q"))
                store.put(ExchangeDefinition(vhost, "x", "fanout"))
                store.put(BindingDefinition(vhost, "x", "q", "queue"))
            await store.close()

    leveret("vhost", "add", "v")
    asyncio.run(declare_in_two_vhosts())
    leveret("vhost", "delete", "v")
    database = sqlite3.connect(tmp_path / "leveret.db")
    for table in ("queues", "exchanges", "bindings"):
        assert database.execute(f"SELECT DISTINCT vhost FROM {table}").fetchall() == [("w",)]
    database.close()


def test_version(leveret):
    assert leveret("--version") == f"leveret {__version__}\n"


def test_data_directory_has_the_configurations_default():
    assert Configuration().data_dir == DATA_DIR


def test_serve_names_a_bad_setting(leveret):
    assert "setting 'port'" in leveret("serve", "--port", "70000", status=1)


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_package_can_be_run_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "leveret", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"leveret {__version__}\n"


def test_a_command_reaches_a_running_node(node):
    leveret = CommandLine(node.data_dir)
    leveret("user", "add", "u", "--password-stdin", stdin="pw\n")
    assert "u" in [row["name"] for row in leveret.json("user", "list")]
    assert "no user 'none'" in leveret("user", "delete", "none", status=1)


def test_a_node_that_does_not_answer_is_said_so(tmp_path, leveret):
    with DirectoryLock(tmp_path):
        assert "no node answers" in leveret("user", "list", status=1)


@pytest.mark.parametrize("command", ["list", "redrive", "delete"])
def test_dead_letters_are_chosen_by_offset_or_by_message_id(leveret, command):
    said = leveret("dlq", command, "q.dlq", "--id", "0", status=1)
    assert "state --offset, as `dlq list` shows it, or --message-id" in said
