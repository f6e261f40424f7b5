"""Dead letters on their way back."""

import pytest

from leveret.core.definitions.validation import AdministrationError
from leveret.errors import DiskFullError
from leveret.features.browse.browsing import find
from leveret.features.dead_letter import scan
from leveret.features.dead_letter.redrive import Target
from leveret.features.dead_letter.redrive_rules import DeadLetterFilter, RedriveState
from leveret.ports.contents import headers_table
from leveret.ports.records import RecordFlag
from leveret.ports.tables import decode_table
from tests.support.queue_bench import content_header
from tests.support.stage import Stage


class Yard:
    """A queue whose messages die, and the topic that they die into."""

    def __init__(self, **arguments):
        self.stage = Stage()
        self.vhost = self.stage.broker.vhosts["/"]
        self.redrives = self.stage.broker.redrives
        arguments = arguments or {"x-retry-max-attempts": 0}
        self.queue = self.declare("q", arguments)

    def declare(self, name, arguments=None):
        return self.vhost.declare_queue(
            name,
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments=arguments or {},
            owner=None,
        )

    def publish(self, queue, body, key=b"key", **properties):
        flags, header = content_header(len(body), **properties)
        flags |= RecordFlag.HAS_HEADERS if "headers" in properties else 0
        queue.builder.add(flags, self.stage.now, b"x", key, header, body)
        self.stage.turn.touch(queue)
        self.stage.run()

    def die(self, count=1, first=0, **properties):
        for number in range(first, first + count):
            self.publish(self.queue, b"%d" % number, message_id=f"id{number}", **properties)
            offset, _ = self.queue.get()
            self.queue.discard([(offset, offset + 1)])
            self.stage.run()
        return self.vhost.queues.get("q.dlq")

    def redrive(self, queue, selection=None, target=None, rate=None):
        redrive = self.redrives.start(
            queue, selection or DeadLetterFilter(), target or Target(), rate
        )
        for _ in range(5):
            self.stage.advance(0.001)
        return redrive

    def drain(self, name):
        """(exchange, key, headers, body) of what can be had."""
        queue, found = self.stage.queue(name), []
        while (got := queue.get()) is not None:
            batch = queue.batch_at_hand(got[0])
            _, _, exchange, key, header, body = batch.record(got[0])
            found.append((exchange, key, decode_table(headers_table(header)), body))
            queue.settle([(got[0], got[0] + 1)])
        return found


@pytest.fixture
def yard():
    return Yard()


def bodies(found):
    return [body for *_, body in found]


@pytest.mark.covers("C-206")
def test_all_go_back_to_their_queue_as_they_came(yard):
    dead = yard.die(5, headers={"own": 1})
    redrive = yard.redrive(dead)
    assert redrive.progress.phase is RedriveState.DONE
    assert (redrive.progress.moved, redrive.progress.total) == (5, 5)
    assert (dead.message_count, dead.leased_count) == (0, 0)
    found = yard.drain("q")
    assert bodies(found) == [b"0", b"1", b"2", b"3", b"4"]
    assert found[0][:3] == (b"x", b"key", {"own": 1})


def test_what_was_moved_begins_anew(yard):
    dead = yard.die()
    yard.redrive(dead)
    yard.die(0)
    offset, _ = yard.queue.get()
    yard.queue.discard([(offset, offset + 1)])
    yard.stage.run()
    (found,) = yard.drain("q.dlq")
    assert found[2]["x-death"][0]["count"] == 1


@pytest.mark.covers("C-206")
def test_some_go_back_and_the_others_stay(yard):
    dead = yard.die(4, headers={"color": "red"})
    yard.die(2, first=4, headers={"color": "blue"})
    yard.redrive(dead, DeadLetterFilter(headers=(("color", "blue"),)))
    assert bodies(yard.drain("q")) == [b"4", b"5"]
    yard.redrive(dead, DeadLetterFilter(offsets=frozenset({1, 3})))
    assert bodies(yard.drain("q")) == [b"1", b"3"]
    nothing = yard.redrive(dead, DeadLetterFilter(reason="expired"))
    assert (nothing.progress.moved, nothing.progress.looked_at) == (0, 2)
    yard.redrive(dead, DeadLetterFilter(queue="q", reason="rejected"))
    assert bodies(yard.drain("q")) == [b"0", b"2"]


@pytest.mark.covers("C-206")
def test_messages_go_where_somebody_says(yard):
    dead = yard.die(2)
    yard.declare("other")
    yard.redrive(dead, target=Target("", "other"))
    assert [found[:2] for found in yard.drain("other")] == [(b"", b"other")] * 2


