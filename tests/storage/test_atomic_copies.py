"""Atomic writes in logs of which one has too few copies: nobody waits for that one."""

import pytest

from leveret.errors import NotEnoughCopiesError
from leveret.ports import Durability
from tests.storage.atomic_harness import AtomicNode, Outcome
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.test_replica_machine import Copies

FEW = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")


class CopiedNode(AtomicNode):
    """A node whose topics `a` and `b` are copied."""

    def __init__(self):
        super().__init__(FaultyFileSystem(), Durability.FSYNC, ("a", "b"))
        for topic in self.topics.values():
            topic.log.copy_to(Copies())

    def copied(self, *names):
        for name in names:
            log = self.topics[name].log
            log.replicated(log.place, log.end)
        self.run()

    def commit(self, *names, body=b"m"):
        write, outcome = self.atomic.begin(), Outcome()
        for name in names:
            write.publish(self.topics[name], 1, b"x", b"key", b"header", body)
        write.commit(outcome)
        self.run()
        return outcome

    def publish(self, name, body):
        outcome = Outcome()
        self.put(name, body)
        self.topics[name].await_commit(outcome)
        self.run()
        return outcome


@pytest.fixture
def node():
    node = CopiedNode()
    yield node
    node.die()


def test_a_write_that_lacks_copies_in_one_log_fails_and_holds_up_no_other(node):
    outcome = node.commit("a", "b")
    node.copied("b")
    assert outcome.failed is None
    node.topics["a"].log.refuse(FEW)
    assert outcome.failed is True
    assert not node.atomic.is_busy
    later = node.publish("b", b"later")
    node.copied("b")
    assert later.failed is False
    assert node.records("b") == {1: b"later"}
    node.topics["a"].log.refuse(None)
    node.copied("a")
    assert node.records("a") == {}
    again = node.commit("a", "b")
    node.copied("a", "b")
    assert again.failed is False
    assert (node.records("a"), node.records("b")) == ({1: b"m"}, {1: b"later", 2: b"m"})


def undecided(node, decisions):
    """Have writes that are prepared decided only when their decisions are called."""
    node.store.decide = lambda transactions, decided: decisions.append(decided)


@pytest.mark.parametrize("is_decided", [True, False])
@pytest.mark.parametrize("is_over", [True, False])
def test_a_decided_write_is_told_though_another_in_front_of_it_lacks_copies(
    node, is_decided, is_over
):
    decisions = []
    undecided(node, decisions)
    first = node.commit("a")
    node.copied("a")
    second = node.commit("a", "b")
    node.copied("a", "b")
    if is_decided:
        decisions.pop()(None)
        assert second.failed is None
    node.topics["a"].log.refuse(FEW)
    if is_over:
        node.topics["a"].log.refuse(None)
    if not is_decided:
        assert second.failed is None
        decisions.pop()(None)
    assert second.failed is False
    assert first.failed is None
    assert node.records("b") == {0: b"m"}
    decisions.pop()(None)
    assert first.failed is False
    assert node.records("a") == {0: b"m", 1: b"m"}


def test_a_write_that_is_told_as_failed_elsewhere_is_told_once(node):
    outcome = node.commit("a", "b")
    node.topics["a"].log.refuse(FEW)
    assert outcome.failed is None  # it is not known yet what becomes of `b`
    node.topics["b"].log.refuse(FEW)
    assert outcome.failed is True
    for name in ("a", "b"):
        node.topics[name].log.refuse(None)
    node.copied("a", "b")
    assert node.records("a") == node.records("b") == {}
    assert [topic.log.unresolved for topic in node.topics.values()] == [[], []]
