"""Problems of files, found without changing any."""

import shlex
import sqlite3

import pytest

from leveret.ports.check_results import Severity
from leveret.ports.definitions import Definitions, QueueDefinition, VhostDefinition
from leveret.storage import lineage
from leveret.storage.cluster_file import ClusterFile
from leveret.storage.files import ReadOnlyFiles, RealFileSystem
from leveret.storage.health_checks import (
    LogCheck,
    check_cluster_file,
    check_database,
    check_definitions_age,
    check_records,
    check_set_aside,
    check_state,
)
from leveret.storage.lineage import DEFINITIONS_LOG
from leveret.storage.metadata import SqliteMetadataStore
from leveret.storage.names import log_key
from leveret.storage.schema import MIGRATIONS
from leveret.storage.state import LmdbStateStore, MemoryStateStore
from tests.storage.harness import open_log, put, store_at
from tests.storage.keys import encrypted_keyring

KNOWN = Definitions(
    vhosts=[VhostDefinition("/")], queues=[QueueDefinition("/", "orders", incarnation="i1")]
)


@pytest.fixture
async def logs(tmp_path):
    """A log of several sealed segments and one that is written to."""
    async with store_at(tmp_path, segment_bytes_max=400) as store:
        log = open_log(store)
        for _ in range(6):
            put(log, b"x" * 100)
    return tmp_path


def checked(data, definitions=KNOWN, key_ids=(), *, deep=False, last=True):
    check = LogCheck(ReadOnlyFiles(), data, definitions, key_ids, deep=deep, last=last)
    return [(finding.check, finding.severity) for finding in check.run()]


def segments(data):
    return sorted(data.rglob("*.log"))


def damage(path, position):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


def test_sound_logs_have_nothing(logs):
    assert len(segments(logs)) > 2
    assert checked(logs) == checked(logs, deep=True) == []


def test_damage_at_the_beginning_is_found_without_reading_all(logs):
    damage(segments(logs)[0], 0)
    assert checked(logs) == [("log.damaged", Severity.ERROR)]


def test_damage_further_on_is_found_by_reading_all(logs):
    damage(segments(logs)[0], -1)
    assert checked(logs) == []
    assert checked(logs, deep=True) == [("log.damaged", Severity.ERROR)]


def test_a_segment_that_lacks_its_end_is_damaged(logs):
    with segments(logs)[0].open("r+b") as file:
        file.truncate(file.seek(0, 2) - 150)
    assert checked(logs, deep=True) == [("log.damaged", Severity.ERROR)]


def test_damage_of_what_a_clean_stop_has_left_is_an_error(logs):
    damage(segments(logs)[-1], -1)
    assert checked(logs, deep=True) == [("log.damaged", Severity.ERROR)]


def test_what_was_being_written_in_a_crash_is_no_error(logs):
    segments(logs)[-1].with_suffix(".index").unlink()  # a clean stop writes it
    damage(segments(logs)[-1], -1)
    assert checked(logs, deep=True) == [("log.damaged", Severity.WARNING)]
    assert checked(logs, deep=True, last=False) == []


def test_logs_of_nobody(logs):
    nobody = Definitions(vhosts=[VhostDefinition("/")])
    assert checked(logs, nobody) == [("log.orphan", Severity.WARNING)]
    assert checked(logs, nobody, last=False) == []


def test_internal_topics_of_a_deleted_virtual_host(logs):
    topic = next(logs.glob("topics/*/*"))
    topic.rename(topic.with_name("leveret.delayed~~internal-1"))
    now = Definitions(vhosts=[VhostDefinition("/", incarnation="internal-1")])
    assert checked(logs, now) == []
    made_anew = Definitions(vhosts=[VhostDefinition("/", incarnation="internal-2")])
    assert checked(logs, made_anew) == [("log.orphan", Severity.WARNING)]


def test_logs_of_a_member_are_those_of_its_cluster(logs):
    ClusterFile(RealFileSystem(), logs).change(cluster="c1", node=1)
    assert checked(logs, Definitions()) == []


def test_logs_of_a_former_member_are_those_of_its_cluster_until_it_has_the_definitions(logs):
    definitions = logs / "topics" / log_key(*DEFINITIONS_LOG[:4])
    definitions.mkdir(parents=True)
    assert checked(logs) == []
    assert checked(logs, Definitions()) == [("log.orphan", Severity.WARNING)]
    (logs / "leveret.db").touch()
    assert checked(logs, Definitions()) == []
    definitions.rmdir()
    assert checked(logs, Definitions()) == [("log.orphan", Severity.WARNING)]


def test_a_file_of_a_cluster_that_cannot_be_read(logs):
    assert list(check_cluster_file(logs)) == []
    (logs / "cluster.json").write_text("{}")
    (finding,) = check_cluster_file(logs)
    assert (finding.check, finding.severity) == ("cluster.unreadable", Severity.ERROR)
    assert checked(logs, Definitions()) == []


def test_files_of_nobody(logs):
    (segments(logs)[0].parent / "notes.txt").write_text("mine")
    assert checked(logs) == [("log.foreign", Severity.WARNING)]


