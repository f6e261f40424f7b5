"""Definitions as documents: what is read, what is refused and where, and what comes out again."""

import base64
import copy
import gc
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.access.limits import NodeLimits
from leveret.core.access.passwords import hash_password_as_rabbitmq, verify_password
from leveret.core.definitions.document import (
    DefinitionsError,
    VhostLimits,
    decode,
    document,
    parse,
)
from leveret.core.definitions.importing import Import, add_contents, rehearse, snapshot
from leveret.core.definitions.model import Model, NamedQueue
from leveret.ports.definitions import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    Paused,
    PolicyDefinition,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.ports.fields import WireInteger
from tests.core.vhost_fakes import declare
from tests.memory_metadata import MemoryMetadataStore
from tests.support.examples import examples

HASH = hash_password_as_rabbitmq("secret", b"salt")
QUEUE = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
# As `rabbitmqctl export_definitions` of RabbitMQ 3.10 writes it: lists of pairs, where its JSON
# writer was not told that they are objects.
FROM_RABBITMQ = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "users": [
        {
            "name": "alice",
            "password_hash": HASH,
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "limits": {"max-connections": 5},
            "tags": ["monitoring"],
        },
        {"name": "old", "password_hash": "", "tags": "administrator, management"},
    ],
    "vhosts": [
        {"limits": [], "metadata": {"description": "", "tags": []}, "name": "/"},
        {
            "limits": [["max-queues", 1]],
            "metadata": {"default_queue_type": "quorum", "description": "d", "tags": ["x"]},
            "name": "v",
        },
    ],
    "permissions": [{"user": "alice", "vhost": "v", "configure": "^a", "write": ".*", "read": ""}],
    "topic_permissions": [
        {"user": "alice", "vhost": "v", "exchange": "x", "write": "^{username}", "read": ".*"}
    ],
    "parameters": [
        {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 1}, "vhost": "v"},
        {
            "component": "operator_policy",
            "name": "op",
            "value": {
                "apply-to": "all",
                "definition": [["max-length", 5]],
                "pattern": "^q",
                "priority": 0,
            },
            "vhost": "v",
        },
        {"component": "shovel", "name": "s", "value": {"a": 1}, "vhost": "v"},
    ],
    "global_parameters": [{"name": "my", "value": [["a", [1, 2.5]]]}],
    "policies": [
        {
            "vhost": "v",
            "name": "ttl",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"message-ttl": 1000},
            "priority": 3,
        }
    ],
    "queues": [
        {**QUEUE, "name": "classic", "type": "classic", "vhost": "v"},
        {**QUEUE, "name": "quorum", "type": "quorum", "vhost": "v"},
        {**QUEUE, "name": "amq.gen-1"},
    ],
    "exchanges": [
        {
            "name": "x",
            "vhost": "v",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "arguments": {"alternate-exchange": "amq.fanout"},
        },
        {"name": "amq.direct", "vhost": "v", "type": "direct", "arguments": {}},
    ],
    "bindings": [
        {
            "source": "x",
            "vhost": "v",
            "destination": "classic",
            "destination_type": "queue",
            "routing_key": "#",
            "arguments": {"a": {"b": [1, "x", True, 0.1]}, "big": 2**40},
        },
        {"source": "x", "vhost": "v", "destination": "internal", "destination_type": "exchange"},
    ],
}


def held_by(model):
    definitions = snapshot(model.administration)
    add_contents(definitions, model.vhosts)
    return definitions


def node(definitions=None, limits=None):
    return Model(definitions or Definitions(), MemoryMetadataStore(), lambda: "random", limits)


def do(model, value, vhost=None, limits=None):
    parsed = parse(value, vhost)
    rehearse(parsed, held_by(model), limits)
    importing = Import(parsed, model.administration, model.vhosts)
    for _ in importing.perform():
        pass
    return importing


def exported(model, vhost=None):
    held = held_by(model)
    of_vhost = None if vhost is None else model.administration.vhost(vhost)
    return json.loads(json.dumps(document(held, "Leveret", "1", of_vhost)))


# -- reading


