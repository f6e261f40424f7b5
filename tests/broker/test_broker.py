import gc
from itertools import count

import pytest

from leveret.core.chores import SLICE_NS_MAX, at_once
from leveret.core.definitions.administration import Administration
from leveret.core.exchanges.consistent_hash import SHARES_MAX
from leveret.core.queues.queue import Queue
from leveret.core.routing.message import MadeMessage
from leveret.errors import ChannelError
from leveret.ports import Durability
from leveret.ports.definitions import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    PolicyDefinition,
    QueueDefinition,
    VhostDefinition,
)
from tests.support.stage import Stage

OWNER = object()


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def vhost(stage):
    return stage.broker.vhosts["/"]


def declare(vhost, name, owner=OWNER, **options):
    fields = {"durable": False, "exclusive": False, "auto_delete": False, "arguments": {}}
    vhost.declare_queue(name, owner=owner, **{**fields, **options})


def run_through(work):
    """A coroutine that must not wait."""
    with pytest.raises(StopIteration) as end:
        work.send(None)
    return end.value.value


# -- queues


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_only_durable_queues_wait_for_the_disk(durability):
    stage = Stage(durability)
    declare(stage.broker.vhosts["/"], "kept", durable=True)
    declare(stage.broker.vhosts["/"], "passing")
    assert stage.log("kept").durability is durability
    assert stage.log("passing").durability is Durability.NONE


def test_a_deleted_queue_takes_its_log_along(stage, vhost):
    declare(vhost, "q")
    queue = stage.queue("q")
    stage.broker.delete_queue(vhost, queue)
    stage.run()
    assert "q" not in vhost.queues
    assert queue.deleted
    assert stage.log("q").deleted


def test_a_queue_is_deleted_once(stage, vhost):
    declare(vhost, "q")
    queue = stage.queue("q")
    stage.broker.delete_queue(vhost, queue)
    stage.run()
    declare(vhost, "q")
    stage.broker.delete_queue(vhost, queue)
    stage.run()
    assert "q" in vhost.queues
    assert not stage.log("q").deleted


def test_a_queue_that_must_be_empty_is_not_deleted_with_messages(stage, vhost):
    declare(vhost, "q")
    queue = stage.queue("q")
    queue.builder.add(0, 0, b"", b"q", b"\0\x3c" + bytes(12), b"m")
    with pytest.raises(ChannelError) as caught:
        stage.broker.delete_queue(vhost, queue, if_empty=True)
    assert caught.value.reply_text == "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    queue.flush()
    assert stage.broker.delete_queue(vhost, queue) == 1
    stage.run()


def test_a_queue_that_must_be_unused_is_not_deleted_with_consumers(stage, vhost):
    declare(vhost, "q")
    queue = stage.queue("q")
    queue.state.add_consumer(_Idle())
    with pytest.raises(ChannelError) as caught:
        stage.broker.delete_queue(vhost, queue, if_unused=True)
    assert caught.value.reply_text == "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"


class _Idle:
    priority = 0

    def capacity(self):
        return 0

    def queue_gone(self):
        pass


def test_the_queues_of_an_owner_go_with_it(stage, vhost):
    other = object()
    declare(vhost, "mine", exclusive=True)
    declare(vhost, "others", owner=other, exclusive=True)
    declare(vhost, "everybodys")
    at_once(stage.broker.release_owner(vhost, OWNER))
    stage.run()
    assert sorted(vhost.queues) == ["everybodys", "others"]
    with pytest.raises(ChannelError):
        stage.broker.find_queue(vhost, "others", OWNER)
    assert stage.broker.find_queue(vhost, "others", other) is stage.queue("others")


def test_the_queues_of_an_owner_are_freed_one_by_one(stage, vhost):
    for number in range(3):
        declare(vhost, f"q{number}", exclusive=True)
    gc.collect()  # no queue of another test is to go meanwhile
    left = []
    for _ in stage.broker.release_owner(vhost, OWNER):
        stage.run()
        left.append(sum(type(each) is Queue for each in gc.get_objects()))
    assert left == [left[0], left[0] - 1, left[0] - 2]


def test_a_vhost_goes_with_its_queues(stage, vhost):
    declare(vhost, "q")
    stage.broker.remove_vhost("/")
    stage.run()
    assert stage.broker.vhosts == {}
    assert stage.log("q").deleted


# -- policies


def ttl_policy(ttl_ms, **options):
    return PolicyDefinition("/", "p", "^q", {"message-ttl": ttl_ms}, **options)