async def test_a_key_that_is_gone(tmp_path):
    keyring = encrypted_keyring(RealFileSystem(), tmp_path)
    async with store_at(tmp_path, keyring=keyring) as store:
        put(open_log(store), b"secret")
    assert checked(tmp_path, key_ids={key.id for key in keyring.keys}) == []
    assert checked(tmp_path) == [("keys.missing", Severity.ERROR)]


def test_it_says_how_far_it_has_come(logs):
    seen = []
    check = LogCheck(ReadOnlyFiles(), logs, KNOWN, (), deep=True, last=True, advance=seen.append)
    assert list(check.run()) == []
    assert sum(seen) == check.total_bytes > 0


@pytest.fixture
async def database(tmp_path):
    path = tmp_path / "leveret.db"
    store = await SqliteMetadataStore.open(path, lambda work: work.close())
    store.put(QueueDefinition("/", "orders", incarnation="i1"))
    await store.close()
    return path


@pytest.mark.parametrize("deep", [False, True])
def test_sound_definitions_are_read(database, deep):
    found, definitions = check_database(database, deep=deep)
    assert found == []
    assert [queue.name for queue in definitions.queues] == ["orders"]


def test_definitions_of_an_older_release_are_read(tmp_path):
    with sqlite3.connect(tmp_path / "leveret.db") as database:
        for statement in MIGRATIONS[0]:
            database.execute(statement)
        database.execute("INSERT INTO vhosts VALUES ('/', 'the first', '[]', 'classic')")
        database.execute("INSERT INTO queues VALUES ('/', 'orders', 1, 0, 0, '{}', 'i1')")
        database.execute("PRAGMA user_version = 1")
    database.close()
    found, definitions = check_database(tmp_path / "leveret.db", deep=False)
    assert found == []
    assert definitions == Definitions(
        vhosts=[VhostDefinition("/", "the first")],
        queues=[QueueDefinition("/", "orders", incarnation="i1")],
    )


def test_definitions_that_cannot_be_read(database):
    database.write_bytes(b"no database" * 1000)
    found, definitions = check_database(database, deep=False)
    assert [finding.check for finding in found] == ["definitions.unreadable"]
    assert definitions == Definitions()


def test_definitions_of_a_newer_release(database):
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    found, _ = check_database(database, deep=False)
    assert [finding.check for finding in found] == ["definitions.version"]


def test_definitions_that_are_older_than_noted(database):
    state = MemoryStateStore()
    state.write([(lineage.KEY, lineage.NOTE.pack(bytes(16), 9))], durable=True)
    (finding,) = check_definitions_age(database, state)
    assert (finding.check, finding.severity) == ("definitions.older", Severity.ERROR)
    ClusterFile(RealFileSystem(), database.parent).change(cluster="c1", node=1)
    assert list(check_definitions_age(database, state)) == []  # a member has them from the log


def test_records_beside_the_definitions(tmp_path, database):
    assert check_records(tmp_path / "none.db", deep=True) == []
    assert check_records(database, deep=True) == []
    database.write_bytes(b"no database" * 1000)
    (finding,) = check_records(database, deep=False)
    assert (finding.check, finding.severity) == ("records.unreadable", Severity.WARNING)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.usefixtures("processes")
def test_state(tmp_path, deep):
    path = tmp_path / "state.lmdb"
    assert check_state(path, deep=deep) == ([], {})
    state = LmdbStateStore(path, lambda _: None)
    state.write([(b"key", b"value"), (b"log/orders", b"mark")], durable=True)
    state.close()
    assert check_state(path, deep=deep) == ([], {b"log/orders": b"mark"})
    (path / "data.mdb").write_bytes(b"no environment" * 1000)
    (finding,), _ = check_state(path, deep=deep)
    assert (finding.check, finding.severity) == ("state.unreadable", Severity.WARNING)


def test_what_was_set_aside(logs):
    assert list(check_set_aside(logs)) == []
    first = segments(logs)[0]
    (logs / "state.lmdb.damaged-1").mkdir()
    first.with_name(first.name + ".damaged-1").write_bytes(b"12345")
    first.with_suffix(".doubtful").touch()
    kept, doubtful = check_set_aside(logs)
    assert (kept.check, doubtful.check) == ("damage.kept", "flush.failed")
    assert kept.what.startswith("2 damaged files (5 bytes)")
    assert checked(logs) == []


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("leveret.db.damaged-1", "`sqlite3 {path} .recover`"),
        ("audit.db.damaged-2", "`sqlite3 {path} .recover`"),
        ("topics/%2F/orders/0/00000000000000000000.log.damaged-1", "`leveret dump {path}`"),
        ("state.lmdb.damaged-1", "`mv {path} ELSEWHERE`"),
    ],
)
def test_what_was_set_aside_is_looked_into_with_what_reads_it(tmp_path, name, remedy):
    path = tmp_path / "my data" / name
    path.parent.mkdir(parents=True)
    path.touch()
    (finding,) = check_set_aside(tmp_path / "my data")
    assert remedy.format(path=shlex.quote(str(path))) in finding.remedy