@pytest.mark.covers("B-405", "B-422")
def test_what_rabbitmq_writes_is_read():
    model = node()
    importing = do(model, FROM_RABBITMQ)
    assert importing.left_out == ["bindings[1]"]
    held = held_by(model)
    alice, old = held.users
    assert verify_password(alice.password_hash, "secret")
    assert (alice.limits, alice.tags) == ({"max-connections": 5}, ("monitoring",))
    assert old == UserDefinition("old", "", ("administrator", "management"))
    expected = VhostDefinition("v", "d", ("x",), "quorum", {"max-queues": 1})
    assert held.vhosts[1] == replace(expected, incarnation="internal-random")
    assert [policy.name for policy in held.policies] == ["ttl", "op"]
    assert held.policies[1] == PolicyDefinition("v", "op", "^q", {"max-length": 5}, operator=True)
    # The vhost's default type is not for queues that were defined without one.
    assert {queue.name: queue.arguments for queue in held.queues} == {
        "classic": {},
        "quorum": {"x-queue-type": "quorum"},
    }
    assert [exchange.name for exchange in held.exchanges] == ["x"]
    (binding,) = held.bindings
    inner = binding.arguments["a"]["b"][0]
    assert (type(inner), inner.wire_type) == (WireInteger, "long")


@pytest.mark.covers("B-422")
def test_keys_are_in_rabbitmqs_order():
    model = node()
    do(model, FROM_RABBITMQ)
    assert list(exported(model)) == [
        "rabbit_version",
        "rabbitmq_version",
        "product_name",
        "product_version",
        "rabbitmq_definition_format",
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "parameters",
        "global_parameters",
        "policies",
        "queues",
        "exchanges",
        "bindings",
    ]


@pytest.mark.covers("B-422")
def test_second_import_changes_nothing():
    model = node()
    do(model, FROM_RABBITMQ)
    before = exported(model)
    assert do(model, FROM_RABBITMQ).kept == []
    assert exported(model) == before
    assert do(model, before).kept == []
    assert exported(model) == before


def test_aliases_and_pauses_go_with_their_queues():
    queue = {**QUEUE, "aliases": ["old", "older"], "paused": "all"}
    model = node()
    do(model, {"vhosts": [{"name": "/"}], "queues": [queue]})
    assert model.vhosts["/"].find_queue("older").definition.paused is Paused.ALL
    (out,) = exported(model)["queues"]
    assert (out["aliases"], out["paused"]) == (["old", "older"], "all")
    do(model, {"queues": [{**QUEUE, "name": "other", "aliases": ["older", "q", "own"]}]})
    other = model.vhosts["/"].find_queue("other")
    assert other.definition.aliases == ("own",)  # the rest belongs to others


@pytest.mark.parametrize("wrong", [{"aliases": "old"}, {"aliases": [""]}, {"paused": "some"}])
def test_aliases_and_pauses_are_checked(wrong):
    with pytest.raises(DefinitionsError, match=next(iter(wrong))):
        do(node(), {"vhosts": [{"name": "/"}], "queues": [{**QUEUE, **wrong}]})


def test_what_exists_stays_or_is_brought_up_to_date():
    model = node(
        Definitions(
            vhosts=[VhostDefinition("/", limits={"max-queues": 7})],
            users=[UserDefinition("u", "hash", ("a",))],
            queues=[QueueDefinition("/", "q", arguments={"x-max-length": 1})],
            exchanges=[
                ExchangeDefinition("/", "x", "topic"),
                ExchangeDefinition("/", "y", "topic"),
            ],
        )
    )
    importing = do(
        model,
        {
            "users": [{"name": "u", "password_hash": HASH, "tags": []}],
            "vhosts": [{"name": "/", "description": "new"}],
            "queues": [{**QUEUE, "arguments": {"x-max-length": 2}}],
            "exchanges": [
                {"vhost": "/", "name": "x", "type": "fanout"},
                {"vhost": "/", "name": "y", "type": "topic"},
            ],
        },
    )
    held = held_by(model)
    assert verify_password(held.users[0].password_hash, "secret")
    assert held.vhosts == [VhostDefinition("/", "new", limits={"max-queues": 7})]
    assert held.queues[0].arguments == {"x-max-length": 1}
    assert [exchange.type for exchange in held.exchanges] == ["topic", "topic"]
    assert importing.kept == [
        "exchange 'x' in vhost '/' stays as it is: type is topic, the document says fanout",
        "queue 'q' in vhost '/' stays as it is: x-max-length is 1, the document says 2",
    ]
    assert importing.skipped == {"exchanges": 1, "queues": 1}