def test_messages_are_routed_anew_where_asked_or_where_their_queue_is_gone(yard):
    dead = yard.die(2)
    yard.vhost.declare_exchange(
        "x", "fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    for name in ("a", "b"):
        yard.declare(name)
        yard.vhost.bind_queue(name, "x", "", {}, None)
    yard.redrive(dead, DeadLetterFilter(offsets=frozenset({0})), Target(routed=True))
    assert bodies(yard.drain("a")) == bodies(yard.drain("b")) == [b"0"]
    yard.stage.broker.delete_queue(yard.vhost, yard.queue)
    yard.redrive(dead)
    assert bodies(yard.drain("a")) == [b"1"]


def test_what_nobody_takes_stays(yard):
    dead = yard.die(2)
    yard.publish(dead, b"never lived")
    yard.stage.broker.delete_queue(yard.vhost, yard.queue)
    redrive = yard.redrive(dead)
    assert (redrive.progress.moved, redrive.progress.unroutable) == (0, 3)
    assert (dead.message_count, dead.leased_count) == (3, 0)


def test_a_disk_that_refuses_ends_it_and_nothing_is_lost(yard):
    dead = yard.die(3)
    yard.stage.log("q").append_error = DiskFullError("no space left")
    redrive = yard.redrive(dead)
    assert redrive.progress.phase is RedriveState.FAILED
    assert redrive.progress.explanation == "no space left"
    assert (redrive.progress.moved, redrive.progress.refused) == (0, 0)
    assert (dead.message_count, dead.leased_count) == (3, 0)
    yard.stage.log("q").append_error = None
    assert yard.redrive(dead).progress.moved == 3


def test_a_queue_that_is_full_gets_no_more(yard):
    dead = yard.die(3)
    yard.declare("small", {"x-max-length": 1, "x-overflow": "reject-publish"})
    redrive = yard.redrive(dead, target=Target("", "small"))
    for _ in range(40):
        yard.stage.advance(0.2)
    assert redrive.progress.phase is RedriveState.DONE
    assert (redrive.progress.moved, redrive.progress.refused) == (1, 2)
    assert (dead.message_count, dead.leased_count) == (2, 0)


def test_what_a_consumer_has_is_left_to_it(yard):
    dead = yard.die(2)
    held, _ = dead.get()
    redrive = yard.redrive(dead)
    assert redrive.progress.moved == 1
    dead.return_([(held, held + 1)])
    assert bodies(yard.drain("q")) == [b"1"]
    assert bodies(yard.drain("q.dlq")) == [b"0"]


@pytest.mark.covers("C-206")
def test_a_redrive_keeps_its_pace_and_can_rest_and_end(yard):
    dead = yard.die(40)
    redrive = yard.redrive(dead, rate=10)
    with pytest.raises(AdministrationError):
        yard.redrive(dead)
    for _ in range(10):
        yard.stage.advance(0.1)
    assert 9 <= redrive.progress.moved <= 12
    redrive.pause()
    rested = redrive.progress.moved
    yard.stage.advance(5)
    assert redrive.progress.moved == rested
    with pytest.raises(AdministrationError):
        redrive.pause()
    redrive.resume()
    for _ in range(10):
        yard.stage.advance(0.1)
    assert rested + 9 <= redrive.progress.moved <= rested + 14
    redrive.cancel()
    moved = redrive.progress.moved
    yard.stage.advance(5)
    assert redrive.progress.moved == moved
    assert dead.message_count == 40 - moved
    assert len(yard.drain("q")) == moved


def test_a_queue_that_goes_ends_its_redrive(yard):
    dead = yard.die(3)
    redrive = yard.redrive(dead, rate=1)
    yard.stage.broker.delete_queue(yard.vhost, dead)
    yard.stage.advance(2)
    assert redrive.progress.phase is RedriveState.FAILED


def test_what_comes_during_a_redrive_stays(yard):
    dead = yard.die(3)
    redrive = yard.redrive(dead, rate=1)
    yard.publish(dead, b"late")
    for _ in range(50):
        yard.stage.advance(0.2)
    assert redrive.progress.phase is RedriveState.DONE
    assert bodies(yard.drain("q")) == [b"0", b"1", b"2"]
    assert bodies(yard.drain("q.dlq")) == [b"late"]


def run(yard, work):
    """The result of a coroutine that need not wait."""
    results = []

    async def wait():
        results.append(await work)

    yard.stage.spawn(wait())
    yard.stage.run()
    return results[0]


def test_dead_letters_are_deleted_by_what_they_tell(yard):
    dead = yard.die(5)
    assert (
        run(yard, scan.delete(dead, DeadLetterFilter(message_ids=frozenset({"id1", "id3"})))) == 2
    )
    held, _ = dead.get()
    assert run(yard, scan.delete(dead, DeadLetterFilter(reason="rejected"))) == 2
    assert dead.message_count == 0
    assert run(yard, find(dead, held)).message.body == b"0"
    assert run(yard, find(dead, 1)) is None
