"""Writes that are decided as one: whenever the node dies, a batch is everywhere or nowhere."""

import pytest

from leveret.core.logs.atomic import JointWrites
from leveret.errors import StorageError
from leveret.ports import Durability
from tests.storage.atomic_harness import AtomicNode, Died, MortalFiles, Outcome

TOPICS = ("in", "out", "audit")
BATCHES = 3
MEMBERS = 4


def batch_of(node: AtomicNode, number: int) -> tuple[JointWrites, Outcome]:
    """Begin to move one record of `in` to several in `out` and `audit`, by several writes."""
    outcome = Outcome()
    writes = [node.atomic.begin() for _ in range(MEMBERS)]
    for write in writes:
        for topic in ("out", "audit"):
            write.publish(node.topics[topic], 1, b"x", b"k", b"header", b"%d" % number * 20)
    offset = next(o for o, body in node.records("in").items() if body == b"%d" % number)
    writes[-1].settle(node.topics["in"], [(offset, offset + 1)])
    return node.atomic.commit_together(writes, outcome), outcome


class BatchMover:
    """Moves each message of `in`, while others publish."""

    def __init__(self, node: AtomicNode) -> None:
        self.node = node
        self.confirmed: set[bytes] = set()

    def fill(self) -> None:
        self.node.put("in", *(b"%d" % i for i in range(BATCHES)))
        self.node.run()

    def work(self) -> None:
        for body in sorted(self.node.records("in").values()):
            _, outcome = batch_of(self.node, int(body))
            self.node.put("out", b"by itself")
            self.node.run()
            assert outcome.failed is False
            self.confirmed.add(body)
            self.node.write_settlements()
            self.node.run()

    def check(self, confirmed: set[bytes]) -> None:
        todo = set(self.node.records("in").values())
        moved = {b"%d" % i for i in range(BATCHES)} - todo
        for topic in ("out", "audit"):
            found = [b[:1] for b in self.node.records(topic).values() if b != b"by itself"]
            assert sorted(found) == sorted([*moved] * MEMBERS)
        assert confirmed <= moved


def crash_at(dies_at: int, durability: Durability, kept_bytes: int | None) -> bool:
    """One life that ends before a call, and one that finishes the work. Whether it has ended so."""
    files = MortalFiles()
    first = BatchMover(AtomicNode(files, durability, TOPICS))
    first.fill()
    files.dies_at = files.calls + dies_at
    died = False
    try:
        first.work()
    except Died:
        died = True
    files.dies_at = None
    first.node.die()
    left = files.lose_process() if kept_bytes is None else files.lose_machine(kept_bytes)
    second = BatchMover(AtomicNode(left, durability, TOPICS))
    second.check(first.confirmed)
    second.work()
    second.check({b"%d" % i for i in range(BATCHES)})
    second.node.close()
    return died


@pytest.mark.parametrize(
    ("durability", "kept_bytes"),
    [(Durability.OS, None), (Durability.FSYNC, None), (Durability.FSYNC, 0), (Durability.FSYNC, 9)],
)
def test_every_moment(durability, kept_bytes):
    dies_at = 1
    while crash_at(dies_at, durability, kept_bytes):
        dies_at += 1
    assert dies_at > 30


@pytest.fixture(params=[Durability.OS, Durability.FSYNC])
def node(request):
    node = AtomicNode(MortalFiles(), request.param, TOPICS)
    node.put("in", b"0", b"1")
    node.run()
    yield node
    node.die()


def fail_the(node: AtomicNode, count: int, topic: str) -> None:
    """Let the preparation of a log's part fail for the `count`-th time."""
    writer, calls = node.topics[topic], []
    prepare = writer.prepare

    def failing(*args: object, **options: object) -> None:
        calls.append(args)
        if len(calls) == count:
            args[1].clear()
            raise StorageError("disk on fire")
        prepare(*args, **options)

    writer.prepare = failing


@pytest.mark.parametrize("count", range(1, MEMBERS + 1))
@pytest.mark.parametrize("topic", ["out", "audit"])
def test_one_that_fails_undoes_all(node, count, topic):
    fail_the(node, count, topic)
    joint, outcome = batch_of(node, 0)
    node.run()
    assert outcome.failed is True
    assert str(joint.error) == "disk on fire"
    assert len(node.reported) == 1
    assert not node.atomic.is_busy
    assert node.records("out") == node.records("audit") == {}
    assert set(node.records("in").values()) == {b"0", b"1"}
    del node.topics[topic].prepare
    _, again = batch_of(node, 0)
    node.run()
    assert again.failed is False
    assert len(node.records("out")) == len(node.records("audit")) == MEMBERS


def test_what_is_full_is_named(node):
    node.topics["audit"].has_room = lambda *_: node.topics["out"].log.end < 2
    joint, outcome = batch_of(node, 0)
    node.run()
    assert outcome.failed is True
    assert joint.refused_by is node.topics["audit"]
    assert joint.error is None
    assert node.records("out") == {}


def test_a_log_that_is_held_holds_back_what_follows(node):
    node.topics["audit"].held = True
    _, outcome = batch_of(node, 0)
    node.run()
    assert outcome.failed is None
    assert node.topics["out"].log.end == 0
    node.topics["audit"]._release()
    node.run()
    assert outcome.failed is False
    assert len(node.records("audit")) == MEMBERS


def test_nothing_is_seen_before_all_is_decided(node):
    _, outcome = batch_of(node, 0)
    while outcome.failed is None:
        assert node.topics["out"].log.committed == 0
        scheduled, node._scheduled[:] = list(node._scheduled), []
        for callback in scheduled:
            callback()
        if not scheduled:
            node.committer.step()
    assert node.topics["out"].log.committed == MEMBERS
