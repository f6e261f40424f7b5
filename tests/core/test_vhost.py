from contextlib import contextmanager

import pytest

from leveret.core.access.limits import NodeLimits, Quota
from leveret.core.chores import at_once
from leveret.core.routing.message import MadeMessage
from leveret.core.settings.policies import Policies
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    PolicyDefinition,
    QueueDefinition,
)
from tests.core.vhost_fakes import (
    FakeStore,
    declare,
    exchange,
    follow_policies,
    make_vhost,
    names,
    with_headers,
)

OTHERS_QUEUE = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could "
    "be originally declared on another connection or the exclusive property value does not match "
    "that of the original declaration."
)


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def vhost(store):
    return make_vhost(store)


@contextmanager
def refused(text):
    """Expect a channel error of exactly this reply text."""
    with pytest.raises(ChannelError) as caught:
        yield
    assert caught.value.reply_text == text


def builders(vhost, exchange_name, key):
    return [b.owner.definition.name for b in vhost.cache(exchange_name).lookup(key).builders]


@pytest.mark.covers("B-109")
def test_a_vhost_starts_with_the_exchanges_clients_expect(vhost, store):
    assert {x.name: x.definition.type for x in vhost.exchanges.values()} == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.event": "topic",
        "amq.rabbitmq.trace": "topic",
    }
    assert all(x.definition.durable for x in vhost.exchanges.values())
    assert store.kept == []


def test_publishing_needs_an_exchange_that_takes_it(vhost):
    with refused("NOT_FOUND - no exchange 'x' in vhost '/'"):
        vhost.cache("x")
    with refused(
        "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'"
    ):
        vhost.cache("amq.rabbitmq.trace")


def test_a_key_that_is_not_utf8_closes_the_connection(vhost):
    with pytest.raises(ConnectionClosingError) as caught:
        vhost.cache("amq.direct").lookup(b"\xff\x01")
    assert caught.value.reply_text == "FRAME_ERROR - cannot decode <<255,1>>"


# ----- exchanges


def test_an_exchange_is_made_once_and_found_again(vhost):
    made = exchange(vhost, "x\r\n", "topic")
    assert vhost.exchanges["x"] is made
    assert exchange(vhost, "x", "topic") is made
    assert vhost.check_exchange("x\n") is made
    with refused(
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': "
        "received 'direct' but current is 'topic'"
    ):
        exchange(vhost, "x")


def test_a_broker_s_own_exchange_may_be_declared_as_it_is(vhost):
    assert exchange(vhost, "amq.topic", "topic", durable=True) is vhost.exchanges["amq.topic"]
    with refused("ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'"):
        exchange(vhost, "amq.x")


@pytest.mark.covers("B-201", "B-208")
def test_a_missing_exchange_and_a_missing_type_are_named(vhost):
    with refused("NOT_FOUND - no exchange 'x' in vhost '/'"):
        vhost.check_exchange("x")
    with refused("PRECONDITION_FAILED - unknown exchange type 'foo'"):
        exchange(vhost, "", "foo")
    with refused(
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' "
        "in exchange 'x' in vhost '/'"
    ):
        exchange(vhost, "x", arguments={"alternate-exchange": 1})


@pytest.mark.covers("B-229")
@pytest.mark.parametrize(
    "operation",
    [
        lambda vhost: exchange(vhost, ""),
        lambda vhost: vhost.check_exchange(""),
        lambda vhost: vhost.delete_exchange("", if_unused=False),
        lambda vhost: vhost.bind_queue("missing", "", "k", {}, None),
        lambda vhost: vhost.unbind_queue("missing", "", "k", {}, None),
        lambda vhost: vhost.bind_exchange("missing", "", "k", {}),
        lambda vhost: vhost.bind_exchange("", "missing", "k", {}),
        lambda vhost: vhost.unbind_exchange("", "missing", "k", {}),
    ],
)
def test_the_default_exchange_is_left_alone(vhost, operation):
    with refused("ACCESS_REFUSED - operation not permitted on the default exchange"):
        operation(vhost)


@pytest.mark.covers("exchange.delete")
def test_deleting_an_exchange(vhost):
    vhost.delete_exchange("missing", if_unused=True)
    with refused(
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed"
    ):
        vhost.delete_exchange("amq.direct", if_unused=False)
    exchange(vhost, "x")
    declare(vhost, "q")
    vhost.bind_queue("q", "x", "k", {}, None)
    with refused("PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"):
        vhost.delete_exchange("x", if_unused=True)
    vhost.delete_exchange("x", if_unused=False)
    assert "x" not in vhost.exchanges
    exchange(vhost, "x")
    assert builders(vhost, "x", b"k") == []