@pytest.mark.covers("B-400")
def test_a_policy_counts_for_queues_that_are_and_that_will_be(stage, vhost):
    declare(vhost, "q1", arguments={"x-message-ttl": 500})
    declare(vhost, "other")
    stage.broker.policies.put(ttl_policy(1000))
    stage.broker.apply_policies("/")
    declare(vhost, "q2")
    ttls = {name: stage.queue(name).settings.message_ttl_ms for name in vhost.queues}
    assert ttls == {"q1": 500, "q2": 1000, "other": None}
    assert stage.queue("q2").policy.policy == "p"

    stage.broker.policies.put(ttl_policy(200, operator=True))
    stage.broker.apply_policies("/")
    assert stage.queue("q1").settings.message_ttl_ms == 200
    assert stage.queue("q2").policy.operator_policy == "p"

    for operator in (False, True):
        stage.broker.policies.remove("/", "p", operator=operator)
    stage.broker.apply_policies("/")
    ttls = {name: stage.queue(name).settings.message_ttl_ms for name in vhost.queues}
    assert ttls == {"q1": 500, "q2": None, "other": None}
    assert stage.queue("q2").policy.policy is None


@pytest.fixture
def slow(stage):
    """Every look at the clock takes a tenth of what chores may take in a turn."""
    looks = count(step=SLICE_NS_MAX // 10)
    stage.turn.clock_ns = lambda: next(looks)
    return stage


def policies_of(stage, vhost):
    return {stage.queue(name).settings.message_ttl_ms for name in vhost.queues}


def test_a_policy_is_followed_in_slices_by_all_that_is_and_comes_meanwhile(slow, vhost):
    for number in range(100):
        declare(vhost, f"q{number}")
    slow.broker.policies.put(ttl_policy(1000))
    slow.broker.apply_policies("/")
    assert not slow.broker.follows_policies
    assert policies_of(slow, vhost) == {1000, None}
    declare(vhost, "q-new")
    slow.broker.delete_queue(vhost, slow.queue("q99"))
    slow.run()
    assert slow.broker.follows_policies
    assert policies_of(slow, vhost) == {1000}


def test_a_policy_that_changes_while_it_is_followed_counts_as_it_is_at_last(slow, vhost):
    for number in range(100):
        declare(vhost, f"q{number}")
    for ttl in (1000, 2000, 3000):
        slow.broker.policies.put(ttl_policy(ttl))
        slow.broker.apply_policies("/")
        slow.broker.chores.pump()
        assert not slow.broker.follows_policies
    slow.run()
    assert slow.broker.follows_policies
    assert policies_of(slow, vhost) == {3000}


def test_a_virtual_host_may_go_while_its_policies_are_followed(slow, vhost):
    for number in range(100):
        declare(vhost, f"q{number}")
    slow.broker.policies.put(ttl_policy(1000))
    slow.broker.apply_policies("/")
    slow.broker.remove_vhost("/")
    slow.run()
    assert slow.broker.follows_policies


def test_a_queue_takes_the_name_of_one_whose_bindings_are_going(slow, vhost):
    for name in ("old", "other"):
        declare(vhost, name)
        for number in range(100):
            vhost.bind_queue(name, "amq.topic", f"key.{number}", {}, None)
    slow.broker.delete_queue(vhost, slow.queue("old"))
    vhost.rename_queue(slow.queue("other"), "old")
    slow.run()
    assert len(vhost.exchanges["amq.topic"].outgoing) == 100
    queues = vhost.route(vhost.exchanges["amq.topic"], ["key.5"], None)
    assert queues == [slow.queue("old")]


# -- virtual hosts that take long to go


def a_large_vhost(stage):
    """One with a hundred queues, and who deletes it as an operator does."""
    administration = Administration(
        stage.access,
        stage.metadata,
        random_name=lambda: stage.broker.random_name(""),
        on_vhost_added=stage.broker.add_vhost,
        on_vhost_deleted=stage.broker.remove_vhost,
        policies=stage.broker.policies,
    )
    administration.restore(stage.definitions())
    administration.add_vhost("v")
    vhost = stage.broker.vhosts["v"]
    vhost.declare_exchange(
        "x", "fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    for number in range(100):
        declare(vhost, f"q{number}", durable=True)
        vhost.bind_queue(f"q{number}", "x", "", {}, None)
    return administration, vhost


def kept(stage):
    """Return what another start would find in the virtual host."""
    found = run_through(stage.metadata.load())
    of_vhost = [d for d in (*found.queues, *found.exchanges, *found.bindings) if d.vhost == "v"]
    return [d.name for d in found.vhosts], of_vhost


def test_a_vhost_goes_in_slices(slow):
    administration, vhost = a_large_vhost(slow)
    queues = list(vhost.queues.values())
    administration.delete_vhost("v")
    assert "v" not in slow.broker.vhosts
    assert 0 < len(vhost.queues) < 100
    assert kept(slow) == ([], [])  # a restart finds nothing of it
    slow.run()
    assert not vhost.queues
    assert all(queue.deleted and queue.log.deleted for queue in queues)
    assert slow.broker._quota.queue_count == 0
    assert slow.broker._quota.exchange_count == len(slow.broker.vhosts["/"].exchanges)
    assert slow.reported == []


def test_a_vhost_that_comes_again_while_it_goes_is_another(slow):
    administration, old = a_large_vhost(slow)
    last = slow.topics.logs["v", "q99"]
    administration.delete_vhost("v")
    administration.add_vhost("v")
    vhost = slow.broker.vhosts["v"]
    assert old.queues
    assert not vhost.queues
    for number in range(50, 100):
        declare(vhost, f"q{number}", durable=True)
    slow.run()
    assert not old.queues
    assert last.deleted
    assert len(vhost.queues) == 50
    assert not any(queue.deleted or queue.log.deleted for queue in vhost.queues.values())
    names, of_vhost = kept(slow)
    assert "v" in names
    assert len(of_vhost) == 50
    assert slow.broker._quota.queue_count == 50


def test_a_queue_of_a_vhost_that_goes_has_no_dead_letters(slow):
    """Its exchange may be another's by now."""
    administration, old = a_large_vhost(slow)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    declare(old, "dying", arguments={**arguments, "x-message-ttl": 0})
    queue = old.queues["dying"]
    administration.delete_vhost("v")
    administration.add_vhost("v")
    vhost = slow.broker.vhosts["v"]
    declare(vhost, "dead")
    assert not queue.deleted
    slow.broker.publisher.publish(old, MadeMessage(b"", b"dying", {}, b"late"))
    slow.run()
    assert vhost.queues["dead"].message_count == 0


def test_a_node_that_stops_leaves_nothing_of_a_vhost_that_goes(slow):
    administration, vhost = a_large_vhost(slow)
    administration.delete_vhost("v")

    async def committed(_queues):
        return True

    assert vhost.queues
    run_through(slow.broker.caught_up(committed))
    assert not vhost.queues
    slow.run()
    assert slow.reported == []


@pytest.mark.covers("B-178")
def test_a_queue_whose_policy_changes_is_announced(stage, vhost):
    declare(vhost, "q")
    declare(vhost, "other")
    told = []
    stage.broker.events.emit = lambda key, headers: told.append((key, headers["name"]))
    stage.broker.policies.put(ttl_policy(1000))
    stage.broker.apply_policies("/")
    stage.broker.apply_policies("/")
    stage.broker.policies.remove("/", "p", operator=False)
    stage.broker.apply_policies("/")
    assert told == [("queue.policy.updated", "q"), ("queue.policy.cleared", "q")]


def test_a_policy_is_there_when_queues_are_rebuilt():
    stage = Stage()
    stage.broker.policies.put(ttl_policy(1000))
    stage.restore(Definitions(vhosts=[VhostDefinition("/")], queues=[QueueDefinition("/", "q")]))
    assert stage.queue("q").settings.message_ttl_ms == 1000


def test_a_changed_vhost_counts_at_once(stage, vhost):
    stage.broker.change_vhost(VhostDefinition("/", limits={"max-queues": 0}))
    with pytest.raises(ChannelError, match="queue limit in vhost"):
        declare(vhost, "q")


# -- from the store


def test_definitions_are_rebuilt():
    stage = Stage()
    stage.restore(
        Definitions(
            vhosts=[VhostDefinition("one"), VhostDefinition("two")],
            exchanges=[ExchangeDefinition("one", "x", "fanout")],
            queues=[QueueDefinition("one", "q"), QueueDefinition("two", "q")],
            bindings=[BindingDefinition("one", "x", "q", "queue")],
        )
    )
    one = stage.broker.vhosts["one"]
    (builder,) = one.cache("x").lookup(b"").builders
    assert builder.owner is one.queues["q"]
    assert sorted(stage.topics.logs) == [("one", "q"), ("two", "q")]


# -- the way down


def test_the_way_down_waits_for_all_queues_while_some_go():
    stage = Stage(Durability.FSYNC)
    vhost = stage.broker.vhosts["/"]
    for name in ("a", "b"):
        declare(vhost, name, durable=True)
    awaited = []

    async def committed(queues):
        awaited.extend(queue.name for queue in queues)
        stage.broker.delete_queue(vhost, stage.queue("a"))
        return True

    run_through(stage.broker.caught_up(committed))
    stage.run()
    assert awaited == ["a", "b"]


# -- users


@pytest.mark.parametrize(
    ("user", "password", "expected"),
    [("guest", "guest", True), ("guest", "wrong", False), ("nobody", "", False)],
)
def test_a_password_is_the_users(stage, user, password, expected):
    for _ in range(2):
        assert (run_through(stage.broker.authenticate(user, password)) is not None) is expected


def test_a_password_is_worked_out_once(stage):
    run_through(stage.broker.authenticate("guest", "guest"))
    stage.password_checks.is_open = False
    assert run_through(stage.broker.authenticate("guest", "guest"))


def test_a_changed_password_is_worked_out_anew(stage):
    run_through(stage.broker.authenticate("guest", "guest"))
    stage.add_user("guest", password="new")
    assert not run_through(stage.broker.authenticate("guest", "guest"))
    assert run_through(stage.broker.authenticate("guest", "new"))


# -- what has many bindings


@pytest.fixture
def many(slow, vhost):
    """Exchange x leads to queue q by many bindings, and to others."""
    for name in ("q", "r"):
        declare(vhost, name)
    for name in ("x", "y"):
        vhost.declare_exchange(
            name, "topic", durable=True, auto_delete=False, internal=False, arguments={}
        )
    for number in range(200):
        vhost.bind_queue("q", "x", f"a.{number}", {}, OWNER)
    vhost.bind_queue("r", "x", "a.#", {}, OWNER)
    vhost.bind_exchange("x", "y", "#", {})
    return slow


def routed(vhost, exchange, key):
    return sorted(q.name for q in vhost.route(vhost.exchanges[exchange], [key], None))


def test_a_deleted_queue_gets_nothing_while_its_bindings_are_removed(many, vhost):
    assert routed(vhost, "y", "a.1") == ["q", "r"]
    many.broker.delete_queue(vhost, many.queue("q"))
    outgoing = vhost.exchanges["x"].outgoing
    assert 1 < len(outgoing) < 201
    assert [routed(vhost, "y", f"a.{number}") for number in range(200)] == [["r"]] * 200
    vhost.unbind_queue("q", "x", "a.0", {}, OWNER)
    assert [held for held in vhost.definitions().bindings if held.destination == "q"] == []
    many.run()
    assert len(outgoing) == 1


def test_a_queue_that_is_declared_anew_has_none_of_its_bindings_and_keeps_new_ones(many, vhost):
    many.broker.delete_queue(vhost, many.queue("q"))
    declare(vhost, "q")
    vhost.bind_queue("q", "x", "a.0", {}, OWNER)
    many.run()
    assert routed(vhost, "x", "a.0") == ["q", "r"]
    assert routed(vhost, "x", "a.1") == ["r"]


def test_a_deleted_exchange_is_gone_while_its_bindings_are_removed(many, vhost):
    graph = vhost.topology.graph
    vhost.delete_exchange("x", if_unused=False)
    assert len(graph.queue_bindings["q"]) > 1
    assert routed(vhost, "y", "a.1") == []
    with pytest.raises(ChannelError):
        vhost.bind_queue("q", "x", "b", {}, OWNER)
    vhost.declare_exchange(
        "x", "topic", durable=True, auto_delete=False, internal=False, arguments={}
    )
    vhost.bind_queue("q", "x", "a.7", {}, OWNER)
    many.run()
    assert routed(vhost, "x", "a.7") == ["q"]
    assert routed(vhost, "x", "a.8") == []
    assert len(graph.queue_bindings["q"]) == 2  # that of its name is the other


def test_what_is_left_to_choose_from_is_chosen_at_once(slow, vhost):
    for kind in ("x-consistent-hash", "x-modulus-hash", "x-random"):
        vhost.declare_exchange(
            kind, kind, durable=False, auto_delete=False, internal=False, arguments={}
        )
        for name in ("p", "q"):
            declare(vhost, name)
            for number in range(50):
                vhost.bind_queue(name, kind, str(number + 1), {}, OWNER)
        slow.broker.delete_queue(vhost, slow.queue("q"))
        assert [routed(vhost, kind, f"k{number}") for number in range(50)] == [["p"]] * 50
        slow.run()


def test_a_consistent_hash_exchange_leads_to_a_bounded_number_of_queues(stage, vhost):
    vhost.declare_exchange(
        "x", "x-consistent-hash", durable=False, auto_delete=False, internal=False, arguments={}
    )
    for number in range(SHARES_MAX):
        declare(vhost, f"q{number}")
        vhost.bind_queue(f"q{number}", "x", "1", {}, OWNER)
    declare(vhost, "q")
    with pytest.raises(ChannelError, match="destinations already"):
        vhost.bind_queue("q", "x", "1", {}, OWNER)
    vhost.bind_queue("q0", "x", "2", {}, OWNER)
