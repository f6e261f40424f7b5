"""Decisions are remembered for as long as somebody may ask, and no longer."""

from pathlib import Path

from leveret.ports import Durability
from leveret.storage.decisions import BODY, read_decisions
from leveret.storage.segment import list_segments
from tests.storage.atomic_harness import AtomicNode, Outcome
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import abandon, make_store, open_log, put, store_at


def move(node, source, target, body=b"m"):
    """Move the first record of `source`."""
    write, outcome = node.atomic.begin(), Outcome()
    offset = next(iter(node.records(source)))
    write.publish(node.topics[target], 1, b"x", b"key", b"header", body)
    write.settle(node.topics[source], [(offset, offset + 1)])
    write.commit(outcome)
    node.run()
    assert outcome.failed is False


def decision_log(node):
    return node.store._decision_log


def test_a_decision_is_forgotten_once_both_outcomes_are_flushed():
    node = AtomicNode(FaultyFileSystem(), Durability.FSYNC, ("a", "b"))
    node.put("a", b"m")
    node.run()
    move(node, "a", "b")
    assert len(node.store._decisions) == 1
    node.store._write_settlements()
    assert len(node.store._decisions) == 1, "a power cut would take the outcomes along"
    for name, left in (("a", 1), ("b", 0)):
        node.topics[name].log.flush()
        node.run()
        assert len(node.store._decisions) == left
    assert list(decision_log(node).settled) == [(0, 1)]
    node.die()


def test_the_log_of_decisions_does_not_grow():
    node = AtomicNode(FaultyFileSystem(), Durability.OS, ("a", "b"), segment_bytes_max=1500)
    for _ in range(20):
        node.put("a", *(b"%d" % i for i in range(20)))
        node.run()
        for _ in range(20):
            move(node, "a", "b")
        node.write_settlements()
        node.run()
        node.store._write_settlements()  # what the decisions' log has settled meanwhile
        node.run()
    assert decision_log(node).end == 400
    assert len(decision_log(node).segments) < 4
    node.die()


def test_a_decision_waits_for_logs_that_no_queue_claims():
    """The definitions were lost and come back: the queue asks one start later."""
    files = FaultyFileSystem()
    node = AtomicNode(files, Durability.OS, ("a", "b"))
    node.put("a", b"m")
    node.run()
    move(node, "a", "b")
    node.die()
    files = files.lose_process()
    node = AtomicNode(files, Durability.OS, ("a",))
    assert len(node.orphans) == 1
    assert node.records("a") == {}
    node.write_settlements()
    node.write_settlements()
    node.die()
    node = AtomicNode(files.lose_process(), Durability.OS, ("a", "b"))
    assert node.orphans == []
    assert list(node.records("b").values()) == [b"m"]
    node.write_settlements()
    assert len(node.store._decisions) == 0
    node.die()


def test_a_decision_that_cannot_be_written_aborts():
    files = FaultyFileSystem()
    node = AtomicNode(files, Durability.OS, ("a", "b"))
    node.put("a", b"m")
    node.run()
    move(node, "a", "b")  # every log has its file now
    node.put("a", b"n")
    node.run()
    write, outcome = node.atomic.begin(), Outcome()
    write.publish(node.topics["b"], 1, b"x", b"key", b"header", b"n")
    write.settle(node.topics["a"], [(1, 2)])
    write.commit(outcome)
    files.fail_at, files.error = files.calls + 3, 28  # two parts, then the decision
    node.run()
    assert outcome.failed
    assert (list(node.records("a").values()), list(node.records("b").values())) == ([b"n"], [b"m"])
    assert len(node.reported) == 1
    node.die()
    again = AtomicNode(files.lose_process(), Durability.OS, ("a", "b"))
    assert list(again.records("b").values()) == [b"m"]
    again.die()


async def test_decisions_are_on_the_disk_before_anybody_acts_on_them():
    """They are read after a crash of the process; then the machine may die as well."""
    files = FaultyFileSystem()
    store = make_store(Path("/data"), files)
    log = open_log(store)
    put(log, BODY.pack(7))
    (segment,), settled = log.segments, log.settled
    abandon(store)
    files = files.lose_process()
    for _ in range(2):
        assert read_decisions(files, [segment], settled, lambda batch: batch, print) == {7: 0}
        files = files.lose_machine()


async def test_a_damaged_decision_costs_no_other(tmp_path):
    told = []
    async with store_at(tmp_path) as store:
        log = open_log(store)
        for transaction in (7, 8, 9):
            put(log, BODY.pack(transaction))
        (segment,) = log._segments.items
        files = FaultyFileSystem()
        raw = bytearray(segment.path.read_bytes())
        raw[raw.index(BODY.pack(8))] ^= 1
        files.make_directory(segment.directory)
        handle = files.open(segment.path, create=True)
        files.pwrite(handle, raw, 0)
        (segment,) = list_segments(files, segment.directory)
        found = read_decisions(files, [segment], log.settled, lambda batch: batch, told.append)
    assert found == {7: 0, 9: 2}
    assert len(told) == 1
