"""Each file of a data directory damaged in each way: everything is served, or the loss is told.

Two directories are made once, one of a clean stop and one of a kill, and copied for each case. A
node that starts serves what it should, or says in its log and to `leveret doctor` what is missing;
one that does not start says what to do, and has changed nothing. `leveret doctor` says so before
the start, too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pamqp import commands

from leveret.config import Configuration
from leveret.mgmt_ui.control_client import request
from tests.harness.broker import BrokerProcess
from tests.harness.wire import Client
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

COUNT = 240  # of 1 kB: four segments
CHUNK = 20
TAKEN = 30  # settled from the front
DELAYED = 3
SEGMENT_BYTES_MAX = Configuration.model_fields["segment_bytes_max"].metadata[0].ge
MARKED_SECONDS = 2.5  # after which the state store was told of everything
SILENT_SECONDS = 1.5  # after which nothing more comes
HOUR_MS = 3_600_000
USER = {"name": "operator", "password": "secret", "tags": ["administrator"]}

SEGMENTS = "topics/%2F/orders~~*/0/*.log"
DELAYED_SEGMENTS = "topics/%2F/leveret.delayed~~internal/0/*.log"
# Name of a file: its pattern, and which of those that match.
FILES = {
    "definitions": ("leveret.db", 0),
    "journal of the definitions": ("leveret.db-wal", 0),
    "state": ("state.lmdb/data.mdb", 0),
    "audit": ("audit.db", 0),
    "usage": ("usage.db", 0),
    "first segment": (SEGMENTS, 0),
    "middle segment": (SEGMENTS, 1),
    "last segment": (SEGMENTS, -1),
    "index": ("topics/%2F/orders~~*/0/*.index", 0),
    "delayed messages": (DELAYED_SEGMENTS, -1),
    "the queue's directory": ("topics/%2F/orders~~*", 0),
    "all logs": ("topics", 0),
    "all state": ("state.lmdb", 0),
}
DIRECTORIES = {"the queue's directory", "all logs", "all state"}
HOWS = ("removed", "emptied", "cut", "older", "flipped")


def body(number: int) -> bytes:
    return b"%06d" % number + b"x" * 1000


def publish(client: Client, first: int, stop: int, confirmed: int) -> int:
    for start in range(first, stop, CHUNK):
        client.publish("orders", [body(number) for number in range(start, start + CHUNK)])
        confirmed += CHUNK
        client.await_confirms(confirmed)
    return confirmed


def make_directory(data: Path, stop: str) -> None:
    """Two runs, with a copy of the first beside it: what an older file is taken from."""
    with BrokerProcess(data, durability="fsync", segment_bytes_max=SEGMENT_BYTES_MAX) as broker:
        with Client(broker.port) as client:
            client.declare("orders")
            client.confirming()
            publish(client, 0, COUNT // 2, 0)
        assert request(data / "control.sock", "user.add", USER)["ok"]
        stop_patiently(broker)
        shutil.copytree(data, data.with_name(f"{data.name}-older"))
        broker.start()
        with Client(broker.port) as client:
            client.declare("later")
            client.confirming()
            confirmed = publish(client, COUNT // 2, COUNT, 0)
            for number in range(DELAYED):
                headers = {"x-delay": HOUR_MS + number}
                properties = commands.Basic.Properties(delivery_mode=2, headers=headers)
                client.publish("orders", [b"delayed"], properties=properties.marshal())
            client.await_confirms(confirmed + DELAYED)
            client.consume("orders")
            *_, last = client.deliveries(TAKEN)
            client.ack(last.tag, multiple=True)
            client.count("later")
        assert request(data / "control.sock", "user.set_tags", {**_named(USER), "tags": []})["ok"]
        time.sleep(MARKED_SECONDS)
        if stop == "clean":
            stop_patiently(broker)
        else:
            broker.kill()
    (data / "control.sock").unlink(missing_ok=True)


def stop_patiently(broker: BrokerProcess) -> None:
    """A clean stop; how long it takes is for other tests."""
    broker.terminate()
    assert broker.popen.wait(LIMIT_SECONDS) == 0, broker.log()[-4000:]
    broker.popen = None


def _named(user: dict) -> dict:
    return {"name": user["name"]}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Directories by the way in which their node has ended, made when they are wanted."""
    made: dict[str, Path] = {}

    def of(stop: str) -> Path:
        if stop not in made:
            data = tmp_path_factory.mktemp("prepared") / stop
            make_directory(data, stop)
            made[stop] = data
        return made[stop]

    return of


