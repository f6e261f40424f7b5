"""The ledger of losses."""

from pathlib import Path

import pytest

from leveret.errors import StorageError
from leveret.ports.losses import Loss, LossKind
from leveret.storage.losses import FILE_NAME, LossLedger, read_losses
from tests.storage.faulty_files import Content, FaultyFileSystem

DATA = Path("/data")
FIRST = Loss(LossKind.MESSAGES, "queue 'q'", "3 messages are lost", 3)
SECOND = Loss(LossKind.DEFINITIONS, "leveret.db", "it is damaged")


@pytest.fixture
def files():
    files = FaultyFileSystem()
    files.make_directory(DATA)
    return files


def ledger(files, warned=None):
    return LossLedger(files, DATA, lambda: 17, ([] if warned is None else warned).append)


def test_a_loss_survives_the_machine(files):
    kept = ledger(files)
    assert (kept.unacknowledged, kept.message_count) == ([], 0)
    kept.note(FIRST)
    kept.note(SECOND)
    kept.note(FIRST)  # the same start of a node that dies again
    found = read_losses(files.lose_machine(), DATA)
    assert [(loss.number, loss.at_ms, loss.kind) for loss in found] == [
        (1, 17, LossKind.MESSAGES),
        (2, 17, LossKind.DEFINITIONS),
    ]
    assert found == ledger(files).unacknowledged == kept.unacknowledged
    assert kept.message_count == 3
    assert kept.has(LossKind.DEFINITIONS) == found[1]
    assert kept.has(LossKind.RECORDS) is None


def test_acknowledged_losses_are_gone(files):
    kept = ledger(files)
    for loss in (FIRST, SECOND):
        kept.note(loss)
    assert kept.acknowledge([2, 3]) == 1
    assert [loss.number for loss in ledger(files.lose_machine()).unacknowledged] == [1]
    assert kept.acknowledge(None) == 1
    assert ledger(files).unacknowledged == []


def test_an_entry_that_cannot_be_read_is_a_loss_too(files):
    ledger(files).note(FIRST)
    raw = b"{nonsense\n\n" + bytes(files.files[DATA / FILE_NAME].cached) + b'{"kind": "new"}'
    files.files[DATA / FILE_NAME] = Content(bytearray(raw), bytearray(raw))
    kinds = [loss.kind for loss in ledger(files).unacknowledged]
    assert kinds == [LossKind.UNREADABLE, LossKind.MESSAGES, LossKind.UNREADABLE]


def test_a_full_disk_is_no_reason_to_forget_what_was_said(files):
    warned = []
    kept = ledger(files, warned)
    files.fail_at, files.error = files.calls + 1, 28
    kept.note(FIRST)
    assert "cannot write a loss to" in warned[0]
    assert kept.message_count == 3
    files.fail_at = files.calls + 1
    with pytest.raises(StorageError):
        kept.acknowledge(None)
    assert kept.message_count == 3
