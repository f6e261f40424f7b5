"""Bytes that the disk changed cost the messages they were part of, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from leveret.config import Configuration
from leveret.mgmt_ui.control_client import request
from leveret.storage.dump import DumpedBatch, dump_segment
from leveret.storage.files import RealFileSystem
from tests.harness.broker import BrokerProcess
from tests.harness.wire import Client

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("processes")

COUNT = 3000
CHUNK = 20  # published at once and confirmed: no batch is larger
SEGMENT_BYTES_MAX = Configuration.model_fields["segment_bytes_max"].metadata[0].ge


def body(number: int) -> bytes:
    return b"%06d" % number * 30


def fill(port: int, queue: str) -> None:
    with Client(port) as client:
        client.declare(queue)
        client.confirming()
        for first in range(0, COUNT, CHUNK):
            client.publish(queue, [body(number) for number in range(first, first + CHUNK)])
            client.await_confirms(first + CHUNK)


def consume(port: int, queue: str, count: int) -> list[bytes]:
    with Client(port) as client:
        client.consume(queue)
        found = list(client.deliveries(count))
        client.ack(found[-1].tag, multiple=True)
        assert client.count(queue) == 0
        return [delivery.body for delivery in found]


def data_batches(path: Path) -> list[DumpedBatch]:
    return [entry for entry in dump_segment(RealFileSystem(), path) if entry.batch.count]


def damage(path: Path) -> tuple[set[int], list[bytes]]:
    """Flip a byte each in a record and in a header. Returns what that costs, and what is kept."""
    raw = bytearray(path.read_bytes())
    entries = data_batches(path)
    lost, kept = set(), []
    for entry, at in ((entries[len(entries) // 3], 500), (entries[-2], 5)):
        raw[entry.position + at] ^= 0x20
        lost |= set(range(entry.batch.base_offset, entry.batch.stop_offset))
        kept.append(bytes(raw[entry.position : entry.position + entry.batch.size]))
    path.write_bytes(raw)
    return lost, kept


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.smoke
def test_damage_in_the_middle_of_a_queue(tmp_path, durability):
    data = tmp_path / "data"
    settings = {"durability": durability, "segment_bytes_max": SEGMENT_BYTES_MAX}
    with BrokerProcess(data, **settings) as broker:
        fill(broker.port, "damaged")
        fill(broker.port, "sound")
        broker.stop()
        paths = sorted(data.glob("topics/*/damaged~~*/0/*.log"))
        assert len(paths) > 5
        lost, kept = damage(paths[len(paths) // 2])

        broker.start()
        rest = [body(number) for number in range(COUNT) if number not in lost]
        assert consume(broker.port, "damaged", len(rest)) == rest
        assert consume(broker.port, "sound", COUNT) == [body(number) for number in range(COUNT)]
        assert [path.read_bytes() for path in sorted(data.rglob("*.damaged-*"))] == kept
        lines = re.findall(r".* ERROR .*", broker.log())
        assert len(lines) == 1, "\n".join(lines)
        line = lines[0]
        assert "queue 'damaged' in vhost '/'" in line
        assert f"messages lost: {len(lost)} (at offset {min(lost)}-" in line
        assert line.count(".damaged-") == 2

        fill(broker.port, "damaged")
        broker.kill()
        broker.start()
        consume(broker.port, "damaged", COUNT)
        assert [path.read_bytes() for path in sorted(data.rglob("*.damaged-*"))] == kept
        broker.check_untroubled()


def test_damage_met_by_basic_get(tmp_path):
    data = tmp_path / "data"
    with BrokerProcess(data, segment_bytes_max=SEGMENT_BYTES_MAX) as broker:
        fill(broker.port, "q")
        broker.stop()
        (path, *_) = sorted(data.glob("topics/*/q~~*/0/*.log"))
        first = data_batches(path)[0]
        raw = bytearray(path.read_bytes())
        raw[first.position + 200] ^= 1
        path.write_bytes(raw)

        broker.start()
        with Client(broker.port) as client:
            client.send(1, commands.Basic.Get(queue="q", no_ack=True))
            (delivery,) = client.deliveries(1)
            assert delivery.body == body(first.batch.stop_offset)
        assert len(re.findall(r".* ERROR .*", broker.log())) == 1
        broker.stop()
        broker.check_untroubled()


def test_logs_without_definitions_keep_a_node_from_starting(tmp_path):
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        fill(broker.port, "q")
        broker.stop()
        assert "belong to no queue" not in broker.log()
        (path,) = data.glob("topics/*/q~~*/0/*.log")
        content = path.read_bytes()
        definitions = data / "leveret.db"
        definitions.write_bytes(b"\xa5" * definitions.stat().st_size)
        broker.launch()
        assert broker.wait() == 1
        assert "leveret.db is damaged" in broker.log()
        assert "--accept-loss definitions" in broker.log()
        assert not list(data.glob("*.damaged-*"))

        broker.settings["accept_loss"] = "definitions"
        broker.start()
        users = request(data / "control.sock", "user.list", {})["result"]
        assert users == []  # no guest, who may have been deleted
        user = {"name": "guest", "password": "guest", "tags": ["administrator"]}
        assert request(data / "control.sock", "user.add", user)["ok"]
        patterns = dict.fromkeys(("configure", "write", "read"), ".*")
        permission = {"vhost": "/", "user": "guest", **patterns}
        assert request(data / "control.sock", "permission.set", permission)["ok"]
        found = request(data / "control.sock", "node.diagnose", {})["result"]
        assert "loss.definitions" in {finding["check"] for finding in found}
        fill(broker.port, "q")
        broker.stop()
        (line,) = re.findall(r".* WARNING .*belong to no queue.*", broker.log())
        assert "1 queue logs belong to no queue that is defined" in line
        assert str(path.parent) in line
        assert path.read_bytes() == content

        definitions.write_bytes(b"\xa5" * definitions.stat().st_size)
        broker.launch()  # the flag has been left where it was
        assert broker.wait() == 1
        assert "works once" in broker.log()
        broker.check_untroubled()