def find(data: Path, file: str) -> Path | None:
    pattern, number = FILES[file]
    found = sorted(data.glob(pattern))
    return found[number] if found else None


def harm(data: Path, older: Path, file: str, how: str) -> bool:
    """Do it. False where there is no such thing."""
    path = find(data, file)
    if path is None:
        return False
    source = older / path.relative_to(data)
    if how == "older" and not source.exists():
        return False
    if path.is_dir():
        shutil.rmtree(path)
        if how == "older":
            shutil.copytree(source, path)
    elif how == "older":
        shutil.copy(source, path)
    else:
        harm_file(path, how)
    return True


def harm_file(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        raw[len(raw) // 2] ^= 0x10
        path.write_bytes(raw)


class Outcome:
    """Outcome of a start on a directory: what is served, and what is logged."""

    def __init__(self, data: Path) -> None:
        before = contents(data)
        broker = BrokerProcess(data, durability="fsync", segment_bytes_max=SEGMENT_BYTES_MAX)
        self.messages: set[int] = set()
        self.delayed = self.users = 0
        self.findings: list[str] = []
        self.audited: list[str] = []
        self.published = 0  # as usage tells
        try:
            broker.launch()
            self.started = self._await_start(broker)
            if self.started:
                self._ask(broker, data)
        finally:
            broker.kill()
        self.log = broker.log()
        self.is_changed = contents(data) != before
        broker.check_untroubled()

    @staticmethod
    def _await_start(broker: BrokerProcess) -> bool:
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            ready = [line for line in broker.log().splitlines() if line.startswith("ready amqp=")]
            if ready:
                broker.port = int(ready[0].split()[1].rpartition(":")[2])
                return True
            if not broker.is_alive:
                return False
            time.sleep(0.02)
        raise AssertionError(f"neither started nor refused:\n{broker.log()[-3000:]}")

    def _ask(self, broker: BrokerProcess, data: Path) -> None:
        control = data / "control.sock"
        self.users = len(request(control, "user.list", {})["result"])
        with Client(broker.port) as client:
            ready = client.count("orders")
            client.consume("orders", no_ack=True)
            with suppress(TimeoutError):  # damage is found when it is come to: fewer come then
                for delivery in client.deliveries(ready, seconds=SILENT_SECONDS):
                    self.messages.add(int(delivery.body[:6]))
        audited = request(control, "audit.list", {"limit": 100})["result"]["rows"]
        self.audited = [row["operation"] for row in audited]
        hours = {"since": 0, "until": int(time.time() * 1000) + HOUR_MS}
        usage = request(control, "usage.list", {**hours, "subject": "vhost"})["result"]
        self.published = sum(row["messages_in"] for row in usage)
        listed = {"vhost": "/", "headers": {}, "limit": 100}
        self.delayed = len(request(control, "schedule.list", listed)["result"]["rows"])
        self.findings = [
            finding["check"] for finding in request(control, "node.diagnose", {})["result"]
        ]

    @property
    def is_whole(self) -> bool:
        wanted = set(range(TAKEN, COUNT))
        return wanted <= self.messages and self.delayed == DELAYED and self.users == 2

    def keeps_records(self, others: Outcome) -> bool:
        """Whether the audit and usage have what they have in a directory that nobody has harmed."""
        return (self.audited, self.published) == (others.audited, others.published)

    @property
    def tells_a_loss(self) -> bool:
        return " ERROR " in self.log and any(each.startswith("loss.") for each in self.findings)


def diagnosed(data: Path) -> list[str]:
    """Return the errors that `leveret doctor` finds in the directory of a stopped node."""
    before = contents(data)
    command = [sys.executable, "-m", "leveret", "doctor", "--deep", "--json"]
    done = subprocess.run(
        [*command, "--data-dir", str(data)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode in {0, 1, 2}, done.stderr
    assert contents(data) == before
    findings = json.loads(done.stdout)
    return [finding["check"] for finding in findings if finding["severity"] == "error"]


def contents(data: Path) -> dict[str, bytes]:
    """Of what must not change where a node does not start."""
    kept = [data / "leveret.db", *data.glob("topics/*/*/0/*.log")]
    return {str(path): path.read_bytes() for path in kept if path.is_file()}


WHOLE: dict[str, Outcome] = {}  # of directories that nobody has harmed, by how their node ended


def whole(prepared, tmp_path: Path, stop: str) -> Outcome:
    if stop not in WHOLE:
        shutil.copytree(prepared(stop), tmp_path / "whole")
        WHOLE[stop] = Outcome(tmp_path / "whole")
        assert WHOLE[stop].audited == ["user.set_tags", "user.add"]
        assert WHOLE[stop].published
    return WHOLE[stop]


def check(prepared, tmp_path: Path, stop: str, file: str, how: str) -> None:
    source = prepared(stop)
    data = tmp_path / "data"
    shutil.copytree(source, data)
    older = source.with_name(f"{source.name}-older")
    if not harm(data, older, file, how):
        pytest.skip("there is no such file")
    errors = diagnosed(data)
    outcome = Outcome(data)
    said = outcome.log[-3000:]
    if not outcome.started or not outcome.is_whole:
        assert errors, said  # doctor has said so before the start
    if not outcome.started:
        assert "Restore" in outcome.log or "restore" in outcome.log, said
        assert not outcome.is_changed
        assert file in {"definitions", "journal of the definitions"}, said
    elif not outcome.is_whole:
        assert outcome.tells_a_loss, (sorted(outcome.messages), outcome.findings, said)
    elif not outcome.keeps_records(whole(prepared, tmp_path, stop)):
        assert outcome.tells_a_loss, (outcome.audited, outcome.published, said)


# What strangers met, and what stands for its kind: quick enough for every day.
EVERY_DAY = [
    ("clean", "definitions", "removed"),
    ("clean", "definitions", "emptied"),
    ("clean", "definitions", "flipped"),
    ("clean", "definitions", "older"),
    ("killed", "definitions", "cut"),
    ("killed", "journal of the definitions", "removed"),
    ("clean", "state", "cut"),
    ("killed", "state", "emptied"),
    ("clean", "audit", "cut"),
    ("killed", "audit", "removed"),
    ("clean", "first segment", "removed"),
    ("killed", "first segment", "emptied"),
    ("killed", "first segment", "flipped"),
    ("clean", "middle segment", "removed"),
    ("killed", "middle segment", "cut"),
    ("clean", "last segment", "removed"),
    ("clean", "last segment", "emptied"),
    ("killed", "last segment", "removed"),
    ("killed", "last segment", "emptied"),
    ("killed", "last segment", "cut"),
    ("killed", "last segment", "flipped"),
    ("killed", "delayed messages", "emptied"),
    ("clean", "delayed messages", "removed"),
    ("killed", "the queue's directory", "removed"),
    ("clean", "all logs", "older"),
    ("killed", "all logs", "removed"),
]
ALL = [
    (stop, file, how)
    for stop in ("clean", "killed")
    for file in FILES
    for how in HOWS
    if (stop, file, how) not in EVERY_DAY
    and (file not in DIRECTORIES or how in {"removed", "older"})
]


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_directory_that_nobody_has_harmed_is_whole(prepared, tmp_path, stop):
    shutil.copytree(prepared(stop), tmp_path / "data")
    assert not diagnosed(tmp_path / "data")
    outcome = Outcome(tmp_path / "data")
    assert outcome.is_whole, outcome.log
    assert " ERROR " not in outcome.log
    assert not any(each.startswith("loss.") for each in outcome.findings)


@pytest.mark.parametrize(("stop", "file", "how"), EVERY_DAY)
def test_what_is_lost_is_told(prepared, tmp_path, stop, file, how):
    check(prepared, tmp_path, stop, file, how)


@pytest.mark.soak
@pytest.mark.parametrize(("stop", "file", "how"), ALL)
def test_whatever_is_lost_is_told(prepared, tmp_path, stop, file, how):
    check(prepared, tmp_path, stop, file, how)