def test_only_being_a_source_is_use_of_an_exchange(vhost):
    exchange(vhost, "a")
    exchange(vhost, "b")
    vhost.bind_exchange("b", "a", "k", {})
    vhost.delete_exchange("b", if_unused=True)
    vhost.delete_exchange("a", if_unused=True)
    assert not {"a", "b"} & set(vhost.exchanges)


def test_the_generation_changes_with_the_exchanges(vhost):
    seen = [vhost.topology.generation]
    exchange(vhost, "x")
    seen.append(vhost.topology.generation)
    exchange(vhost, "x")
    assert vhost.topology.generation == seen[-1]
    vhost.delete_exchange("x", if_unused=False)
    seen.append(vhost.topology.generation)
    assert len(set(seen)) == 3


# ----- queues


def test_a_queue_is_made_once_and_reachable_by_its_name(vhost):
    assert builders(vhost, "", b"q") == []
    queue = declare(vhost, "q\n")
    assert declare(vhost, "q") is queue
    assert vhost.check_queue("\rq", None) is queue
    assert builders(vhost, "", b"q") == ["q"]
    vhost.remove_queue(queue)
    assert builders(vhost, "", b"q") == []
    with refused("NOT_FOUND - no queue 'q' in vhost '/'"):
        vhost.check_queue("q", None)


def test_each_queue_is_told_from_earlier_ones_of_its_name(vhost):
    first = declare(vhost, "q")
    vhost.remove_queue(first)
    second = declare(vhost, "q")
    vhost.remove_queue(first)
    assert vhost.queues == {"q": second}
    assert first.definition.incarnation != second.definition.incarnation != ""


def test_a_queue_that_differs_or_is_ill_declared_is_refused(vhost):
    declare(vhost, "q")
    with refused(
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'true' but current is 'false'"
    ):
        declare(vhost, "q", durable=True)
    with refused("ACCESS_REFUSED - queue name 'amq.q' contains reserved prefix 'amq.*'"):
        declare(vhost, "amq.q")
    with refused(
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' "
        "in queue 'new' in vhost '/'"
    ):
        declare(vhost, "new", arguments={"x-dead-letter-exchange": 1})
    with refused(
        "PRECONDITION_FAILED - invalid arg 'x-expires' for queue 'new' in vhost '/': {value_zero,0}"
    ):
        declare(vhost, "new", arguments={"x-expires": 0})
    assert list(vhost.queues) == ["q"]


@pytest.mark.covers("B-126")
def test_the_broker_names_a_queue_and_knows_the_name_again(vhost):
    queue = declare(vhost, "\n")
    assert queue.definition.name == "amq.gen-random1"
    assert declare(vhost, "amq.gen-random1") is queue
    assert declare(vhost, "", arguments={"x-name-prefix": "p"}).definition.name == "p-random3"
    with refused(
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    ):
        declare(vhost, "", arguments={"x-queue-type": "quorum"})


@pytest.mark.covers("B-124", "B-204")
def test_an_exclusive_queue_is_its_connection_s_alone(vhost):
    mine, yours = object(), object()
    queue = declare(vhost, "q", mine, exclusive=True, durable=True)
    assert not queue.definition.durable
    assert vhost.check_queue("q", mine) is queue
    assert declare(vhost, "q", mine, exclusive=True) is queue
    for operation in (
        lambda: vhost.check_queue("q", yours),
        lambda: vhost.check_queue("q", None),
        lambda: declare(vhost, "q", yours, exclusive=True, auto_delete=True),
        lambda: declare(vhost, "q", mine),
        lambda: vhost.bind_queue("q", "amq.direct", "k", {}, yours),
    ):
        with refused(OTHERS_QUEUE):
            operation()


def test_a_shared_queue_cannot_be_made_exclusive_afterwards(vhost):
    declare(vhost, "q")
    with refused(OTHERS_QUEUE):
        declare(vhost, "q", object(), exclusive=True)


def test_exclusive_queues_are_found_by_their_connection(vhost):
    mine, yours = object(), object()
    first = declare(vhost, "a", mine, exclusive=True)
    second = declare(vhost, "b", mine, exclusive=True)
    declare(vhost, "c", yours, exclusive=True)
    declare(vhost, "d", mine)
    assert vhost.exclusive_queues(mine) == [first, second]
    for queue in (first, second):
        vhost.remove_queue(queue)
    assert vhost.exclusive_queues(mine) == []


