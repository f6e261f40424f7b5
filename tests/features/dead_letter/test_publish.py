"""Dead letters that must arrive: between a queue that gives messages up and queues that refuse."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.settings.queue_settings import resolve_settings
from leveret.errors import NotEnoughCopiesError
from leveret.features.dead_letter.publish import DeadLetterPublish
from leveret.features.dead_letter.worker import ASIDE_MAX, RETRY_MS
from leveret.ports import Durability
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder
from tests.features.dead_letter.test_dead_lettering import content
from tests.support.stage import Stage

FEW = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")
SURE = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "dlx",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


class Yard:
    """Queue `q` gives up what a test gets from it; `dlx` leads on."""

    def __init__(self, durability=Durability.OS, exchange="fanout"):
        self.stage = Stage(durability)
        self.vhost = self.stage.broker.vhosts["/"]
        self.declare("q", **SURE)
        if exchange is not None:
            self.exchange(exchange)

    def exchange(self, type_):
        self.vhost.declare_exchange(
            "dlx", type_, durable=False, auto_delete=False, internal=False, arguments={}
        )

    def declare(self, name, **arguments):
        self.vhost.declare_queue(
            name, durable=True, exclusive=False, auto_delete=False, arguments=arguments, owner=None
        )

    def target(self, name, key="", **arguments):
        self.declare(name, **arguments)
        self.vhost.bind_queue(name, "dlx", key, {}, None)

    def limited(self, name, length):
        queue = self.stage.queue(name)
        queue.reconfigure(
            resolve_settings(queue.definition, {"max-length": length, "overflow": "reject-publish"})
        )
        self.stage.run()

    def publish(self, *keys):
        queue = self.stage.queue("q")
        for key in keys:
            queue.builder.add(0, self.stage.now, b"x", key.encode(), content(b"b"), b"b")
        queue.flush()
        if not queue.is_caught_up:
            self.commit("q")

    def reject(self, count):
        queue = self.stage.queue("q")
        offsets = [queue.get()[0] for _ in range(count)]
        queue.discard([(offset, offset + 1) for offset in offsets])
        self.stage.run()

    def commit(self, name):
        self.stage.log(name).commit()
        self.stage.run()

    def retry(self):
        self.stage.advance(RETRY_MS / 1000)

    def ready(self, name):
        return self.stage.queue(name).message_count

    @property
    def settled(self):
        return list(self.stage.log("q").settled)


@pytest.mark.covers("B-159")
def test_a_message_is_settled_when_its_targets_have_committed_it():
    yard = Yard(Durability.FSYNC)
    yard.target("one")
    yard.target("two")
    yard.publish("k")
    yard.reject(1)
    assert (yard.settled, yard.stage.queue("q").leased_count) == ([], 1)
    yard.commit("one")
    assert yard.settled == []
    yard.commit("two")
    assert yard.settled == [(0, 1)]


@pytest.mark.covers("B-159")
def test_a_missing_exchange_keeps_messages_until_it_comes():
    yard = Yard(exchange=None)
    yard.publish("k", "k")
    yard.reject(2)
    yard.retry()
    assert yard.settled == []
    yard.exchange("fanout")
    yard.target("one")
    yard.retry()
    assert (yard.ready("one"), yard.settled) == (2, [(0, 2)])


@pytest.mark.covers("B-159")
def test_a_missing_route_holds_up_nobody_else():
    yard = Yard(exchange="direct")
    yard.target("one", "known")
    yard.publish("unknown", "known", "unknown", "known")
    yard.reject(4)
    assert (yard.ready("one"), yard.settled) == (2, [(1, 2), (3, 4)])
    yard.target("two", "unknown")
    yard.retry()
    assert (yard.ready("one"), yard.ready("two"), yard.settled) == (2, 2, [(0, 4)])


@pytest.mark.covers("B-159")
def test_what_a_full_queue_refuses_is_told_to_it_alone_again():
    yard = Yard()
    yard.target("one")
    yard.target("full")
    yard.limited("full", 1)
    yard.publish("k", "k", "k")
    yard.reject(3)
    assert (yard.ready("one"), yard.ready("full"), yard.settled) == (3, 1, [(0, 1)])
    yard.retry()
    assert (yard.ready("one"), yard.ready("full"), yard.settled) == (3, 1, [(0, 1)])
    yard.limited("full", 10)
    yard.retry()
    assert (yard.ready("one"), yard.ready("full"), yard.settled) == (3, 3, [(0, 3)])


def test_a_disk_that_fails_is_tried_again():
    yard = Yard(Durability.FSYNC)
    yard.target("one")
    yard.publish("k")
    yard.reject(1)
    yard.stage.log("one").fail(OSError("no space"))
    assert yard.settled == []
    yard.retry()
    yard.commit("one")
    assert (yard.ready("one"), yard.settled) == (1, [(0, 1)])


def test_what_a_target_holds_and_lacks_copies_of_is_not_sent_twice():
    yard = Yard(Durability.FSYNC)
    yard.target("one")
    yard.target("two")
    yard.publish("k")
    yard.reject(1)
    yard.commit("one")
    yard.stage.log("two").refuse(FEW)
    yard.retry()
    yard.stage.log("two").refuse(None)
    yard.retry()
    yard.commit("two")
    assert [yard.stage.log(name).end for name in ("one", "two")] == [1, 1]
    assert yard.settled == [(0, 1)]


def test_a_queue_that_is_deleted_holds_nobody_up():
    yard = Yard(Durability.FSYNC)
    yard.target("one")
    yard.publish("k")
    yard.reject(1)
    yard.stage.broker.delete_queue(yard.vhost, yard.stage.queue("one"))
    yard.stage.run()
    assert yard.settled == [(0, 1)]


def test_too_much_that_is_put_aside_holds_up_the_rest():
    yard = Yard(exchange="direct")
    yard.target("one", "known")
    yard.publish(*["unknown", "known"] * ASIDE_MAX, "known")
    yard.reject(2 * ASIDE_MAX)
    assert yard.ready("one") == ASIDE_MAX
    yard.reject(1)
    assert yard.ready("one") == ASIDE_MAX
    yard.target("two", "unknown")
    yard.retry()
    assert (yard.ready("one"), yard.ready("two")) == (ASIDE_MAX + 1, ASIDE_MAX)
    assert yard.settled == [(0, 2 * ASIDE_MAX + 1)]


def test_a_second_stretch_waits_for_the_first():
    yard = Yard(Durability.FSYNC)
    yard.target("one")
    yard.publish("k", "k")
    yard.reject(1)
    yard.reject(1)
    yard.commit("one")
    assert yard.settled == [(0, 1)]
    yard.commit("one")
    assert yard.settled == [(0, 2)]


class Target:
    def __init__(self):
        self.waiter = None

    def await_commit(self, waiter):
        self.waiter = waiter


def test_a_queue_that_got_others_gets_what_is_routed_to_it_later():
    yard = Yard(exchange="direct")
    yard.target("one", "known")
    yard.publish("unknown", "known")
    yard.reject(2)
    assert (yard.ready("one"), yard.settled) == (1, [(1, 2)])
    yard.vhost.bind_queue("one", "dlx", "unknown", {}, None)
    yard.retry()
    assert (yard.ready("one"), yard.settled) == (2, [(0, 2)])


def test_nothing_is_lost_where_chance_chooses_and_a_queue_is_full():
    yard = Yard(exchange="x-random")
    yard.target("one")
    yard.target("full")
    yard.limited("full", 1)
    yard.publish(*"k" * 20)
    yard.reject(20)
    for _ in range(20):
        yard.retry()
    assert yard.settled == [(0, 20)]
    assert yard.ready("one") + yard.ready("full") == 20


offsets = st.sets(st.integers(0, 12))


class Answer(NamedTuple):
    """Answer of a target, and what it is given; `waits`: it lacks copies for a while."""

    waits: bool
    failed: bool
    given: set[int]
    refused: set[int]


@given(
    offsets, st.lists(st.builds(Answer, st.booleans(), st.booleans(), offsets, offsets), max_size=3)
)
def test_everything_is_held_by_all_or_missing_with_its_holders(unrouted, answers):
    ranges = [(0, 5), (7, 13)]
    stretch = {*range(5), *range(7, 13)}
    answers = [answer._replace(given=answer.given & stretch - unrouted) for answer in answers]
    targets = {BatchBuilder(Target()): answer for answer in answers}
    publish = DeadLetterPublish(ranges)
    publish.deposited(
        {
            builder: [(offset, offset + 1) for offset in answer.given]
            for builder, answer in targets.items()
        },
        [(offset, offset + 1) for offset in sorted(unrouted & stretch)],
    )
    for builder, answer in targets.items():
        for offset in answer.refused & answer.given:
            publish.acknowledgement(builder).refused(offset, offset + 1)
    held, missing = RangeSet(), []

    def delivered(held_by_all, lacking):
        for each in [*held_by_all, *(piece[:2] for piece in lacking)]:
            assert not any(
                told.overlap(*each) for told in (held, RangeSet(piece[:2] for piece in missing))
            )
        held.add_all(held_by_all)
        missing.extend(lacking)

    publish.begin(delivered)
    for builder, answer in targets.items():
        assert not held
        assert not missing
        if answer.waits:
            builder.owner.waiter.held_up()
        else:
            builder.owner.waiter.done(failed=answer.failed)
    awaited = {offset for answer in answers if answer.waits for offset in answer.given}
    told = held.count + sum(piece.stop - piece.first for piece in missing)
    assert told == len(stretch - awaited)
    for builder, answer in targets.items():
        if answer.waits:
            builder.owner.waiter.done(failed=answer.failed)
    for offset in stretch:
        given = {builder for builder, answer in targets.items() if offset in answer.given}
        holders = {
            builder
            for builder in given
            if not targets[builder].failed and offset not in targets[builder].refused
        }
        everybody = offset not in unrouted and holders == given
        assert (offset in held) == everybody
        found = [piece.written for piece in missing if piece.first <= offset < piece.stop]
        assert found == ([] if everybody else [holders])
    assert held.overlap(5, 7) == 0
