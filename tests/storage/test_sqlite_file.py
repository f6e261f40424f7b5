"""Files of records: damage costs what was recorded, never what is to be."""

import shutil
import sqlite3

import pytest

from leveret.errors import StorageError
from leveret.ports.losses import LossKind
from leveret.storage.files import RealFileSystem
from leveret.storage.losses import LossLedger
from leveret.storage.sqlite_file import SqliteFile

SCHEMA = ("CREATE TABLE IF NOT EXISTS said (text TEXT NOT NULL)",)
ADD = "INSERT INTO said VALUES (?)"
READ = "SELECT text FROM said ORDER BY rowid"


class Records:
    def __init__(self, data):
        self.data = data
        self.path = data / "audit.db"
        self.changes = 0
        self.losses = LossLedger(RealFileSystem(), data, lambda: 1, print)
        self.file = self.opened()

    def opened(self):
        file = SqliteFile(self.path, SCHEMA, self.losses)
        file.on_change = self.note
        return file

    def note(self, changes):
        self.changes = changes

    async def say(self, *texts):
        for text in texts:
            await self.file.write(ADD, [(text,)])

    async def said(self):
        return [text for (text,) in await self.file.rows(READ, ())]

    async def restart(self):
        await self.file.close()
        self.file = self.opened()

    @property
    def told(self):
        assert all(loss.kind is LossKind.RECORDS for loss in self.losses.unacknowledged)
        return [loss.what for loss in self.losses.unacknowledged]


@pytest.fixture
async def records(tmp_path):
    records = Records(tmp_path)
    await records.file.check(0)
    await records.say("one", "two", "three")
    yield records
    await records.file.close()


async def test_nothing_is_told_of_a_sound_file(records):
    assert records.changes == 3
    await records.restart()
    await records.file.check(records.changes)
    await records.say("four")
    assert await records.said() == ["one", "two", "three", "four"]
    assert (records.changes, records.told) == (4, [])


@pytest.mark.parametrize("harm", ["garbage", "cut", "flipped"])
async def test_a_damaged_file_is_kept_and_another_begun(records, harm):
    await records.file.close()
    raw = bytearray(records.path.read_bytes())
    if harm == "garbage":
        raw[:] = b"garbage" * 2000
    elif harm == "cut":
        del raw[len(raw) // 2 :]
    else:
        raw[100:4000] = bytes(3900)
    records.path.write_bytes(raw)
    records.file = records.opened()
    await records.file.check(records.changes)
    await records.say("four")
    assert await records.said() == ["four"]
    assert records.path.with_name("audit.db.damaged-1").read_bytes() == raw
    assert any("was kept as" in what for what in records.told)


async def test_damage_that_is_met_while_it_is_used(records):
    with records.path.open("r+b") as opened:
        opened.write(b"garbage" * 2000)
    for wal in records.data.glob("audit.db-wal"):
        with wal.open("r+b") as opened:
            opened.write(b"garbage" * 2000)
    other = sqlite3.connect(records.path)
    other.close()
    await records.restart()
    await records.say("four")
    assert await records.said() == ["four"]
    assert records.told


async def test_a_file_that_is_gone_or_older_is_told(records):
    await records.file.close()
    shutil.copy(records.path, records.data / "older")
    records.file = records.opened()
    await records.say("four")
    await records.file.close()
    records.path.unlink()
    records.file = records.opened()
    await records.file.check(records.changes)
    assert records.told == [f"{records.path} is missing: its last 4 records are lost"]

    shutil.copy(records.data / "older", records.path)
    records.path.with_name("audit.db.checksum").unlink(missing_ok=True)
    records.file = records.opened()
    await records.file.check(4)
    assert records.told[1] == f"{records.path} is older than it was: its last 1 records are lost"
    assert await records.said() == ["one", "two", "three"]


async def test_a_record_that_the_disk_has_changed_is_told(records):
    await records.file.close()
    records.path.write_bytes(records.path.read_bytes().replace(b"two", b"tvo"))
    records.file = records.opened()
    await records.file.check(records.changes)
    assert records.told == [f"{records.path} is not the file that the last stop has left"]
    assert await records.said() == ["one", "tvo", "three"]


async def test_what_is_no_damage_is_an_error(records):
    with pytest.raises(StorageError, match="no such table"):
        await records.file.write("INSERT INTO nowhere VALUES (?)", [(1,)])
    assert records.told == []
