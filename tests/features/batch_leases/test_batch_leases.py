"""Batch leases beside other consumers: taken, read, settled, given back, and leased again."""

from dataclasses import replace

import pytest
from pamqp import commands

from leveret.errors import ChannelError
from leveret.features.batch_leases.holder import EMPTY_MS, HolderName
from leveret.features.batch_leases.leasing import TURN_MESSAGES_MAX, Leasing, queue_parts
from leveret.features.batch_leases.rules import (
    IDLE_MS_DEFAULT,
    LeaseLimits,
    LeaseRefusedError,
    LeaseWish,
    ranges_row,
)
from leveret.features.range_reads.rules import RangeRequest
from leveret.ports.ranges import RangeSet
from leveret.range_reader import parse_chunk
from tests.support.client import Client, wire
from tests.support.stage import Stage

NAME = HolderName("guest", "job")


class Leaseholder:
    """A stage with a queue that a job consumes, and others may."""

    def __init__(self, arguments=None, limits=None, **options):
        self.stage = Stage(**options)
        self.client = Client(self.stage).open()
        self.client.declare("q", durable=True, arguments=arguments or {})
        self.leases = self.stage.broker.batch_leases
        if limits is not None:
            self.leases.limits = limits

    @property
    def queue(self):
        return self.stage.queue("q")

    @property
    def state(self):
        return self.queue.state

    @property
    def holder(self):
        return self.leases.holder(self.queue, NAME)

    def publish(self, count, first=0, **properties):
        self.client.publish("q", *(b"%d" % (first + n) for n in range(count)), **properties)

    def ask(self, number, messages=100, **wish):
        """Ask for a lease; return where its answer will be."""
        answers = []
        wish = LeaseWish(messages, **wish)
        self.holder.lease(number, wish, self.leases.limits, answers.append)
        self.stage.run()
        return answers

    def lease(self, number, messages=100, **wish):
        """Return the ranges of a lease."""
        answers = self.ask(number, messages, **wish)
        for _ in range(200):
            if not answers:
                self.stage.advance(0.02)
        (lease,) = answers
        return {} if lease is None else ranges_row(lease.parts)

    def again(self, number, ranges):
        wanted = {at: RangeSet(each) for at, each in ranges.items()}
        has, missing = self.holder.lease_again(number, wanted, self.leases.limits)
        self.stage.run()
        return ranges_row(has), missing

    def settle(self, number, ranges=None):
        wanted = {at: RangeSet(each) for at, each in (ranges or {}).items()}
        told = tuple(self.holder.settle(number, wanted))
        self.stage.run()
        return told

    def read(self, number, offset=0, partition=0, **options):
        (part,) = [each for each in queue_parts(self.queue) if each.number == partition]
        request = RangeRequest(offset, **options)
        work = self.leases.read(self.holder, number, part, request, Slices())
        found = []

        async def run():
            try:
                found.append(await work)
            except Exception as error:  # noqa: BLE001
                found.append(error)

        self.stage.spawn(run())
        for _ in range(10_000):
            if not found:
                self.stage.run()
        (answer,) = found
        if isinstance(answer, Exception):
            raise answer
        return parse_chunk(b"".join(answer.parts))


class Slices:
    async def __aenter__(self):
        return None

    async def __aexit__(self, *_):
        return None


@pytest.fixture
def bench():
    bench = Leaseholder()
    yield bench
    assert bench.stage.reported == []


def bodies(chunk):
    return [chunk.columns["value"][row] for row in range(chunk.rows)]


def other_consumer(bench, prefetch=1, **options):
    client = Client(bench.stage).open()
    client.prefetch(prefetch)
    client.consume("q", "other", **options)
    return client