def test_queue_that_a_document_has_twice_is_told():
    rows = [QUEUE, {**QUEUE, "durable": False}]
    (told,) = do(node(), {"vhosts": [{"name": "/"}], "queues": rows}).kept
    assert told.endswith("durable is true, the document says false")


def test_strangers_are_mentioned():
    parsed = parse({"users": [{"name": "u", "nickname": 1}], "colour": "red", "explanation": "x"})
    assert parsed.ignored == ["colour", "users[0].nickname"]


@pytest.mark.covers("B-422")
def test_one_vhost_goes_out_and_into_another():
    model = node()
    do(model, FROM_RABBITMQ)
    of_one = exported(model, "v")
    assert "users" not in of_one
    assert all(
        "vhost" not in row for rows in of_one.values() if isinstance(rows, list) for row in rows
    )
    other = node(Definitions(vhosts=[VhostDefinition("w")]))
    do(other, of_one, "w")
    again = exported(other, "w")
    for section in ("parameters", "policies", "queues", "exchanges", "bindings"):
        assert again[section] == of_one[section]
    assert other.administration.vhost("w").limits == {"max-queues": 1}


def test_exclusive_queues_and_the_brokers_own_stay_at_home():
    model = node(Definitions(vhosts=[VhostDefinition("/")]))
    vhost = model.vhosts["/"]
    declare(vhost, "mine", owner=object(), exclusive=True)
    declare(vhost, "passing")
    for name in ("mine", "passing"):
        vhost.bind_queue(name, "amq.topic", "#", {}, vhost.queues[name].owner)
    out = exported(model)
    assert [queue["name"] for queue in out["queues"]] == ["passing"]
    assert [(one["source"], one["destination"]) for one in out["bindings"]] == [
        ("amq.topic", "passing")
    ]
    assert out["exchanges"] == []


# -- refusing


VHOST = {"vhosts": [{"name": "/"}]}