@pytest.mark.covers("B-141")
def test_a_default_queue_type_applies_where_it_can():
    vhost = make_vhost(default_queue_type="quorum")
    assert declare(vhost, "a", durable=True).definition.arguments == {"x-queue-type": "quorum"}
    declare(vhost, "a", durable=True)
    assert declare(vhost, "b").definition.arguments == {}
    assert declare(vhost, "c", durable=True, auto_delete=True).definition.arguments == {}
    assert declare(vhost, "", object(), durable=True, exclusive=True).definition.arguments == {}


def test_a_queue_that_cannot_be_opened_leaves_no_trace(store):
    vhost = make_vhost(store)

    def fail(_definition, _owner):
        raise OSError

    vhost._open_queue = fail
    with pytest.raises(OSError):
        declare(vhost, "q", durable=True)
    assert (vhost.queues, store.kept) == ({}, [])


# ----- bindings


@pytest.mark.covers("B-201")
def test_binding_needs_both_ends_and_names_the_source_first(vhost):
    with refused("NOT_FOUND - no exchange 'x' in vhost '/'"):
        vhost.bind_queue("q", "x", "k", {}, None)
    with refused("NOT_FOUND - no queue 'q' in vhost '/'"):
        vhost.bind_queue("q", "amq.direct", "k", {}, None)
    with refused("NOT_FOUND - no exchange 'd' in vhost '/'"):
        vhost.bind_exchange("d", "amq.direct", "k", {})


def test_a_bad_binding_is_refused_before_the_lock_is_looked_at(vhost):
    declare(vhost, "q", object(), exclusive=True)
    with refused(
        "PRECONDITION_FAILED - Topic binding key '#.#.#' uses 3 '#' wildcards, "
        "at most 2 are allowed"
    ):
        vhost.bind_queue("q", "amq.topic", "#.#.#", {}, None)


def test_bindings_come_and_go(vhost):
    declare(vhost, "q")
    vhost.bind_queue("q\n", "amq.direct\r", "k", {}, None)
    vhost.bind_queue("q", "amq.direct", "k", {}, None)
    assert builders(vhost, "amq.direct", b"k") == ["q"]
    vhost.unbind_queue("q", "amq.direct", "other", {}, None)
    vhost.unbind_queue("q", "amq.direct", "k", {"a": 1}, None)
    assert builders(vhost, "amq.direct", b"k") == ["q"]
    vhost.unbind_queue("q", "amq.direct", "k", {}, None)
    assert builders(vhost, "amq.direct", b"k") == []


def test_bindings_that_differ_in_arguments_are_two(vhost):
    declare(vhost, "q")
    for value in (1, True, 1.0):
        vhost.bind_queue("q", "amq.direct", "k", {"a": value}, None)
    assert len(vhost.exchanges["amq.direct"].outgoing) == 3
    assert builders(vhost, "amq.direct", b"k") == ["q"]
    vhost.unbind_queue("q", "amq.direct", "k", {"a": True}, None)
    assert builders(vhost, "amq.direct", b"k") == ["q"]


def test_unbinding_what_is_not_there_is_done_already(vhost):
    owner = object()
    declare(vhost, "q", owner, exclusive=True)
    vhost.bind_queue("q", "amq.direct", "other", {}, owner)
    vhost.unbind_queue("missing", "amq.direct", "k", {}, None)
    vhost.unbind_queue("q", "missing", "k", {}, None)
    vhost.unbind_queue("q", "amq.direct", "k", {}, None)
    vhost.unbind_exchange("missing", "amq.direct", "k", {})
    assert builders(vhost, "amq.direct", b"other") == ["q"]


def test_unbinding_another_connection_s_queue_is_refused(vhost):
    owner = object()
    declare(vhost, "q", owner, exclusive=True)
    vhost.bind_queue("q", "amq.direct", "k", {}, owner)
    with refused(OTHERS_QUEUE):
        vhost.unbind_queue("q", "amq.direct", "k", {}, object())
    vhost.unbind_queue("q", "amq.direct", "k", {}, owner)


