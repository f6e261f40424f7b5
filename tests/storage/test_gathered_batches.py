"""Records that gather while nothing can be written, and become several batches."""

import errno

from leveret.ports import Durability
from tests.storage.atomic_harness import AtomicNode, Outcome
from tests.storage.faulty_files import FaultyFileSystem


def test_what_stands_in_front_of_a_batch_that_was_not_written_is_shown(monkeypatch):
    node = AtomicNode(FaultyFileSystem(), Durability.OS, ("a",), segment_bytes_max=100_000)
    topic, shown = node.topics["a"], []
    node.put("a", b"first")
    node.run()
    monkeypatch.setattr(type(topic), "_show_committed", lambda it: shown.append(it.log.committed))
    topic.log.gathered_bytes_max = 300
    pwrite, written = node.files.pwrite, []

    def fill_up(*arguments):
        written.append(arguments)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "the disk is full")
        return pwrite(*arguments)

    node.files.pwrite = fill_up
    outcome = Outcome()
    node.put("a", *(b"%d" % number + b"x" * 100 for number in range(6)))
    topic.await_commit(outcome)
    node.run()
    node.files.pwrite = pwrite
    assert outcome.failed is True
    assert 1 < topic.log.committed < 7
    assert shown == [topic.log.committed]
    node.die()