@pytest.mark.covers("B-422")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "an object was expected"),
        ({"users": {}}, "users: a list was expected"),
        ({"users": [1]}, "users[0]: an object was expected"),
        ({"users": [{}]}, "users[0].name: is missing"),
        ({"users": [{"name": 1}]}, "users[0].name: text was expected"),
        ({"users": [{"name": "\ud800"}]}, "users[0].name: not Unicode text"),
        ({"users": [{"name": "x" * 256}]}, "users[0].name: longer than 255 bytes"),
        ({"users": [{"name": ""}]}, "users[0]: a user name has 1 to 255 bytes of printable text"),
        (
            {"users": [{"name": "u", "password": "p"}]},
            "users[0].password: only its hash can be imported: see leveret hash-password",
        ),
        (
            {"users": [{"name": "u", "password_hash": "x"}]},
            "users[0].password_hash: password hash is not base64",
        ),
        (
            {"users": [{"name": "u", "password_hash": HASH, "hashing_algorithm": "rot13"}]},
            "users[0].password_hash: unknown password hashing algorithm 'rot13'",
        ),
        ({"users": [{"name": "u", "tags": 1}]}, "users[0].tags: a list of text was expected"),
        (
            {"users": [{"name": "u", "limits": {"max-channels": "1"}}]},
            'users[0]: Validation failed max-channels should be a number, actually was <<"1">>',
        ),
        (
            {"vhosts": [{"name": "v", "default_queue_type": "fast"}]},
            "vhosts[0]: unsupported default queue type 'fast'",
        ),
        ({"vhosts": [{"name": "v", "metadata": 1}]}, "vhosts[0].metadata: an object was expected"),
        (
            {
                "permissions": [
                    {"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}
                ]
            },
            "permissions[0]: no user 'u'",
        ),
        ({"queues": [{**QUEUE, "vhost": "none"}]}, "queues[0]: no vhost 'none'"),
        (
            {**VHOST, "queues": [{**QUEUE, "durable": 1}]},
            "queues[0].durable: true or false was expected",
        ),
        (
            {
                **VHOST,
                "queues": [QUEUE, {**QUEUE, "name": "r", "arguments": {"x-expires": -1}}],
            },
            "queues[1]: invalid arg 'x-expires' for queue 'r' in vhost '/': {value_negative,-1}",
        ),
        (
            {**VHOST, "queues": [{**QUEUE, "arguments": {"a": [1, {"b": 2**63}]}}]},
            "queues[0].arguments.a[1].b: does not fit into 64 bits",
        ),
        (
            {**VHOST, "queues": [{**QUEUE, "arguments": {"k" * 256: 1}}]},
            "queues[0].arguments: a key is longer than 255 bytes",
        ),
        (
            {**VHOST, "queues": [{**QUEUE, "type": "fast"}]},
            (
                "queues[0]: invalid arg 'x-queue-type' for queue 'q' in vhost '/': "
                "\"unsupported queue type 'fast'\""
            ),
        ),
        (
            {
                **VHOST,
                "queues": [QUEUE],
                "exchanges": [{"name": "x", "vhost": "/", "type": "headers"}],
                "bindings": [
                    {
                        "source": "x",
                        "vhost": "/",
                        "destination": "q",
                        "arguments": {"x-match": "some"},
                    }
                ],
            },
            (
                'bindings[0]: Invalid x-match field value <<"some">>; expected all, any, '
                "all-with-x, or any-with-x"
            ),
        ),
        (
            {
                "bindings": [
                    {"vhost": "/", "source": "x", "destination": "q", "destination_type": "x"}
                ]
            },
            "bindings[0].destination_type: 'queue' or 'exchange' was expected",
        ),
        (
            {
                **VHOST,
                "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"a": 1}}],
            },
            'policies[0]: Validation failed [{<<"a">>,1}] are not recognised policy settings',
        ),
        (
            {**VHOST, "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": 1}]},
            "policies[0].definition: an object was expected",
        ),
        (
            {
                **VHOST,
                "policies": [
                    {
                        "vhost": "/",
                        "name": "p",
                        "pattern": "",
                        "definition": {"expires": 1},
                        "priority": "high",
                    }
                ],
            },
            "policies[0].priority: a whole number was expected",
        ),
        (
            {
                "parameters": [
                    {"vhost": "/", "component": "operator_policy", "name": "p", "value": {}}
                ]
            },
            "parameters[0].value.pattern: is missing",
        ),
        (
            {
                **VHOST,
                "parameters": [
                    {
                        "vhost": "/",
                        "component": "vhost-limits",
                        "name": "limits",
                        "value": {"max-cats": 9},
                    }
                ],
            },
            'parameters[0]: Validation failed Unrecognised terms [{<<"max-cats">>,9}] in limits',
        ),
    ],
)
def test_what_is_wrong_is_named_and_nothing_happens(value, text):
    model = node()
    everything = {"users": [{"name": "first"}], **value} if isinstance(value, dict) else value
    with pytest.raises(DefinitionsError) as raised:
        do(model, everything)
    assert str(raised.value) == text
    assert exported(model)["users"] == []


@pytest.mark.parametrize("text", ["", "{", "[NaN]", "[1e999999]", "[" * 100_000, "1" * 5000])
def test_text_that_is_no_document_is_refused(text):
    with pytest.raises(DefinitionsError):
        parse(decode(text))


def test_deep_values_are_refused():
    value = 1
    for _ in range(40):
        value = [value]
    with pytest.raises(DefinitionsError, match="nested deeper than 32"):
        parse({"global_parameters": [{"name": "n", "value": value}]})


@pytest.mark.covers("B-222", "B-409")
def test_import_respects_limits_that_were_there_before():
    limited = Definitions(vhosts=[VhostDefinition("/", limits={"max-queues": 1})])
    two = {"queues": [QUEUE, {**QUEUE, "name": "r"}]}
    with pytest.raises(DefinitionsError, match=r"queues\[1\]: cannot declare queue 'r'"):
        do(node(limited), two)
    one = NodeLimits(queues_max=1)
    model = node(Definitions(vhosts=[VhostDefinition("/")]), one)
    with pytest.raises(DefinitionsError, match=r"limit in cluster \(1\)"):
        do(model, two, limits=one)
    assert model.vhosts["/"].queues == {}


def test_limits_may_be_lower_than_what_comes_with_them():
    limits = {
        "component": "vhost-limits",
        "vhost": "/",
        "name": "limits",
        "value": {"max-queues": 0},
    }
    model = node()
    do(model, {**VHOST, "parameters": [limits], "queues": [QUEUE]})
    assert list(model.vhosts["/"].queues) == ["q"]
    assert model.administration.vhost("/").limits == {"max-queues": 0}