@pytest.mark.covers("B-104")
def test_exchanges_hand_on_to_exchanges_and_cycles_end(vhost):
    for name in ("a", "b", "c"):
        exchange(vhost, name, "fanout")
    for source, destination in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "a")):
        vhost.bind_exchange(destination, source, "", {})
    declare(vhost, "q")
    declare(vhost, "p")
    vhost.bind_queue("q", "c", "", {}, None)
    vhost.bind_queue("q", "a", "", {}, None)
    vhost.bind_queue("p", "b", "", {}, None)
    for name in ("a", "b", "c"):
        assert sorted(builders(vhost, name, b"k")) == ["p", "q"]
    vhost.unbind_exchange("b", "a", "", {})
    assert builders(vhost, "a", b"k") == ["q"]


@pytest.mark.covers("B-108")
def test_an_auto_delete_exchange_goes_with_its_last_binding(vhost):
    for name in ("a", "b", "c"):
        exchange(vhost, name, "fanout", auto_delete=True)
    queue = declare(vhost, "q")
    vhost.bind_exchange("b", "a", "", {})
    vhost.bind_exchange("c", "b", "", {})
    vhost.bind_queue("q", "c", "", {}, None)
    vhost.bind_queue("q", "c", "again", {}, None)
    vhost.unbind_queue("q", "c", "again", {}, None)
    assert {"a", "b", "c"} <= set(vhost.exchanges)
    vhost.remove_queue(queue)
    assert not {"a", "b", "c"} & set(vhost.exchanges)


def test_an_auto_delete_exchange_that_was_never_bound_stays(vhost):
    exchange(vhost, "a", "fanout", auto_delete=True)
    vhost.unbind_queue("q", "a", "", {}, None)
    assert "a" in vhost.exchanges


@pytest.mark.covers("B-105")
def test_what_cannot_be_routed_goes_to_the_alternate(vhost):
    declare(vhost, "q")
    declare(vhost, "lost")
    exchange(vhost, "x", arguments={"alternate-exchange": "later"})
    vhost.bind_queue("q", "x", "k", {}, None)
    assert builders(vhost, "x", b"other") == []
    exchange(vhost, "later", "fanout")
    vhost.bind_queue("lost", "later", "", {}, None)
    assert builders(vhost, "x", b"other") == ["lost"]
    assert builders(vhost, "x", b"k") == ["q"]
    vhost.unbind_queue("q", "x", "k", {}, None)
    assert builders(vhost, "x", b"k") == ["lost"]
    vhost.delete_exchange("later", if_unused=False)
    assert builders(vhost, "x", b"k") == []


def test_an_alternate_without_bindings_is_missed_when_it_goes(vhost):
    exchange(vhost, "last", "fanout")
    exchange(vhost, "middle", "headers", arguments={"alternate-exchange": "last"})
    exchange(vhost, "first", arguments={"alternate-exchange": "middle"})
    declare(vhost, "q")
    vhost.bind_queue("q", "last", "", {}, None)
    assert not vhost.cache("first").cacheable
    assert builders(vhost, "first", b"k") == ["q"]
    vhost.delete_exchange("middle", if_unused=True)
    assert vhost.cache("first").cacheable
    assert builders(vhost, "first", b"k") == []
    exchange(vhost, "middle", "direct", arguments={"alternate-exchange": "last"})
    assert builders(vhost, "first", b"k") == ["q"]
    vhost.delete_exchange("middle", if_unused=True)
    assert builders(vhost, "first", b"k") == []


def test_headers_anywhere_on_the_way_make_routes_unfit_to_be_remembered(vhost):
    for name in ("a", "b"):
        exchange(vhost, name, "fanout")
    first = vhost.cache("a")
    vhost.bind_exchange("b", "a", "", {})
    assert first.cacheable
    vhost.bind_exchange("amq.headers", "b", "", {})
    assert not first.cacheable
    declare(vhost, "q")
    vhost.bind_queue("q", "amq.headers", "", {"kind": "x"}, None)
    assert names(vhost.route(vhost.exchanges["a"], [""], with_headers({"kind": "x"}))) == ["q"]
    assert names(vhost.route(vhost.exchanges["a"], [""], with_headers({"kind": "y"}))) == []
    vhost.unbind_exchange("amq.headers", "b", "", {})
    assert first.cacheable
    assert vhost.cache("a") is first
    assert not vhost.cache("amq.headers").cacheable


# ----- what is kept