def test_messages_are_leased_read_and_settled(bench):
    bench.publish(5)
    assert bench.lease(1, 3) == {"0": [[0, 3]]}
    assert (bench.queue.leased_count, bench.state.ready_count) == (3, 2)
    chunk = bench.read(1)
    assert bodies(chunk) == [b"0", b"1", b"2"]
    assert (chunk.first, chunk.end, chunk.next_offset, chunk.missing) == (0, 3, 3, 0)
    assert not chunk.has_more
    assert bench.settle(1) == (3, 0)
    assert list(bench.queue.log.settled) == [(0, 3)]
    assert bench.lease(2, 3) == {"0": [[3, 5]]}
    assert bench.settle(2) == (2, 0)
    assert (bench.queue.leased_count, bench.queue.message_count) == (0, 0)


def test_a_number_that_is_leased_has_the_same_messages(bench):
    bench.publish(5)
    assert bench.lease(1, 2) == {"0": [[0, 2]]}
    assert bench.lease(1, 5) == {"0": [[0, 2]]}
    bench.settle(1)
    with pytest.raises(LeaseRefusedError) as caught:
        bench.lease(1)
    assert caught.value.code == "settled"


def test_settling_a_number_settles_all_before_it(bench):
    bench.publish(6)
    for number in (1, 2, 3):
        bench.lease(number, 2)
    assert bench.settle(2) == (4, 0)
    assert bench.queue.leased_count == 2
    assert bench.settle(2) == (0, 0)
    assert bodies(bench.read(3)) == [b"4", b"5"]


def test_only_what_is_leased_is_read():
    bench = Leaseholder()
    bench.publish(4)
    other = other_consumer(bench, 2)
    assert bench.queue.leased_count == 2
    assert bench.lease(1, 1) == {"0": [[2, 3]]}
    other.send(commands.Channel.Close(200, "", 0, 0))
    bench.stage.run()
    assert bench.lease(2, 1) == {"0": [[0, 1]]}
    assert bench.lease(3, 2) == {"0": [[1, 2], [3, 4]]}
    chunk = bench.read(3)
    assert bodies(chunk) == [b"1", b"3"]
    assert (chunk.first, chunk.end, chunk.missing) == (1, 4, 0)
    chunk = bench.read(3, offset=2, rows_max=1)
    assert (bodies(chunk), chunk.next_offset, chunk.missing) == ([b"3"], 4, 0)
    first = bench.read(3, rows_max=1)
    assert (bodies(first), first.has_more) == ([b"1"], True)
    beyond = bench.read(3, offset=9)
    assert (beyond.rows, beyond.next_offset, beyond.has_more) == (0, 9, False)
    with pytest.raises(LeaseRefusedError) as caught:
        bench.read(4)
    assert caught.value.code == "not_found"


def test_the_bytes_of_a_lease_are_bounded_but_not_below_one_message(bench):
    bench.client.publish("q", *[b"x" * 1000] * 10)
    assert bench.lease(1, bytes_max=1) == {"0": [[0, 1]]}
    ((first, stop),) = bench.lease(2, bytes_max=3600)["0"]
    assert (first, stop - first) == (1, 3)


def test_an_empty_queue_is_waited_for_as_long_as_asked(bench):
    assert bench.lease(1) == {}
    answers = bench.ask(1, wait_ms=1000)
    bench.stage.advance(0.5)
    assert answers == []
    bench.publish(1)
    bench.stage.advance(0.1)
    assert ranges_row(answers[0].parts) == {"0": [[0, 1]]}
    answers = bench.ask(2, wait_ms=1000)
    bench.stage.advance(1.1)
    assert answers == [None]
    assert bench.lease(2, messages=1) == {}


def test_one_lease_is_made_at_a_time(bench):
    answers = bench.ask(1, wait_ms=1000)
    with pytest.raises(LeaseRefusedError) as caught:
        bench.ask(2)
    assert (caught.value.code, answers) == ("busy", [])


def test_who_hangs_up_gets_nothing(bench, monkeypatch):
    monkeypatch.setattr(Leasing, "_is_over", lambda *_: False)
    answers = bench.ask(1, wait_ms=1000)
    bench.publish(1)
    assert bench.queue.leased_count == 1
    bench.holder.cancel_leasing()
    bench.stage.run()
    bench.stage.advance(2)
    assert (answers, bench.queue.leased_count, bench.state.ready_count) == ([], 0, 1)


