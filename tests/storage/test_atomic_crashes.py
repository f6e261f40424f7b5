"""Consume, transform, publish: whenever the node dies, each step was done wholly or not at all."""

import pytest

from leveret.ports import Durability
from tests.storage.atomic_harness import AtomicNode, Died, MortalFiles, Outcome

TOPICS = ("in", "out", "audit")
MESSAGES = 7


class Transformer:
    """Moves each message of `in` to `out` and `audit`, in transactions, two at a time."""

    def __init__(self, node: AtomicNode) -> None:
        self.node = node
        self.confirmed: set[bytes] = set()

    def fill(self) -> None:
        self.node.put("in", *(b"%d" % i for i in range(MESSAGES)))
        self.node.run()

    def work(self) -> None:
        node = self.node
        todo = list(node.records("in").items())
        while todo:
            pair, todo = todo[:2], todo[2:]
            outcomes = {body: self._transform(offset, body) for offset, body in pair}
            node.put("out", b"by itself")
            node.run()
            assert not any(outcome.failed for outcome in outcomes.values())
            self.confirmed |= set(outcomes)
            if len(todo) % 3 == 0:
                node.write_settlements()
                node.run()

    def _transform(self, offset: int, body: bytes) -> Outcome:
        node, outcome = self.node, Outcome()
        write = node.atomic.begin()
        for topic in ("out", "audit"):
            write.publish(node.topics[topic], 1, b"x", b"k", b"header", body * 20)
        write.settle(node.topics["in"], [(offset, offset + 1)])
        write.commit(outcome)
        return outcome

    def check(self, confirmed: set[bytes]) -> set[bytes]:
        """Check that what was transformed is in all places."""
        todo = set(self.node.records("in").values())
        moved = {
            topic: sorted(
                body[: len(body) // 20]
                for body in self.node.records(topic).values()
                if body != b"by itself"
            )
            for topic in ("out", "audit")
        }
        everything = {b"%d" % i for i in range(MESSAGES)}
        assert moved["out"] == moved["audit"] == sorted(everything - todo)
        assert confirmed <= everything - todo
        return everything - todo


def crash_at(
    dies_at: int, durability: Durability, kept_bytes: int | None, *, encrypted: bool = False
) -> bool:
    """One life that ends before a call, and one that finishes the work. Whether it has ended so."""
    files = MortalFiles()
    node = AtomicNode(files, durability, TOPICS, encrypted=encrypted)
    first = Transformer(node)
    first.fill()
    files.dies_at = files.calls + dies_at
    died = False
    try:
        first.work()
    except Died:
        died = True
    files.dies_at = None
    node.die()
    left = files.lose_process() if kept_bytes is None else files.lose_machine(kept_bytes)
    second = Transformer(AtomicNode(left, durability, TOPICS, encrypted=encrypted))
    second.check(first.confirmed)
    second.work()
    assert len(second.check(second.confirmed | first.confirmed)) == MESSAGES
    second.node.write_settlements()
    second.node.run()
    second.node.write_settlements()
    assert len(second.node.store._decisions) == 0, "decisions are forgotten once all know them"
    second.node.die()
    return died


@pytest.mark.parametrize(
    ("durability", "kept_bytes"),
    [
        (Durability.OS, None),
        (Durability.FSYNC, None),
        (Durability.FSYNC, 0),
        (Durability.FSYNC, 100),
        (Durability.FSYNC, 10_000),
    ],
)
def test_dying_between_any_two_steps(durability, kept_bytes):
    dies_at = 1
    while crash_at(dies_at, durability, kept_bytes):
        dies_at += 1
    assert dies_at > 20


@pytest.mark.parametrize(
    ("durability", "kept_bytes"), [(Durability.OS, None), (Durability.FSYNC, 0)]
)
def test_dying_where_everything_is_encrypted(durability, kept_bytes):
    dies_at = 1
    while crash_at(dies_at, durability, kept_bytes, encrypted=True):
        dies_at += 5
    assert dies_at > 20