def test_limits_stand_apart_in_what_is_parsed():
    limits = {"component": "vhost-limits", "name": "limits", "value": [["max-queues", 1]]}
    parsed = parse({"parameters": [limits]}, "v")
    assert parsed.items["parameters"][0].definition == VhostLimits("v", {"max-queues": 1})


PLACES = [
    (section, number, key)
    for section, rows in FROM_RABBITMQ.items()
    if isinstance(rows, list)
    for number, row in enumerate(rows)
    for key in row
]
WORDS = ["", "/", "v", "none", "topic", "\ud800", "(", "x" * 300, "operator_policy", "vhost-limits"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["x-match", "x-expires", "name", *WORDS]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@pytest.mark.covers("B-422")
@given(place=st.sampled_from(PLACES), value=ANYTHING)
def test_whatever_stands_somewhere_it_is_imported_or_refused(place, value):
    section, number, key = place
    changed = copy.deepcopy(FROM_RABBITMQ)
    changed[section][number][key] = value
    model = node()
    try:
        do(model, changed)
    except DefinitionsError:
        assert exported(model) == exported(node())
    else:
        do(model, exported(model))


# -- out, in, and out again


NAMES = st.text("abx.-ü", min_size=1, max_size=4).filter(lambda name: not name.startswith("amq."))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TABLES = st.dictionaries(NAMES, VALUES, max_size=3)


@st.composite
def everything(draw):
    """Any definitions that a broker may hold."""
    vhosts = draw(st.lists(NAMES, min_size=1, max_size=2, unique=True))
    users = draw(st.lists(NAMES, max_size=2, unique=True))
    somewhere = st.sampled_from(vhosts)
    limits = st.dictionaries(st.sampled_from(["max-queues", "max-connections"]), st.integers(-1, 5))
    held = Definitions(
        vhosts=[
            VhostDefinition(
                name,
                draw(st.text(max_size=5)),
                tuple(draw(st.lists(NAMES, max_size=2, unique=True))),
                draw(st.sampled_from(["classic", "quorum"])),
                draw(limits),
                draw(st.booleans()),
            )
            for name in vhosts
        ],
        users=[
            UserDefinition(name, f"$rabbitmq-sha256${base64.b64encode(bytes(36)).decode()}", ("t",))
            for name in users
        ],
        queues=draw(
            st.lists(
                st.builds(
                    QueueDefinition,
                    somewhere,
                    NAMES,
                    arguments=TABLES,
                    created_ms=st.integers(1, 1 << 41),
                    created_by=NAMES,
                ),
                max_size=4,
                unique_by=lambda queue: (queue.vhost, queue.name),
            )
        ),
        exchanges=draw(
            st.lists(
                st.builds(
                    ExchangeDefinition,
                    somewhere,
                    NAMES,
                    st.sampled_from(["direct", "topic", "headers", "fanout"]),
                    internal=st.booleans(),
                    arguments=TABLES,
                ),
                max_size=3,
                unique_by=lambda exchange: (exchange.vhost, exchange.name),
            )
        ),
    )
    for queue in held.queues:
        arguments = draw(TABLES)
        held.bindings.append(
            BindingDefinition(queue.vhost, "amq.topic", queue.name, "queue", "k", arguments)
        )
    if draw(st.booleans()):
        held.policies.append(
            PolicyDefinition(vhosts[0], "p", "^a", {"max-length": 1}, operator=draw(st.booleans()))
        )
    return held


@pytest.mark.covers("B-422")
@settings(max_examples=examples(50))
@given(held=everything())
def test_what_was_exported_comes_back_equal(held):
    first = exported(node(held))
    again = node()
    do(again, first)
    assert exported(again) == first
    assert do(again, first).kept == []


def test_a_rehearsal_leaves_nothing_for_the_collector():
    def count():
        return sum(isinstance(one, NamedQueue | Import) for one in gc.get_objects())

    parsed, held = parse({"queues": [QUEUE]}, "/"), Definitions(vhosts=[VhostDefinition("/")])
    held.queues.append(QueueDefinition("/", "held", durable=True))
    gc.disable()
    try:
        before = count()
        rehearse(parsed, held, None)
        assert count() == before
    finally:
        gc.enable()
