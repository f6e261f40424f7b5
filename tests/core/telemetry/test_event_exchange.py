import pytest

from leveret.core.alarms import Resource
from leveret.core.events import acting_as, address_term
from leveret.core.topology.predeclared import EVENT_EXCHANGE
from leveret.ports.definitions import VhostDefinition
from tests.core.vhost_fakes import exchange
from tests.support.messages import heard, listen
from tests.support.stage import Stage


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def vhost(stage):
    return stage.broker.vhosts["/"]


def declare(vhost, name, **options):
    fields = {"durable": False, "exclusive": False, "auto_delete": False, "arguments": {}}
    return vhost.declare_queue(name, **{**fields, "owner": None, **options})


@pytest.mark.covers("B-178")
def test_an_event_is_a_persistent_message_without_a_body(stage):
    listen(stage, EVENT_EXCHANGE)
    stage.broker.events.emit("thing.happened", {"name": "x", "count": 3, "who": None, "on": True})
    [event] = heard(stage)
    assert (event.exchange, event.key, event.body) == (EVENT_EXCHANGE, "thing.happened", b"")
    assert event.properties.delivery_mode == 2
    assert event.properties.timestamp == stage.now // 1000
    assert event.headers == {
        "name": "x",
        "count": 3,
        "who": "",
        "on": True,
        "user_who_performed_action": "rmq-internal",
        "timestamp_in_ms": stage.now,
    }


def test_without_a_binding_there_is_no_event(stage, vhost):
    events = stage.broker.events
    assert not events.wanted
    events.emit("thing.happened", {"name": object()})  # not even looked at
    listen(stage, EVENT_EXCHANGE)
    assert events.wanted
    vhost.unbind_queue("listener", EVENT_EXCHANGE, "#", {}, None)
    assert not events.wanted


def test_without_its_virtual_host_there_is_no_event(stage):
    listen(stage, EVENT_EXCHANGE)
    stage.broker.remove_vhost("/")
    assert not stage.broker.events.wanted
    stage.broker.events.emit("thing.happened", {})
    stage.run()


def test_who_did_it_is_told_and_forgotten_afterwards(stage):
    listen(stage, EVENT_EXCHANGE)
    emit = stage.broker.events.emit
    with acting_as("alice"):
        emit("a", {})
        with acting_as(""):
            emit("b", {})
        emit("alarm.set", {})
    emit("c", {"user_who_performed_action": "bob"})
    assert [
        (event.key, event.headers.get("user_who_performed_action")) for event in heard(stage)
    ] == [("a", "alice"), ("b", "rmq-internal"), ("alarm.set", None), ("c", "bob")]


@pytest.mark.covers("B-178")
def test_queues_exchanges_and_bindings(stage, vhost):
    listen(stage, EVENT_EXCHANGE)
    declare(vhost, "q", durable=True, arguments={"x-max-length": 5, "x-overflow": "drop-head"})
    exchange(vhost, "x", "fanout", auto_delete=True)
    vhost.bind_queue("q", "x", "k", {"a": 1}, None)
    vhost.bind_exchange("amq.topic", "x", "kk", {})
    vhost.unbind_exchange("amq.topic", "x", "kk", {})
    stage.broker.delete_queue(vhost, stage.queue("q"))
    binding = {
        "source_name": "x",
        "source_kind": "exchange",
        "destination_name": "q",
        "destination_kind": "queue",
        "routing_key": "k",
        "arguments": ['{<<"a">>,signedint,1}'],
    }
    between = {
        **binding,
        "destination_name": "amq.topic",
        "destination_kind": "exchange",
        "routing_key": "kk",
        "arguments": [],
    }
    assert [(event.key, without_the_usual(event)) for event in heard(stage)] == [
        (
            "queue.created",
            {
                "name": "q",
                "durable": True,
                "auto_delete": False,
                "exclusive": False,
                "owner_pid": "",
                "arguments": [
                    '{<<"x-max-length">>,signedint,5}',
                    '{<<"x-overflow">>,longstr,<<"drop-head">>}',
                ],
            },
        ),
        (
            "exchange.created",
            {
                "name": "x",
                "type": "fanout",
                "durable": False,
                "auto_delete": True,
                "internal": False,
                "arguments": [],
                "policy": "",
            },
        ),
        ("binding.created", binding),
        ("binding.created", between),
        ("binding.deleted", between),
        ("binding.deleted", binding),
        ("exchange.deleted", {"name": "x"}),
        ("queue.deleted", {"name": "q"}),
    ]


