"""Queues that are opened when they are used, compared with queues that are opened at once."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from leveret.core.logs.batching import Batching
from leveret.core.queues.delivering import Delivering
from leveret.core.queues.queue import Queue
from leveret.core.queues.unopened_queue import UnopenedQueue
from leveret.errors import StorageError
from leveret.ports.definitions import PolicyDefinition
from tests.support.client import Client
from tests.support.memory_log import MemoryTopicStore
from tests.support.stage import Stage

NAMES = ("q", "r", "limited", "ordered", "full")
OWN_METHODS = {"await_commit", "flush", "pump"}
COMPILED = [name for name in vars(Batching) | vars(Delivering) if not name.startswith("__")]
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
        kinds = {name: type(queue) for name, queue in self.vhost.queues.items()}
        found = {
            name: (queue.message_count, queue.leased_count, queue.consumer_count, str(queue))
            for name, queue in self.vhost.queues.items()
        }
        assert kinds == {name: type(queue) for name, queue in self.vhost.queues.items()}
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
    return {name for name, queue in site.vhost.queues.items() if type(queue) is Queue}


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


@pytest.mark.parametrize("name", sorted(set(COMPILED) - OWN_METHODS))
def test_it_is_opened_by_whoever_reads_what_it_has_not(site, name):
    """Fields of a compiled base are never unset, as slots are: they would be empty."""
    queue = site.queue("q")
    found = getattr(queue, name)
    if isinstance(queue, UnopenedQueue):  # it has that
        queue.open()
    assert found == getattr(queue, name)


def test_it_is_the_same_object_with_the_same_counters(site):
    queue, counters = site.queue("q"), site.queue("q").counters
    assert type(queue) is UnopenedQueue
    site.client.publish("q", b"body")
    assert type(site.queue("q")) is Queue
    assert site.queue("q") is queue
    assert queue.counters is counters
    assert counters.counted() == {"publish": 1}


@pytest.mark.parametrize(
    "arguments", [{"x-expires": 1000}, {"x-dedup-window": 1000}, {"x-queue-type": "stream"}]
)
def test_a_queue_that_acts_by_itself_is_opened_at_once(site, arguments):
    site.client.declare("acting", durable=True, arguments=arguments)
    assert type(site.queue("acting")) is not UnopenedQueue


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


def test_a_deleted_queue_leaves_no_log(site):
    site.client.send(commands.Queue.Delete(queue="q"))
    assert site.topics.logs["/", "q"].deleted
    assert site.queue("q") is None


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