def test_a_lease_does_not_take_all_of_a_turn():
    bench = Leaseholder()
    count = 5 * TURN_MESSAGES_MAX
    bench.publish(count)
    client = Client(bench.stage).open()
    client.prefetch(10)
    answers = []
    bench.holder.lease(1, LeaseWish(count), bench.leases.limits, answers.append)
    client.connection.received(memoryview(bytearray(wire(commands.Basic.Consume(0, "q", "c")))))
    settled = 0
    while not answers:
        bench.stage.run_once()
        client._receive()
        tags = [each.delivery_tag for _, each in client.frames if is_delivery(each)]
        client.frames.clear()
        if tags:
            settled += len(tags)
            ack = wire(commands.Basic.Ack(tags[-1], multiple=True))
            client.connection.received(memoryview(bytearray(ack)))
    assert settled >= 30
    assert answers[0].count + settled + 10 >= count
    assert answers[0].count > count / 2


def is_delivery(method):
    return isinstance(method, commands.Basic.Deliver)


def test_idle_holders_give_back_what_they_have(bench):
    bench.publish(3)
    bench.lease(1, 2)
    bench.stage.advance(IDLE_MS_DEFAULT / 1000 - 1)
    bench.holder.asked()
    bench.stage.advance(IDLE_MS_DEFAULT / 1000 - 1)
    assert bench.queue.leased_count == 2
    bench.stage.advance(1)
    bench.stage.run()
    assert (bench.queue.leased_count, bench.state.ready_count) == (0, 3)
    assert bench.queue.consumer_count == 0
    bench.client.send(commands.Basic.Get(queue="q"))
    assert [each.redelivered for each in bench.client.deliveries()] == [True]
    with pytest.raises(LeaseRefusedError):
        bench.read(1)


def test_the_idle_time_is_the_holders_choice(bench):
    bench.publish(1)
    bench.lease(1, idle_ms=1000)
    bench.stage.advance(1)
    bench.stage.run()
    assert bench.state.ready_count == 1


def test_a_holder_without_leases_soon_is_no_consumer_any_more(bench):
    bench.publish(1)
    bench.lease(1)
    bench.settle(1)
    bench.stage.advance(EMPTY_MS / 1000 - 1)
    assert bench.queue.consumer_count == 1
    bench.stage.advance(1)
    assert bench.queue.consumer_count == 0
    assert bench.ask(2, wait_ms=2 * EMPTY_MS) == []
    bench.stage.advance(2 * EMPTY_MS / 1000 - 1)
    assert bench.queue.consumer_count == 1


def test_a_released_holder_gives_all_back(bench):
    bench.publish(3)
    bench.lease(1, 1)
    bench.lease(2, 1)
    assert bench.holder.release() == 2
    bench.stage.run()
    assert (bench.state.ready_count, bench.queue.consumer_count) == (3, 0)
    assert bench.leases.find(bench.queue, NAME) is None


def test_what_was_leased_before_a_restart_is_leased_again_as_far_as_it_is_there(bench):
    bench.publish(6)
    bench.lease(4, 4)
    bench.holder.release()  # as a restart does it: nobody knows the lease
    bench.stage.run()
    bench.client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert [each.body for each in bench.client.deliveries()] == [b"0"]
    assert bench.again(4, {0: [(0, 4)]}) == ({"0": [[1, 4]]}, 1)
    assert bodies(bench.read(4)) == [b"1", b"2", b"3"]
    assert bench.again(4, {0: [(0, 4)]}) == ({"0": [[1, 4]]}, 1)
    assert bench.lease(4) == {"0": [[1, 4]]}
    assert bench.settle(4, {0: [(0, 4)]}) == (3, 1)
    assert bench.lease(5) == {"0": [[4, 6]]}


def test_parts_of_a_lease_are_leased_again_one_by_one(bench):
    bench.publish(6)
    assert bench.again(4, {0: [(0, 2)]}) == ({"0": [[0, 2]]}, 0)
    assert bench.again(4, {0: [(4, 6)]}) == ({"0": [[4, 6]]}, 0)
    assert bench.again(5, {0: [(1, 3)]}) == ({"0": [[1, 3]]}, 0)
    assert bench.settle(5) == (5, 0)


