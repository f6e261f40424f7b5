"""Changing queues while they are used."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from leveret.broker import alter_queue
from leveret.core.definitions.validation import AdministrationError
from leveret.errors import ChannelError, ToleratedError
from leveret.ports.definitions import Paused, PolicyDefinition
from tests.support.client import Client
from tests.support.examples import examples
from tests.support.memory_log import MemoryTopicStore
from tests.support.stage import Stage


class KeptTopics(MemoryTopicStore):
    """Every log outlives its broker."""

    def open(self, vhost, topic, *rest, **options):
        left = self.logs.get((vhost, topic))
        log = super().open(vhost, topic, *rest, **options)
        if left is not None and not left.deleted:
            log.take_over(left)
        return log


class Floor:
    """A broker with an operator and a client; `q` is bound to `amq.direct` by `key`."""

    def __init__(self, **settings):
        self.stage = Stage(topics=KeptTopics(), **settings)
        self.broker = self.stage.broker
        self.vhost = self.broker.vhosts["/"]
        self.client = Client(self.stage).open()
        self.client.declare("q", durable=True)
        self.client.call(commands.Queue.Bind(queue="q", exchange="amq.direct", routing_key="key"))

    @property
    def queue(self):
        return self.stage.queue("q")

    def find(self, name):
        return self.vhost.find_queue(name)

    def change(self, arguments, name="q"):
        alter_queue.change_arguments(self.broker, self.find(name), arguments)
        self.stage.run()

    def rename(self, new_name, name="q"):
        alter_queue.rename(self.broker, self.find(name), new_name)
        self.stage.run()

    def pause(self, paused=Paused.DELIVERIES, name="q"):
        alter_queue.pause(self.broker, self.find(name), paused)
        self.stage.run()

    def resume(self, name="q"):
        alter_queue.resume(self.broker, self.find(name))
        self.stage.run()

    def kept(self):
        """Return what the store has, or will have with its next flush."""
        store = self.stage.metadata
        return [each for each in {**store.kept, **store.unwritten}.values() if each is not None]

    def consume(self, name="q", tag="c", **options):
        self.client.send(commands.Basic.Consume(queue=name, consumer_tag=tag, **options))
        answer = self.client.frames.pop(0)[1]
        assert answer.name == "Basic.ConsumeOk"

    def bodies(self):
        return [delivery.body for delivery in self.client.deliveries()]


@pytest.fixture
def floor():
    return Floor()


# -- pausing


def test_a_paused_queue_hands_out_nothing_and_takes_everything(floor):
    floor.consume()
    floor.pause()
    floor.client.publish("q", b"1", b"2")
    assert floor.bodies() == []
    assert floor.client.call(commands.Basic.Get(queue="q")).name == "Basic.GetEmpty"
    assert (floor.queue.message_count, floor.queue.consumer_count) == (2, 1)
    floor.resume()
    assert floor.bodies() == [b"1", b"2"]


def test_a_paused_stream_goes_on_where_it_was(floor):
    arguments = {"x-queue-type": "stream"}
    floor.client.declare("s", durable=True, arguments=arguments)
    floor.client.call(commands.Basic.Qos(prefetch_count=10))
    floor.consume("s")
    floor.client.publish("s", b"1")
    assert floor.bodies() == [b"1"]
    floor.pause(name="s")
    floor.client.publish("s", b"2")
    assert floor.bodies() == []
    floor.resume("s")
    assert floor.bodies() == [b"2"]
    with pytest.raises(AdministrationError, match="a stream takes whatever"):
        floor.pause(Paused.ALL, name="s")


def test_what_is_published_can_be_refused_meanwhile(floor):
    floor.client.call(commands.Confirm.Select())
    floor.client.publish("q", b"before")
    assert floor.client.names() == ["Basic.Ack"]
    floor.pause(Paused.ALL)
    floor.consume()
    floor.client.publish("q", b"refused")
    assert floor.client.names() == ["Basic.Nack"]
    assert floor.queue.message_count == 1
    floor.pause(Paused.DELIVERIES)
    floor.client.publish("q", b"taken")
    assert floor.client.names() == ["Basic.Ack"]
    floor.resume()
    assert floor.bodies() == [b"before", b"taken"]


def test_messages_expire_while_their_queue_is_paused(floor):
    floor.client.declare("short", durable=True, arguments={"x-message-ttl": 1000})
    floor.consume("short")
    floor.pause(name="short")
    floor.client.publish("short", b"1")
    floor.stage.advance(2)
    assert floor.find("short").message_count == 0
    floor.resume("short")
    assert floor.bodies() == []


def test_a_pause_survives_a_restart(floor):
    floor.client.publish("q", b"1", delivery_mode=2)
    floor.pause()
    again = restarted(floor)
    again.consume()
    assert again.bodies() == []
    again.resume()
    assert again.bodies() == [b"1"]


def restarted(floor):
    """Another broker over what the store and the logs have."""
    again = object.__new__(Floor)
    again.stage = Stage(topics=floor.stage.topics)
    kept = floor.stage.metadata
    left = {**kept.kept, **kept.unwritten}
    again.stage.metadata.kept = {key: each for key, each in left.items() if each is not None}
    again.broker = again.stage.broker
    again.vhost = again.broker.vhosts["/"]
    kept = floor.kept()
    of = lambda name: [each for each in kept if type(each).__name__ == name]  # noqa: E731
    again.vhost.restore(of("ExchangeDefinition"), of("QueueDefinition"), of("BindingDefinition"))
    again.client = Client(again.stage).open()
    again.stage.run()
    return again


# -- arguments


@pytest.mark.covers("C-213")
def test_arguments_change_at_once_and_are_kept(floor):
    floor.client.publish("q", b"1", b"2", b"3")
    floor.change({"x-max-length": 2})
    assert floor.queue.message_count == 2
    floor.change({"x-message-ttl": 60_000})
    assert floor.queue.definition.arguments == {"x-max-length": 2, "x-message-ttl": 60_000}
    floor.change({"x-max-length": None, "x-message-ttl": None})
    floor.client.publish("q", b"4")
    assert floor.queue.message_count == 3
    assert floor.queue.definition in floor.kept()
    assert restarted(floor).queue.definition.arguments == {}


def test_a_single_active_consumer_comes_and_goes(floor):
    floor.consume(tag="a")
    floor.consume(tag="b")
    floor.change({"x-single-active-consumer": True})
    floor.client.publish("q", b"1", b"2")
    assert served(floor) == ["a", "a"]
    floor.change({"x-single-active-consumer": None})
    floor.client.publish("q", b"3", b"4")
    assert set(served(floor)) == {"a", "b"}


def served(floor):
    """The tags of the consumers that got something."""
    frames = [frame for _, frame in floor.client.received()]
    return [frame.consumer_tag for frame in frames if isinstance(frame, commands.Basic.Deliver)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-max-length": -1}, "invalid arg 'x-max-length'"),
        ({"x-dead-letter-exchange": 5}, "invalid type"),
        ({"x-max-age": "1D"}, "of queue type"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
    ],
)
def test_arguments_are_checked_as_at_declaration(floor, arguments, reason):
    with pytest.raises(ChannelError, match=reason):
        floor.change(arguments)
    assert floor.queue.definition.arguments == {}


def test_a_backlog_is_served_by_priority_once_somebody_wants_it(floor):
    for number in range(6):
        floor.client.publish("q", b"%d" % number, priority=number % 3)
    floor.change({"x-max-priority": 5})
    floor.consume()
    assert floor.bodies() == [b"2", b"5", b"1", b"4", b"0", b"3"]
    floor.client.send(commands.Basic.Ack(multiple=True))
    assert floor.queue.log.settled.count == 6
    floor.change({"x-max-priority": None})
    floor.client.publish("q", b"low", priority=0)
    floor.client.publish("q", b"high", priority=5)
    assert floor.bodies() == [b"low", b"high"]


@pytest.mark.covers("C-213")
def test_a_classic_queue_becomes_a_quorum_queue_and_classic_again(floor):
    floor.consume()
    floor.pause()
    floor.client.publish("q", b"1", b"2")
    floor.change({"x-queue-type": "quorum", "x-delivery-limit": 1})
    assert floor.queue.settings.delivery_limit == 1
    floor.resume()
    first, second = floor.client.deliveries()
    assert (first.body, second.body) == (b"1", b"2")
    floor.client.send(commands.Basic.Reject(delivery_tag=first.tag, requeue=True))
    (again,) = floor.client.deliveries()
    floor.client.send(commands.Basic.Reject(delivery_tag=again.tag, requeue=True))
    assert floor.client.deliveries() == []  # it came back too often
    floor.client.send(commands.Basic.Ack(delivery_tag=second.tag))
    floor.change({"x-queue-type": None, "x-delivery-limit": None})
    floor.client.publish("q", b"3")
    assert floor.bodies() == [b"3"]
    assert floor.queue.settings.delivery_limit is None


def test_groups_take_turns_once_somebody_wants_it(floor):
    for body in (b"a1", b"a2", b"b1"):
        floor.client.publish("q", body, headers={"x-message-group": body[:1].decode()})
    floor.change({"x-group-ordering": True})
    floor.consume()
    found = floor.client.deliveries()
    assert sorted(one.body for one in found) == [b"a1", b"b1"]
    floor.client.send(commands.Basic.Ack(multiple=True))
    assert floor.bodies() == [b"a2"]


def test_limits_and_lifetimes_stay_when_the_order_changes(floor):
    floor.change({"x-max-length-bytes": 3})
    floor.client.publish("q", b"1", b"2", expiration="1000")
    floor.change({"x-max-priority": 2})
    floor.client.publish("q", b"3", b"4", priority=1)
    assert floor.queue.message_count == 3
    floor.stage.advance(2)
    floor.consume()
    assert floor.bodies() == [b"4"]  # "3" was at the head when there was too much


def test_filters_stay_when_the_order_changes(floor):
    floor.consume(arguments={"x-filter-tags": "red"})
    floor.client.publish("q", b"1", headers={"x-tags": "blue"})
    floor.change({"x-max-priority": 2})
    floor.client.publish("q", b"2", headers={"x-tags": "red"})
    floor.client.publish("q", b"3", headers={"x-tags": "blue"})
    assert floor.bodies() == [b"2"]


@pytest.mark.parametrize(
    "arguments",
    [{"x-queue-type": "quorum"}, {"x-max-priority": 5}, {"x-group-ordering": True}],
)
def test_the_order_stays_while_somebody_holds_messages(floor, arguments):
    floor.client.publish("q", b"1")
    floor.client.send(commands.Basic.Get(queue="q"))
    with pytest.raises(AdministrationError, match="cannot change now"):
        floor.change(arguments)
    assert floor.queue.definition.arguments == {}


def test_a_queue_becomes_no_stream_and_a_stream_no_queue(floor):
    with pytest.raises(AdministrationError, match="cannot change from classic to stream"):
        floor.change({"x-queue-type": "stream"})
    floor.client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    with pytest.raises(AdministrationError, match="cannot change from stream to classic"):
        floor.change({"x-queue-type": None}, name="s")
    floor.change({"x-queue-type": "classic"})


# -- other declarations


@pytest.mark.covers("C-213")
def test_another_declaration_is_refused_or_a_warning(floor):
    other = commands.Queue.Declare(queue="q", durable=True, arguments={"x-max-length": 1})
    assert floor.client.call(other).reply_code == 406
    policy = PolicyDefinition("/", "p", "^q$", {"redeclare-mismatch": "warn"})
    floor.broker.policies.put(policy)
    floor.broker.apply_policies("/")
    client = Client(floor.stage).open()
    assert client.call(other).name == "Queue.DeclareOk"
    ((subject, error),) = floor.stage.reported
    assert subject is floor.queue
    assert isinstance(error, ToleratedError)
    assert "inequivalent arg 'x-max-length'" in str(error)
    assert floor.queue.definition.arguments == {}


# -- names


@pytest.mark.covers("C-213")
def test_a_renamed_queue_keeps_its_messages_its_consumers_and_its_bindings(floor):
    floor.consume()
    floor.client.publish("q", b"0")
    (delivery,) = floor.client.deliveries()
    floor.rename("new")
    assert floor.vhost.queues.keys() == {"new"}
    floor.client.publish("new", b"1")
    floor.client.publish("q", b"2")
    floor.client.publish("key", b"3", exchange="amq.direct")
    assert floor.bodies() == [b"1", b"2", b"3"]
    floor.client.send(commands.Basic.Ack(delivery_tag=delivery.tag))
    assert floor.find("new").leased_count == 3


@pytest.mark.covers("C-213")
def test_clients_know_a_renamed_queue_by_its_old_name(floor):
    floor.rename("new")
    client = floor.client
    answer = client.call(commands.Queue.Declare(queue="q", durable=True))
    assert (answer.name, answer.queue) == ("Queue.DeclareOk", "q")
    assert client.call(commands.Queue.Declare(queue="q", passive=True)).queue == "q"
    assert client.call(commands.Queue.Declare(queue="new", passive=True)).queue == "new"
    bind = commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.*")
    assert client.call(bind).name == "Queue.BindOk"
    client.publish("a.b", b"1", exchange="amq.topic")
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert floor.bodies() == [b"1"]
    unbind = commands.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="a.*")
    assert client.call(unbind).name == "Queue.UnbindOk"
    assert client.call(commands.Queue.Purge(queue="q")).name == "Queue.PurgeOk"
    assert client.call(commands.Queue.Delete(queue="q")).message_count == 0
    assert floor.find("new") is not None  # it is not deleted by a name of the past


def test_who_declares_by_a_name_of_the_past_otherwise_is_told_the_new_one(floor):
    floor.rename("new")
    answer = floor.client.call(commands.Queue.Declare(queue="q", durable=False))
    assert answer.reply_text.startswith(
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/' (now called "
        "'new'): received 'false' but current is 'true'"
    )


def test_an_alias_can_go_and_its_name_be_taken(floor):
    floor.rename("new")
    floor.vhost.remove_alias("q")
    assert floor.find("q") is None
    confirmed = commands.Queue.Declare(queue="q", passive=True)
    assert floor.client.call(confirmed).reply_code == 404
    client = Client(floor.stage).open()
    client.declare("q")
    client.publish("q", b"1")
    assert (floor.queue.message_count, floor.find("new").message_count) == (1, 0)
    with pytest.raises(ChannelError, match="no alias 'q'"):
        floor.vhost.remove_alias("q")


def test_a_queue_can_have_its_name_back(floor):
    floor.client.publish("q", b"1")
    floor.rename("new")
    floor.rename("q", "new")
    assert floor.queue.definition.aliases == ("new",)
    floor.client.publish("new", b"2")
    floor.client.publish("q", b"3")
    floor.consume()
    assert floor.bodies() == [b"1", b"2", b"3"]
    again = restarted(floor)
    assert again.find("new") is again.queue


@pytest.mark.parametrize("name", ["q", "other", "amq.mine", "", "x" * 256])
def test_a_name_must_be_free(floor, name):
    floor.client.declare("other")
    with pytest.raises((ChannelError, AdministrationError)):
        floor.rename(name)
    assert floor.vhost.queues.keys() == {"q", "other"}


def test_an_alias_is_no_free_name(floor):
    floor.rename("new")
    floor.client.declare("other")
    with pytest.raises(ChannelError, match="not free"):
        floor.rename("q", "other")


def test_who_belongs_to_a_connection_keeps_its_name(floor):
    floor.client.declare("mine", exclusive=True)
    with pytest.raises(ChannelError, match="exclusive access"):
        floor.rename("new", "mine")


def test_aliases_are_few(floor):
    for number in range(alter_queue.ALIASES_MAX):
        floor.rename(f"q{number}")
    with pytest.raises(AdministrationError, match="aliases"):
        floor.rename("once too often")
    floor.rename("q")


def test_aliases_go_with_their_queue(floor):
    floor.rename("new")
    floor.client.call(commands.Queue.Delete(queue="new"))
    assert floor.vhost.topology.aliases == {}
    floor.client.declare("q")
    floor.client.publish("q", b"1")
    assert floor.queue.message_count == 1


def test_policies_apply_by_the_new_name(floor):
    floor.broker.policies.put(PolicyDefinition("/", "p", "^new$", {"max-length": 1}))
    floor.client.publish("q", b"1", b"2")
    floor.rename("new")
    assert floor.find("new").message_count == 1


def test_after_a_restart_there_is_the_old_state_or_the_new_one(floor):
    floor.client.publish("q", b"1", delivery_mode=2)
    store = floor.stage.metadata
    floor.stage.run()
    before = {**store.kept, **store.unwritten}
    floor.rename("new")
    after = restarted(floor)
    assert after.vhost.queues.keys() == {"new"}
    assert after.find("q") is after.find("new")
    after.client.publish("key", b"2", exchange="amq.direct")
    after.consume("q")
    assert after.bodies() == [b"1", b"2"]
    store.kept, store.unwritten = before, {}
    old = restarted(floor)
    assert old.vhost.queues.keys() == {"q"}
    old.consume()
    assert old.bodies() == [b"1", b"2"]


# -- whatever is done, in whatever order


class Hands:
    """An operator's on one queue, which has one of three names, and a client's who knows `q`."""

    NAMES = ("q", "a", "b")

    def __init__(self):
        self.floor = Floor()
        self.published = 0
        self.taken = []

    @property
    def definition(self):
        return self.floor.find("q").definition

    def publish(self):
        number, self.published = self.published, self.published + 1
        known = self.NAMES[number % 3]
        self.floor.client.publish(
            known if self.floor.find(known) else "q",
            b"%d" % number,
            priority=number % 5,
            headers={"x-message-group": str(number % 3)},
            delivery_mode=2,
        )

    def _got(self):
        client = self.floor.client
        client.send(commands.Basic.Get(queue="q"))
        client.frames = [
            (channel, frame)
            for channel, frame in client.frames
            if not isinstance(frame, commands.Basic.GetEmpty)
        ]
        return client.deliveries()

    def take(self):
        found = self._got()
        for delivery in found:
            self.taken.append(delivery.body)
            self.floor.client.send(commands.Basic.Ack(delivery_tag=delivery.tag))
        return bool(found)

    def give_back(self):
        for delivery in self._got():
            self.floor.client.send(commands.Basic.Nack(delivery_tag=delivery.tag))

    def toggle(self, key, value, without):
        value = None if key in self.definition.arguments else value
        self.floor.change({key: value, without: None})

    def priorities(self):
        if self.definition.arguments.get("x-queue-type") != "quorum":
            self.toggle("x-max-priority", 4, without="x-group-ordering")

    def groups(self):
        self.toggle("x-group-ordering", True, without="x-max-priority")

    def quorum(self):
        self.toggle("x-queue-type", "quorum", without="x-max-priority")

    def rename(self):
        present = self.definition.name
        self.floor.rename(self.NAMES[(self.NAMES.index(present) + 1) % 3], present)

    def pause(self):
        self.floor.resume() if self.definition.paused else self.floor.pause()

    def restart(self):
        self.floor = restarted(self.floor)


STEPS = (
    *("publish", "take", "give_back", "priorities", "groups", "quorum"),
    *("rename", "pause", "restart"),
)


@pytest.mark.covers("C-213")
@settings(max_examples=examples(60))
@given(steps=st.lists(st.sampled_from(STEPS), max_size=40))
def test_no_change_loses_or_doubles_a_message(steps):
    hands = Hands()
    for step in steps:
        getattr(hands, step)()
    hands.floor.resume()
    while hands.take():
        pass
    expected = [b"%d" % number for number in range(hands.published)]
    assert sorted(hands.taken, key=int) == expected


# -- partitioned queues


@pytest.fixture
def parted(floor):
    floor.client.declare("p", durable=True, arguments={"x-partitions": 3})
    keys = [str(number) for number in range(12)]
    for key in keys:
        floor.client.publish("p", key.encode(), headers={"x-partition-key": key})
    return floor


def test_a_paused_partitioned_queue_hands_out_nothing(parted):
    parted.pause(name="p")
    parted.consume("p", no_ack=True)
    assert parted.bodies() == []
    parted.resume("p")
    assert len(parted.bodies()) == 12


def test_a_renamed_partitioned_queue_keeps_its_partitions(parted):
    parted.rename("new", "p")
    assert parted.client.count("new") == 12
    assert all(part.name == "new" for part in parted.find("new").partitions)
    parted.client.publish("p", b"by its alias", headers={"x-partition-key": "k"})
    assert parted.client.count("new") == 13


def test_arguments_of_a_partitioned_queue_change_in_all_partitions(parted):
    parted.change({"x-max-length": 5}, "p")
    assert parted.client.count("p") == 5
    parted.change({"x-max-length": None, "x-max-priority": 3}, "p")
    assert parted.client.count("p") == 5
    assert all(part.settings.max_priority == 3 for part in parted.find("p").partitions)


def test_a_policy_holds_for_all_partitions(parted):
    policy = PolicyDefinition("/", "short", "^p$", {"max-length": 4}, apply_to="queues")
    parted.broker.policies.put(policy)
    parted.broker.apply_policies("/")
    parted.stage.run()
    assert parted.client.count("p") == 4
    assert {part.policy.policy for part in parted.find("p").partitions} == {"short"}


@pytest.mark.parametrize("changes", [{"x-partitions": 5}, {"x-partition-by": "random"}])
def test_placement_does_not_change_with_an_argument(parted, changes):
    with pytest.raises(AdministrationError, match="leveret topic partitions"):
        parted.change(changes, "p")