def test_durable_things_are_kept_and_no_others(vhost, store):
    exchange(vhost, "x", durable=True)
    exchange(vhost, "transient")
    queue = declare(vhost, "q", durable=True)
    declare(vhost, "transient")
    declare(vhost, "mine", object(), durable=True, exclusive=True)
    for source in ("x", "transient", "amq.direct"):
        for name in ("q", "transient"):
            vhost.bind_queue(name, source, "k", {}, None)
    vhost.bind_exchange("x", "amq.direct", "k", {})
    kept = [
        ExchangeDefinition("/", "x", "direct"),
        queue.definition,
        BindingDefinition("/", "x", "q", "queue", "k"),
        BindingDefinition("/", "amq.direct", "q", "queue", "k"),
        BindingDefinition("/", "amq.direct", "x", "exchange", "k"),
    ]
    assert store.kept == kept
    vhost.delete_exchange("x", if_unused=False)
    assert store.kept == [kept[1], kept[3]]
    vhost.remove_queue(queue)
    assert store.kept == []


def test_what_was_kept_comes_back_and_is_not_kept_again(store):
    vhost = make_vhost(store)
    vhost.restore(
        [ExchangeDefinition("/", "x", "topic"), ExchangeDefinition("/", "amq.direct", "direct")],
        [QueueDefinition("/", "q", incarnation="i")],
        [
            BindingDefinition("/", "x", "q", "queue", "a.*"),
            BindingDefinition("/", "amq.direct", "x", "exchange", "a.b"),
            BindingDefinition("/", "x", "gone", "queue", "a.*"),
            BindingDefinition("/", "gone", "q", "queue", "a.*"),
        ],
    )
    assert store.kept == []
    assert builders(vhost, "", b"q") == ["q"]
    assert builders(vhost, "amq.direct", b"a.b") == ["q"]
    assert vhost.queues["q"].definition.incarnation == "i"
    assert vhost.queues["q"].owner is None


# ----- exchanges that keep messages


@pytest.mark.covers("B-175")
def test_a_new_binding_gets_what_its_exchange_keeps(vhost):
    source = exchange(vhost, "x", "x-recent-history")
    messages = [MadeMessage(b"x", key, {}) for key in (b"k", b"l", b"k")]
    for message in messages:
        assert names(vhost.route(source, [message.routing_key.decode()], message)) == []
    unpublished = MadeMessage(b"x", b"k", {})  # somebody wants to know where it would go
    assert vhost.topology.graph.find_queues(source, ["k"], unpublished) == []
    queue, other = declare(vhost, "q"), declare(vhost, "other")
    vhost.bind_queue("q", "x", "", {}, None)
    vhost.bind_queue("q", "x", "", {}, None)  # is there already
    assert queue.taken == messages
    exchange(vhost, "y")
    vhost.bind_queue("other", "y", "k", {}, None)
    vhost.bind_exchange("y", "x", "", {})
    assert other.taken == [messages[0], messages[2]]


def test_an_exchange_whose_arguments_are_refused_is_not_made(vhost, store):
    with refused("PRECONDITION_FAILED - Unsupported property: type"):
        exchange(vhost, "x", "x-consistent-hash", durable=True, arguments={"hash-property": "type"})
    assert "x" not in vhost.exchanges
    assert store.kept == []


@pytest.mark.covers("B-228")
def test_a_binding_that_its_exchange_refuses_is_not_made(vhost):
    exchange(vhost, "x", "x-local-random")
    declare(vhost, "q")
    with refused("PRECONDITION_FAILED - Destination not found"):
        vhost.bind_exchange("amq.direct", "x", "", {})
    with refused("PRECONDITION_FAILED - Non empty binding 'k' key not permitted"):
        vhost.bind_queue("q", "x", "k", {}, None)
    vhost.bind_queue("q", "x", "", {}, None)
    assert names(vhost.route(vhost.exchanges["x"], ["any"], None)) == ["q"]


# -- policies


@pytest.mark.covers("B-105", "B-400")
def test_an_alternate_may_come_from_a_policy_and_the_argument_wins():
    policies = Policies()
    vhost = make_vhost(policies=policies)
    declare(vhost, "q")
    exchange(vhost, "other", "fanout")
    vhost.bind_queue("q", "other", "", {}, None)
    plain = exchange(vhost, "plain")
    told = exchange(vhost, "told", arguments={"alternate-exchange": "nowhere"})
    cache = vhost.cache("plain")
    assert cache.lookup(b"k").builders == ()
    policies.put(PolicyDefinition("/", "p", "", {"alternate-exchange": "other"}))
    follow_policies(vhost)
    assert [builder.owner for builder in cache.lookup(b"k").builders] == [vhost.queues["q"]]
    assert names(vhost.route(exchange(vhost, "later"), ["k"], None)) == ["q"]
    assert vhost.route(told, ["k"], None) == []
    assert plain.policy.policy == "p"
    policies.remove("/", "p", operator=False)
    follow_policies(vhost)
    assert cache.lookup(b"k").builders == ()