def without_the_usual(event):
    usual = {"vhost": "/", "user_who_performed_action": "rmq-internal"}
    assert usual.items() <= event.headers.items()
    return {k: v for k, v in event.headers.items() if k not in usual and k != "timestamp_in_ms"}


def test_the_bindings_of_a_deleted_exchange_are_told_after_it(stage, vhost):
    exchange(vhost, "x")
    listen(stage, EVENT_EXCHANGE)
    vhost.bind_queue("listener", "x", "k", {}, None)
    vhost.delete_exchange("x", if_unused=False)
    assert [event.key for event in heard(stage)] == [
        "binding.created",
        "exchange.deleted",
        "binding.deleted",
    ]


@pytest.mark.covers("B-178")
def test_alarms(stage):
    listen(stage, EVENT_EXCHANGE)
    stage.broker.alarms.set(Resource.MEMORY, low=True)
    stage.broker.alarms.set(Resource.MEMORY, low=True)
    stage.broker.alarms.set(Resource.MEMORY, low=False)
    told = {"source": "memory", "node": "leveret@test", "timestamp_in_ms": stage.now}
    assert [(event.key, event.headers) for event in heard(stage)] == [
        ("alarm.set", told),
        ("alarm.cleared", told),
    ]


def test_a_virtual_host_comes_and_goes_with_what_is_in_it(stage):
    listen(stage, EVENT_EXCHANGE)
    stage.broker.add_vhost(VhostDefinition("v"))
    stage.broker.remove_vhost("v")
    found = [(event.key, event.headers["name"]) for event in heard(stage)]
    names = [name for key, name in found if key == "exchange.created"]
    assert "amq.direct" in names
    assert EVENT_EXCHANGE not in names
    assert [name for key, name in found if key == "exchange.deleted"] == names


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "{127,0,0,1}"),
        ("::1", "{0,0,0,0,0,0,0,1}"),
        ("fe80::1%eth0", "{65152,0,0,0,0,0,0,1}"),
        ("unknown", "unknown"),
    ],
)
def test_addresses_are_told_as_erlang_prints_them(host, shown):
    assert address_term(host) == shown


def test_headers_of_all_kinds_can_be_told(stage):
    listen(stage, EVENT_EXCHANGE)
    stage.broker.events.emit("policy.set", {"definition": {"max-length": 3}, "tags": ("a", "b")})
    [event] = heard(stage)
    assert event.headers["definition"] == {"max-length": 3}
    assert event.headers["tags"] == ["a", "b"]


@pytest.mark.parametrize(
    "value", [1 << 64, {"deep": {"n": -(1 << 70)}}, {"k" * 256: 1}, [object], {1, 2}]
)
def test_what_a_field_table_cannot_hold_is_told_as_text(stage, value):
    listen(stage, EVENT_EXCHANGE)
    stage.broker.events.emit("parameter.set", {"value": value, "name": "n"})
    [event] = heard(stage)
    assert event.headers["name"] == "n"
    assert isinstance(event.headers["value"], str)


def test_a_queue_that_expires_is_nobodys_doing(stage, vhost):
    listen(stage, EVENT_EXCHANGE)
    with acting_as("alice"):
        declare(vhost, "q", arguments={"x-expires": 1000})
    with acting_as("bob"):  # whose work happened to run the timers
        stage.advance(2)
    assert [(event.key, event.headers["user_who_performed_action"]) for event in heard(stage)] == [
        ("queue.created", "alice"),
        ("queue.deleted", "rmq-internal"),
    ]
