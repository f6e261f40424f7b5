"""Queues that are opened when they are used, compared with queues that are opened at once."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from leveret.errors import StorageError
from leveret.ports.definitions import PolicyDefinition
from tests.support.client import Client
from tests.support.memory_log import MemoryTopicStore
from tests.support.stage import Stage

NAMES = ("q", "r", "limited", "ordered", "full")
ARGUMENTS = {
    "limited": {"x-max-length": 2, "x-message-ttl": 5000, "x-dead-letter-exchange": "amq.fanout"},
    "ordered": {"x-max-priority": 3},
    "full": {"x-max-length": 0, "x-overflow": "reject-publish"},
}


class EagerTopics(MemoryTopicStore):
    """Each log outlives its broker, and is opened at once."""

    def open(self, vhost, topic, *rest, **options):
        left = self.logs.get((vhost, topic))
        log = super().open(vhost, topic, *rest, **options)
        if left is not None and not left.deleted:
            log.take_over(left)
        return log


class LazyTopics(EagerTopics):
    """Each log outlives its broker, and is left unopened while there is nothing in it."""

    def leave_unopened(self, vhost, topic, *_):
        left = self.logs.get((vhost, topic))
        return left is None or left.deleted or not left.settled.gaps(0, left.end)


class Site:
    """A broker that can be restarted, and its client."""

    def __init__(self, topics):
        self.topics = topics
        self.policy = None
        self.begin(Stage(topics=topics))

    def begin(self, stage):
        self.stage = stage
        self.client = Client(stage).open()

    def restart(self):
        definitions = self.vhost.topology.definitions()
        self.topics.end_run()
        stage = Stage(topics=self.topics, state=self.stage.state)
        stage.now = self.stage.now
        if self.policy is not None:
            stage.broker.policies.put(self.policy)
        stage.restore(definitions)
        self.begin(stage)

    @property
    def vhost(self):
        return self.stage.broker.vhosts["/"]

    def queue(self, name):
        return self.vhost.find_queue(name)

    def declare(self, name):
        arguments = ARGUMENTS.get(name, {})
        return self.ask(commands.Queue.Declare(queue=name, durable=True, arguments=arguments))

    def ask(self, method):
        self.client.send(method)
        return self.answers()

    def answers(self):
        return [frame.marshal(value, number) for number, value in self.client.received()]

    def counts(self):
        """Return what lists of queues show; this opens none."""
        are_opened = opened(self)
        found = {
            name: (queue.message_count, queue.leased_count, queue.consumer_count, str(queue))
            for name, queue in self.vhost.queues.items()
        }
        assert are_opened == opened(self)
        return found


class Pair:
    """Does the same with both, and compares the answers and the counts."""

    def __init__(self):
        self.sites = Site(LazyTopics()), Site(EagerTopics())
        self.do(confirm)
        for name in NAMES:
            self.do(lambda site, name=name: site.declare(name))
            bind = commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key="all")
            self.do(lambda site, bind=bind: site.ask(bind))

    def do(self, work):
        lazy, eager = (work(site) for site in self.sites)
        assert lazy == eager
        assert self.sites[0].counts() == self.sites[1].counts()
        assert [len(site.stage.reported) for site in self.sites] == [0, 0]


def confirm(site):
    return site.ask(commands.Confirm.Select())


def _publish(name, exchange="", **options):
    def work(site):
        site.client.publish(name, b"body", exchange=exchange, delivery_mode=2, **options)
        return site.answers()

    return work


def _get(name, *, no_ack):
    return lambda site: site.ask(commands.Basic.Get(queue=name, no_ack=no_ack))


def _set_policy(limit):
    def work(site):
        site.policy = PolicyDefinition("/", "p", "^[qr]$", {"max-length": limit})
        site.stage.broker.policies.put(site.policy)
        site.stage.broker.apply_policies("/")
        site.stage.run()

    return work


def _delete(name):
    def work(site):
        if name in site.vhost.queues:
            return site.ask(commands.Queue.Delete(queue=name)), site.declare(name)
        return None

    return work


NAME = st.sampled_from(NAMES)
STEP = st.one_of(
    st.just(confirm),
    st.builds(_publish, NAME),
    st.builds(_publish, NAME, priority=st.integers(1, 3)),
    st.builds(_publish, NAME, expiration=st.just("3000")),
    st.just(_publish("all", "amq.topic")),
    st.builds(_get, NAME, no_ack=st.booleans()),
    st.just(lambda site: site.ask(commands.Basic.Ack(0, multiple=True))),
    st.builds(lambda name: lambda site: site.ask(commands.Queue.Purge(queue=name)), NAME),
    st.builds(lambda name: lambda site: site.declare(name), NAME),
    st.builds(_delete, NAME),
    st.builds(_set_policy, st.integers(1, 3)),
    st.just(lambda site: site.stage.advance(2)),
    st.just(lambda site: site.restart()),
)


@given(st.lists(STEP, max_size=25))
def test_queues_opened_late_are_like_those_opened_at_once(steps):
    pair = Pair()
    for step in steps:
        pair.do(step)


@pytest.fixture
def site():
    site = Site(LazyTopics())
    for name in NAMES:
        site.declare(name)
    return site


def opened(site):
    return {name for name, queue in site.vhost.queues.items() if queue.is_opened}


def test_a_queue_that_begins_to_refuse_nacks_what_it_refuses(site):
    site.policy = PolicyDefinition("/", "p", "^q$", {"max-length": 0, "overflow": "reject-publish"})
    site.stage.broker.policies.put(site.policy)
    site.stage.broker.apply_policies("/")
    site.client.call(commands.Confirm.Select())
    site.client.publish("q", b"1")
    assert [value.name for _, value in site.client.received()] == ["Basic.Nack"]
    assert site.queue("q").message_count == 0


def test_a_used_queue_is_opened_and_no_other(site):
    assert not opened(site)
    site.client.publish("q", b"body")
    assert opened(site) == {"q"}
    assert site.client.count("q") == 1
    site.client.consume("r")
    assert opened(site) == {"q", "r"}


def test_it_has_the_same_builder_and_counters(site):
    queue, counters, builder = site.queue("q"), site.queue("q").counters, site.queue("q").builder
    assert not queue.is_opened
    site.client.publish("q", b"body")
    assert queue.is_opened
    assert queue.builder is queue.log.builder is builder
    assert queue.counters is counters
    assert counters.counted() == {"publish": 1}


@pytest.mark.parametrize(
    "arguments", [{"x-expires": 1000}, {"x-dedup-window": 1000}, {"x-queue-type": "stream"}]
)
def test_a_queue_that_acts_by_itself_is_opened_at_once(site, arguments):
    site.client.declare("acting", durable=True, arguments=arguments)
    assert site.queue("acting").is_opened


def test_a_policy_opens_queues_that_act_by_themselves(site):
    site.stage.broker.policies.put(PolicyDefinition("/", "p", "^q$", {"expires": 1000}))
    site.stage.broker.apply_policies("/")
    site.stage.run()
    assert opened(site) == {"q"}
    site.stage.advance(2)
    assert site.queue("q") is None


def test_a_queue_that_cannot_be_opened_refuses_its_publishers(site, monkeypatch):
    def refuse(*_, **__):
        raise StorageError("no log can be opened")

    queue = site.queue("q")
    site.client.call(commands.Confirm.Select())
    monkeypatch.setattr(site.topics, "open", refuse)
    site.client.publish("q", b"body")
    assert site.client.names() == ["Basic.Nack"]
    assert site.stage.reported
    monkeypatch.undo()
    site.client.publish("q", b"body")
    assert site.client.names() == ["Basic.Ack"]
    assert queue.message_count == 1


def test_a_deleted_queue_leaves_no_log(left):
    left.client.send(commands.Queue.Delete(queue="q"))
    assert left.client.names() == ["Queue.DeleteOk"]
    go_on(left)
    assert left.topics.logs["/", "q"].deleted
    assert left.queue("q") is None


# -- while a log is recovered


@pytest.fixture
def left(site):
    """Return a site whose queues have empty logs of an earlier run, which nobody has recovered."""
    fill_and_empty(site, "q")
    site.restart()
    assert not opened(site)
    site.topics.recovering.is_open = False
    return site


def fill_and_empty(site, name):
    site.client.publish(name, b"1")
    assert get(site, name) == b"1"


def get(site, name):
    site.client.send(commands.Basic.Get(queue=name, no_ack=True))
    (got,) = site.client.deliveries()
    return got.body


def go_on(site):
    site.topics.recovering.open()
    site.stage.run()


def fail(site):
    site.topics.recover_error = StorageError("the disk is gone")
    go_on(site)
    site.topics.recover_error = None


def test_it_tells_whether_it_lacks_copies(left):
    left.stage.broker.policies.put(PolicyDefinition("/", "p", "^q$", {"min-isr": 2}))
    left.stage.broker.apply_policies("/")
    left.stage.run()
    for copies, lacking in ((1, {"q"}), (2, set()), (None, set())):
        left.topics.in_sync_count = copies
        queues = left.vhost.queues.items()
        assert {name for name, queue in queues if queue.lacks_copies} == lacking
    assert not opened(left)


def test_records_wait_until_their_queue_is_opened(left):
    left.client.call(commands.Confirm.Select())
    left.client.publish("q", b"2")
    left.client.publish("q", b"3")
    assert left.client.names() == []
    assert not left.queue("q").is_opened
    assert left.counts()["q"][0] == 2
    go_on(left)
    assert set(left.client.names()) == {"Basic.Ack"}
    assert left.client.count("q") == 2
    assert left.stage.turn.opening_count == 0


def test_publishers_are_refused_if_the_log_cannot_be_recovered(left):
    left.client.call(commands.Confirm.Select())
    left.client.publish("q", b"2")
    fail(left)
    assert left.client.names() == ["Basic.Nack"]
    assert [str(error) for _, error in left.stage.reported] == ["the disk is gone"]
    left.client.publish("q", b"3")
    assert left.client.names() == ["Basic.Ack"]
    assert left.client.count("q") == 1


def test_what_is_asked_for_waits_for_the_records_before_it(left):
    other = Client(left.stage).open()
    left.client.publish("q", b"2", b"3")
    left.client.send(commands.Basic.Get(queue="q", no_ack=True))
    other.send(commands.Queue.Purge(queue="q"))
    assert (left.client.names(), other.names()) == ([], [])
    go_on(left)
    assert left.client.names() == ["Basic.GetOk"]
    assert other.names() == ["Queue.PurgeOk"]
    assert other.count("q") == 0


def test_an_empty_queue_is_read_without_being_opened(left):
    left.client.send(commands.Basic.Get(queue="q"))
    left.client.send(commands.Queue.Purge(queue="q"))
    assert left.client.names() == ["Basic.GetEmpty", "Queue.PurgeOk"]
    assert not opened(left)


def test_a_consumer_waits_until_its_queue_is_opened(left):
    left.client.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
    other = Client(left.stage).open()
    other.publish("q", b"2")
    assert left.client.names() == []
    go_on(left)
    assert left.client.names() == ["Basic.ConsumeOk", "Basic.Deliver"]


def test_a_consumer_is_refused_if_the_log_cannot_be_recovered(left):
    left.client.send(commands.Basic.Consume(queue="q"))
    fail(left)
    (closed,) = [value for _, value in left.client.received()]
    assert (closed.name, closed.reply_code) == ("Connection.Close", 541)
    assert "the disk is gone" in closed.reply_text
    other = Client(left.stage).open()
    other.consume("q")
    assert opened(left) == {"q"}


def test_a_consumer_whose_connection_is_lost_meanwhile_is_none(left):
    left.client.send(commands.Basic.Consume(queue="q"))
    left.client.transport.lose()
    go_on(left)
    assert left.queue("q").consumer_count == 0
    assert left.stage.reported == []


def test_a_queue_that_is_deleted_meanwhile_stays_unopened(left):
    queue, other = left.queue("q"), Client(left.stage).open()
    left.client.send(commands.Basic.Consume(queue="q"))
    other.call(commands.Queue.Delete(queue="q"))
    go_on(left)
    assert left.client.names() == ["Channel.Close"]
    assert not queue.is_opened
    assert left.topics.logs["/", "q"].deleted
    assert left.stage.reported == []


def test_publishers_of_a_queue_that_goes_meanwhile_are_confirmed(left):
    left.client.call(commands.Confirm.Select())
    left.client.publish("q", b"2")
    left.stage.broker.delete_queue(left.vhost, left.queue("q"))
    left.stage.run()
    assert left.client.names() == ["Basic.Ack"]
    go_on(left)
    assert left.stage.turn.opening_count == 0
    assert left.topics.logs["/", "q"].deleted
    assert left.stage.reported == []


def test_a_transaction_waits_until_its_queues_are_opened(left):
    left.client.call(commands.Tx.Select())
    left.client.publish("q", b"2")
    left.client.publish("r", b"3")
    left.client.send(commands.Tx.Commit())
    assert left.client.names() == []
    go_on(left)
    assert left.client.names() == ["Tx.CommitOk"]
    assert (left.client.count("q"), left.client.count("r")) == (1, 1)


def test_a_transaction_fails_if_a_log_cannot_be_recovered(left):
    left.client.call(commands.Tx.Select())
    left.client.publish("q", b"2")
    left.client.publish("r", b"3")
    left.client.send(commands.Tx.Commit())
    fail(left)
    (closed,) = [value for _, value in left.client.received()]
    assert closed.name.endswith(".Close")
    other = Client(left.stage).open()
    assert (other.count("q"), other.count("r")) == (0, 0)
    assert not left.stage.broker.atomic.is_busy


def test_records_keep_the_settings_under_which_they_were_published(left):
    left.client.call(commands.Confirm.Select())
    left.client.publish("q", b"2", b"3")
    full = {"max-length": 1, "overflow": "reject-publish"}
    left.stage.broker.policies.put(PolicyDefinition("/", "p", "^q$", full))
    left.stage.broker.apply_policies("/")
    left.stage.run()
    go_on(left)
    assert left.client.names() == ["Basic.Ack"]
    left.client.publish("q", b"4")
    assert left.client.names() == ["Basic.Nack"]
    assert left.client.count("q") == 2


def test_an_order_can_change_before_a_queue_is_opened(left):
    queue = left.queue("q")
    assert queue.can_reorder
    queue.reorder(left.queue("ordered").settings)
    left.topics.recovering.open()
    left.client.publish("q", b"low", priority=1)
    left.client.publish("q", b"high", priority=2)
    assert get(left, "q") == b"high"


def test_a_node_that_stops_waits_for_the_queues_that_are_being_opened(left):
    left.client.call(commands.Confirm.Select())
    left.client.publish("q", b"2")
    ends = []

    async def stop():
        await left.stage.broker.caught_up(left.client.transport.committed)
        ends.append(left.stage.log("q").end)

    left.stage.spawn(stop())
    left.stage.run()
    assert ends == []
    go_on(left)
    assert ends == [2]
    assert left.client.names() == ["Basic.Ack"]


def test_a_reader_of_a_fanout_waits_until_the_queues_are_opened(left):
    names = [f"many {number}" for number in range(100)]
    for name in names:
        left.client.declare(name, durable=True)
        left.client.call(commands.Queue.Bind(queue=name, exchange="amq.fanout"))
        fill_and_empty(left, name)
    left.topics.recovering.open()
    left.restart()
    left.topics.recovering.is_open = False
    left.client.call(commands.Confirm.Select())
    left.client.publish("", b"2", exchange="amq.fanout")
    assert left.client.connection.waits
    assert left.stage.turn.opening_count == len(names)
    go_on(left)
    left.stage.advance(1)
    assert not left.client.connection.waits
    assert left.client.names() == ["Basic.Ack"]


MANY, OBJECTS_EACH_MAX = 2000, 12


def test_many_queues_open_no_log_and_make_few_objects(site):
    for number in range(MANY):
        site.client.declare(f"many {number}", durable=True)
    before = len(site.topics.logs)
    site.client.publish("many 7", b"body", delivery_mode=2)
    assert len(site.topics.logs) == before + 1
    definitions = site.vhost.topology.definitions()
    gc.collect()
    objects = len(gc.get_objects())
    site.restart()
    assert opened(site) == {"many 7"}
    assert len(site.counts()) == MANY + len(NAMES)
    assert site.client.count("many 7") == 1
    gc.collect()
    made = len(gc.get_objects()) - objects
    assert made < MANY * OBJECTS_EACH_MAX, len(definitions.queues)