# -- limits


EXCHANGES = len(make_vhost().exchanges)


@pytest.mark.covers("B-209", "B-222")
def test_what_goes_makes_room_for_something_else():
    quota = Quota(NodeLimits(queues_max=2, exchanges_max=EXCHANGES + 1))
    vhost = make_vhost(quota=quota)
    declare(vhost, "a")
    declare(vhost, "b")
    declare(vhost, "b")
    exchange(vhost, "x")
    with refused(
        "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in cluster (2) is reached"
    ):
        declare(vhost, "c")
    with refused(
        "PRECONDITION_FAILED - cannot declare exchange 'y' in vhost '/': exchange limit of "
        f"{EXCHANGES + 1} is reached"
    ):
        exchange(vhost, "y")
    vhost.remove_queue(vhost.queues["a"])
    vhost.delete_exchange("x", if_unused=False)
    declare(vhost, "c")
    exchange(vhost, "y")
    at_once(vhost.closing(vhost.remove_queue))
    assert (quota.queue_count, quota.exchange_count) == (0, 0)


def test_a_vhost_that_closes_tells_the_store_nothing():
    """The store has removed all of it; what has the names now is another's."""
    store = FakeStore()
    vhost = make_vhost(store)
    exchange(vhost, "x", durable=True)
    exchange(vhost, "y", durable=True)
    vhost.bind_exchange("x", "y", "k", {})
    vhost.bind_exchange("x", "amq.topic", "k", {})
    declare(vhost, "q", durable=True)
    vhost.bind_queue("q", "x", "k", {}, None)
    kept = list(store.kept)
    at_once(vhost.closing(vhost.remove_queue))
    assert store.kept == kept
    assert not vhost.queues


# -- how many arguments there may be

FEW = NodeLimits(arguments_bytes_max=3000, arguments_values_max=20, large_arguments_bytes_max=5000)
TOO_MANY = [
    {"x-a": "a" * 3000},
    {"a" * 200 + str(number): 1 for number in range(15)},
    {str(number): None for number in range(21)},
    {"x-a": [[None] * 10, {"b": [1] * 10}]},
]


@pytest.mark.parametrize("arguments", TOO_MANY)
def test_a_definition_has_a_limit_of_arguments(arguments):
    vhost = make_vhost(quota=Quota(FEW))
    declare(vhost, "q")
    exchange(vhost, "x", "headers")
    exchange(vhost, "y", "headers")
    for attempt in (
        lambda: declare(vhost, "r", arguments=arguments),
        lambda: exchange(vhost, "z", arguments=arguments),
        lambda: vhost.bind_queue("q", "x", "", arguments, None),
        lambda: vhost.unbind_queue("q", "x", "", arguments, None),
        lambda: vhost.bind_exchange("x", "y", "", arguments),
        lambda: vhost.check_arguments(arguments, "consumer 'c'"),
    ):
        with pytest.raises(ChannelError, match="have more than"):
            attempt()
    assert set(vhost.queues) == {"q"}
    assert not exchange(vhost, "x", "headers").outgoing


def test_large_arguments_of_a_virtual_host_have_a_limit_together():
    vhost = make_vhost(quota=Quota(FEW))
    large, small = {"x-a": "a" * 2000}, {"x-a": "a" * 900}
    large_arguments = vhost.topology.graph.large_arguments
    declare(vhost, "q", arguments=large)
    exchange(vhost, "x", "fanout", arguments=large)
    with pytest.raises(ChannelError, match="more than 5000 together"):
        vhost.bind_queue("q", "x", "", large, None)
    for number in range(20):
        vhost.bind_queue("q", "x", str(number), small, None)
    declare(vhost, "q", arguments=large)  # there it is
    vhost.delete_exchange("x", if_unused=False)
    exchange(vhost, "y", "fanout")
    vhost.bind_queue("q", "y", "", large, None)
    vhost.bind_queue("q", "y", "", large, None)
    assert large_arguments.octets > 4000
    vhost.remove_queue(vhost.queues["q"])
    assert large_arguments.octets == 0
