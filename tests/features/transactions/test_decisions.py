"""Decisions about prepared messages when the disk refuses."""

from __future__ import annotations

from pamqp import commands

from leveret.errors import DiskFullError
from leveret.ports import Durability
from tests.support.client import Client, message
from tests.support.stage import Stage

LOG = "leveret.prepared"


def prepare(id_: str) -> bytes:
    headers = {"x-prepare": True, "x-prepare-id": id_}
    return message("q", id_.encode(), headers=headers, delivery_mode=2)


def commit(id_: str) -> bytes:
    headers = {"x-prepare-id": id_}
    return message("commit", b"", exchange="leveret.prepare", headers=headers, delivery_mode=2)


def flush(stage: Stage) -> None:
    """Have all disks flush, as often as one write leads to the next."""
    for _ in range(3):
        stage.run()
        for log in list(stage.topics.logs.values()):
            log.commit()
    stage.run()


def test_a_commit_that_a_full_disk_refused_can_be_repeated() -> None:
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    client.declare("q", durable=True)
    client.call(commands.Confirm.Select())
    client.feed(prepare("a"))
    flush(stage)
    assert client.names() == ["Basic.Ack"]
    stage.log(LOG).append_error = DiskFullError("no space")
    client.feed(prepare("b") + commit("a"))  # the commit waits for what is written before it
    flush(stage)
    assert set(client.names()) == {"Basic.Nack"}
    stage.log(LOG).append_error = None
    client.feed(commit("a"))
    flush(stage)
    assert client.names() == ["Basic.Ack"]
    assert stage.log("q").end == 1