@pytest.mark.parametrize("acknowledges", [False, True])
def test_what_another_has_of_a_batch_that_is_begun_again_is_read_too(acknowledges):
    bench = Leaseholder()
    bench.publish(3)
    bench.lease(1)
    other = other_consumer(bench)
    bench.holder.release()  # as a restart does it: nobody knows the lease
    bench.stage.run()
    assert [each.body for each in other.deliveries()] == [b"0"]
    assert bench.again(1, {0: [(0, 3)]}) == ({"0": [[0, 3]]}, 0)
    assert bench.holder.book.count == 2
    assert bodies(bench.read(1)) == [b"0", b"1", b"2"]
    if acknowledges:
        other.send(commands.Basic.Ack(1))
    else:
        other.send(commands.Channel.Close(200, "", 0, 0))
        bench.stage.run()
        assert bench.state.ready_count == 1
    # Nothing is settled that was not read: what has come back was.
    assert bench.settle(1, {0: [(0, 3)]}) == ((2, 1) if acknowledges else (3, 0))
    assert bench.queue.message_count == bench.queue.leased_count == 0


def test_offsets_are_settled_though_the_lease_is_not_known(bench):
    bench.publish(4)
    assert bench.settle(7, {0: [(1, 3)], 9: [(0, 1)]}) == (2, 1)
    assert list(bench.queue.log.settled) == [(1, 3)]
    assert bench.settle(7, {0: [(0, 4)]}) == (0, 0)  # a settlement that is repeated late
    assert bench.lease(8) == {"0": [[0, 1], [3, 4]]}


def test_a_paused_queue_leases_nothing_again(bench):
    bench.publish(1)
    bench.queue.reconfigure(replace(bench.queue.settings, is_paused=True))
    for act in (lambda: bench.again(1, {0: [(0, 1)]}), lambda: bench.settle(1, {0: [(0, 1)]})):
        with pytest.raises(LeaseRefusedError) as caught:
            act()
        assert caught.value.code == "busy"


def test_a_single_active_consumer_gets_all():
    bench = Leaseholder({"x-single-active-consumer": True})
    other = other_consumer(bench)
    bench.publish(3)
    assert bench.lease(1) == {}
    assert bench.again(1, {0: [(1, 2)]}) == ({"0": [[1, 2]]}, 0)
    assert bench.holder.book.count == 0
    other.send(commands.Channel.Close(200, "", 0, 0))
    bench.stage.run()
    assert bench.lease(1) == {"0": [[0, 3]]}
    third = other_consumer(bench)
    bench.settle(1)
    bench.publish(1)
    assert third.deliveries() == []
    bench.holder.release()
    bench.stage.run()
    assert len(third.deliveries()) == 1


def test_an_exclusive_consumer_admits_no_holder():
    bench = Leaseholder()
    other_consumer(bench, exclusive=True)
    with pytest.raises(ChannelError) as caught:
        bench.lease(1)
    assert caught.value.code == 403


def test_a_holder_refuses_exclusive_consumers_and_counts_as_one(bench):
    bench.lease(1)
    assert bench.queue.consumer_count == 1
    assert not bench.queue.admits(exclusive=True)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_holder_that_fails_too_often_dead_letters(kind):
    bench = Leaseholder(
        {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": ""}
        | {"x-dead-letter-routing-key": "dead"}
        if kind == "quorum"
        else {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    bench.client.declare("dead", durable=True)
    bench.publish(1)
    for _ in range(2):
        bench.lease(1, idle_ms=1000)
        bench.stage.advance(1)
        bench.stage.run()
    dead = bench.stage.queue("dead").message_count
    assert (dead, bench.state.ready_count) == ((1, 0) if kind == "quorum" else (0, 1))


def test_expired_messages_are_not_leased(bench):
    bench.publish(1, expiration="100")
    bench.publish(1, first=1)
    bench.stage.advance(0.2)
    bench.stage.run()
    assert bodies_of_lease(bench) == [b"1"]


def bodies_of_lease(bench):
    bench.lease(1)
    return bodies(bench.read(1))


def test_higher_priorities_are_leased_first():
    bench = Leaseholder({"x-max-priority": 5})
    for number in range(4):
        bench.publish(1, first=number, priority=number % 2)
    assert bench.lease(1, 2) == {"0": [[1, 2], [3, 4]]}
    assert bodies(bench.read(1)) == [b"1", b"3"]
    assert bench.lease(2, 2) == {"0": [[0, 1], [2, 3]]}


def test_all_partitions_are_leased_from():
    bench = Leaseholder({"x-partitions": 3})
    for number in range(30):
        bench.publish(1, first=number, headers={"x-partition-key": f"k{number}"})
    ranges = bench.lease(1, 20)
    assert sum(stop - first for each in ranges.values() for first, stop in each) == 20
    read = [body for at in ranges for body in bodies(bench.read(1, partition=int(at)))]
    rest = bench.lease(2)
    assert set(rest) <= {"0", "1", "2"}
    read += [body for at in rest for body in bodies(bench.read(2, partition=int(at)))]
    assert sorted(map(int, read)) == list(range(30))
    assert bench.settle(2) == (30, 0)
    assert bench.queue.message_count == bench.queue.leased_count == 0


def test_what_a_holder_may_have_is_bounded():
    bench = Leaseholder(limits=LeaseLimits(messages_max=4, bytes_max=1 << 30, holders_max=1))
    bench.publish(10)
    assert bench.lease(1) == {"0": [[0, 4]]}
    with pytest.raises(LeaseRefusedError) as caught:
        bench.lease(2)
    assert caught.value.code == "full"
    with pytest.raises(LeaseRefusedError):
        bench.again(2, {0: [(5, 6)]})
    with pytest.raises(LeaseRefusedError) as caught:
        bench.leases.holder(bench.queue, HolderName("guest", "another"))
    assert caught.value.code == "full"
    bench.settle(1)
    assert bench.lease(2) == {"0": [[4, 8]]}


def test_a_deleted_queue_ends_its_holders(bench):
    answers = bench.ask(1, wait_ms=1000)
    bench.client.call(commands.Queue.Delete(0, "q"))
    bench.stage.run()
    assert answers == [None]
    assert not list(bench.leases)
    bench.stage.advance(IDLE_MS_DEFAULT / 1000 + 1)


def test_a_node_that_stops_lets_nobody_wait(bench):
    answers = bench.ask(1, wait_ms=1000)
    bench.leases.close()
    assert answers == [None]
    with pytest.raises(LeaseRefusedError):
        bench.leases.holder(bench.queue, HolderName("guest", "another"))


@pytest.mark.parametrize("arguments", [{"x-max-priority": 5}, {"x-group-ordering": True}])
def test_orders_of_their_own_are_leased_again_and_settled(arguments):
    bench = Leaseholder(arguments)
    for number in range(6):
        headers = {"x-message-group": "ab"[number % 2]}
        bench.publish(1, first=number, priority=number % 3, headers=headers)
    leased = bench.lease(1)
    assert leased
    bench.holder.release()
    bench.stage.run()
    wanted = {0: [tuple(each) for each in leased["0"]]}
    has, missing = bench.again(1, wanted)
    assert (has, missing) == (leased, 0)
    settled, _ = bench.settle(1)
    assert settled == sum(stop - first for first, stop in leased["0"])
    for number in range(2, 6):  # of each group one message at a time
        bench.lease(number)
        bench.settle(number)
    assert bench.queue.message_count == bench.queue.leased_count == 0


def test_messages_in_groups_wait_for_those_that_are_leased():
    bench = Leaseholder({"x-group-ordering": True})
    for number in range(4):
        bench.publish(1, first=number, headers={"x-message-group": "one"})
    first = bench.lease(1, 1)
    assert first == {"0": [[0, 1]]}
    other = other_consumer(bench, 5)
    assert other.deliveries() == []
    bench.settle(1)
    assert [each.body for each in other.deliveries()][:1] == [b"1"]
