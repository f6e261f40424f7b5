"""Refusals of new arguments that have no effect beside others, or contradict them."""

import pytest
from pamqp import commands

from leveret.broker.alter_queue import change_arguments
from leveret.core.settings.arguments import (
    EVERY_ARGUMENT,
    EVERY_CONSUMER_ARGUMENT,
    check_consumer_arguments,
    check_queue_arguments,
)
from leveret.core.settings.contradictions import (
    OWN_ARGUMENTS,
    check_consumer,
    check_exchange,
    check_queue,
    contradictions_of_policy,
)
from leveret.core.settings.policies import InvalidPolicyError, Policies, check_policy
from leveret.errors import ChannelError
from leveret.ports.definitions import (
    ExchangeDefinition,
    PartitionLayout,
    PolicyDefinition,
    QueueDefinition,
)
from tests.support.client import Client
from tests.support.stage import Stage

STREAM = {"x-queue-type": "stream"}
QUORUM = {"x-queue-type": "quorum"}
WAITS = {"x-retention-waits-for": ["archive"]}
DELAYS = {"x-retry-delays": [100, 5000]}

OF_QUEUES = [
    # retention
    (
        {"x-retention": "2d", **WAITS, "x-retention-waits-max": "1d"},
        "it must be longer than x-retention, 2d: messages are kept for that time anyway",
    ),
    (
        {"x-retention": "1d", **WAITS, "x-retention-waits-max": 86_400_000},
        "it must be longer than x-retention, 1d: messages are kept for that time anyway",
    ),
    (
        {"x-retention": "2d", "x-max-length-bytes": 9, **WAITS, "x-retention-waits-max": "1d"},
        "it must be longer than x-retention, 2d: messages are kept for that time anyway",
    ),
    (
        {**STREAM, "x-max-age": "2D", **WAITS, "x-retention-waits-max": "1d"},
        "it must be longer than x-max-age, 2D: messages are kept for that time anyway",
    ),
    (
        {**STREAM, **WAITS, "x-retention-waits-max": "14d"},
        "it must be longer than x-retention, 14d: messages are kept for that time anyway",
    ),
    ({"x-retention": "1d", "x-retention-waits-for": ["a", "b", "a"]}, "it names 'a' twice"),
    # placement
    *(
        (
            {"x-partitions": 2, "x-partition-by": slip},
            f"did you mean '{meant}'? '{slip}' would be a header's name, which is too similar",
        )
        for slip, meant in {
            "roundrobin": "round-robin",
            "Round_Robin": "round-robin",
            "round-robbin": "round-robin",
            "round-robn": "round-robin",
            "Random": "random",
            "randon": "random",
            "radnom": "random",
            "KEY": "key",
            "key ": "key",
        }.items()
    ),
    # rates
    ({"x-publish-burst": 5}, "it needs x-publish-rate"),
    ({"x-publish-rate": 5, "x-consume-burst": 5}, "it needs x-consume-rate"),
    # retries and dead letters
    ({**DELAYS, "x-retry-delay": 5}, "not together with x-retry-delays: only these count"),
    ({**DELAYS, "x-retry-multiplier": 2}, "not together with x-retry-delays: only these count"),
    (
        {**DELAYS, "x-retry-max-delay": 4999},
        "it is below 5000, a delay of x-retry-delays: raise it, or leave it out",
    ),
    (
        {"x-retry-delay": 10, "x-retry-max-delay": 9},
        "it is below 10, a delay of x-retry-delay: raise it, or leave it out",
    ),
    ({"x-retry-on": ["reject", "timeout", "reject"]}, "it names 'reject' twice"),
    (
        {"x-dead-letter-exchange": "dead", "x-dead-letter-topic": True},
        "not together with x-dead-letter-exchange, where dead letters go instead",
    ),
    (
        {**DELAYS, "x-dead-letter-topic": False},
        (
            "a queue with retries keeps what failed to the end: leave it out, or state "
            "x-dead-letter-exchange"
        ),
    ),
    # arguments of others
    ({"x-consumer-group": "g"}, "it is an argument of consumers"),
    ({"x-group-session": "5m"}, "it is an argument of consumers"),
    ({"x-group-assign": [0]}, "it is an argument of consumers"),
    ({"x-filter-tags": "a"}, "it is an argument of consumers"),
    ({"x-filter-sql": "a = 1"}, "it is an argument of consumers"),
    ({"x-filter-unmatched": "skip"}, "it is an argument of consumers"),
]
# What looks similar, and has an effect.
EFFECTIVE_OF_QUEUES = [
    {},
    {"x-retention": "1d", **WAITS, "x-retention-waits-max": "2d"},
    {"x-retention": "2d", "x-retention-bytes": 9, **WAITS, "x-retention-waits-max": "1d"},
    {**STREAM, "x-max-length-bytes": 9, **WAITS, "x-retention-waits-max": "1d"},
    {**STREAM, "x-compact": True, **WAITS, "x-retention-waits-max": "1d"},
    {**STREAM, **WAITS, "x-retention-waits-max": "15d"},
    *(
        {"x-partitions": 2, "x-partition-by": by}
        for by in ("key", "round-robin", "random", "x-key", "keys", "random-id", "robin", "kéy")
    ),
    {"x-publish-rate": 5, "x-publish-burst": 5},
    {**DELAYS, "x-retry-max-delay": 5000, "x-retry-jitter": 1, "x-retry-max-attempts": 9},
    {"x-retry-delay": 10, "x-retry-multiplier": 2, "x-retry-max-delay": 10},
    {"x-retry-max-delay": 10, "x-retry-on": "timeout"},
    {**DELAYS, "x-dead-letter-topic": True},
    {**DELAYS, "x-dead-letter-exchange": "dead", "x-dead-letter-topic": False},
    {"x-dead-letter-topic": False},
    {**QUORUM, "x-visibility-timeout": 5, "x-consumer-timeout": 5, "x-group-ordering": True},
    # RabbitMQ ignores these in a queue.
    {"x-stream-offset": "first", "x-priority": 5, "x-stream-filter": "a", "x-unheard-of": 1},
]
OF_CONSUMERS = [
    ({"x-group-assign": [1, 0, 1]}, "it names a partition twice"),
    ({"x-group-assign": [0, 99]}, "there is no partition 99, there are 0 to 2, 5"),
    ({"x-retention": "1d"}, "it is an argument of queues"),
    ({"x-partitions": 2}, "it is an argument of queues"),
    ({"x-retry-delays": [1]}, "it is an argument of queues"),
    ({"x-dedup-window": True}, "it is an argument of queues and exchanges"),
]
OF_EXCHANGES = [
    ({"x-partitions": 2}, "it is an argument of queues"),
    ({"x-consumer-group": "g"}, "it is an argument of consumers"),
    ({"x-visibility-timeout": 5}, "it is an argument of queues and consumers"),
]
OF_POLICIES = [
    (
        {"retention-waits-for": ["a"]},
        "it needs one of retention, retention-bytes, retention-messages",
    ),
    ({"retention": "1d", "retention-waits-max": "2d"}, "it needs retention-waits-for"),
    (
        {"retention": "2d", "retention-waits-for": ["a"], "retention-waits-max": "1d"},
        "it must be longer than retention, 2d: messages are kept for that time anyway",
    ),
    ({"retention": "1d", "retention-waits-for": ["a", "a"]}, "it names 'a' twice"),
    (
        {"retention-settles": ["a"]},
        "it needs one of retention, retention-bytes, retention-messages",
    ),
    ({"retention": "1d", "retention-settles": ["a", "a"]}, "it names 'a' twice"),
    ({"retry-delays": [5], "retry-delay": 5}, "not together with retry-delays: only these count"),
    (
        {"dead-letter-exchange": "dead", "dead-letter-topic": True},
        "not together with dead-letter-exchange, where dead letters go instead",
    ),
]
EFFECTIVE_OF_POLICIES = [
    ({"retention-waits-for": ["a"], "retention-waits-max": "1d"}, "streams"),
    ({"retention-messages": 5, "retention-waits-for": ["a"]}, "queues"),
    ({"publish-burst": 5}, "queues"),  # of what queues state
    ({"compact-delete-retention": "1d"}, "all"),
]


def queue(arguments, **fields):
    return QueueDefinition("/", "q", arguments=arguments, **fields)


@pytest.mark.parametrize(("arguments", "problem"), OF_QUEUES)
def test_arguments_of_a_queue_without_effect_are_refused(arguments, problem):
    check_queue_arguments(queue(arguments))  # each is valid
    with pytest.raises(ChannelError) as refused:
        check_queue(queue(arguments))
    key = next(reversed(arguments))
    assert (refused.value.code, refused.value.explanation) == (
        406,
        f"invalid arg '{key}' for queue 'q' in vhost '/': \"{problem}\"",
    )


@pytest.mark.parametrize("arguments", EFFECTIVE_OF_QUEUES)
def test_arguments_of_a_queue_with_an_effect_are_accepted(arguments):
    check_queue_arguments(queue(arguments))
    check_queue(queue(arguments))


def test_what_a_changed_queue_had_before_may_stay():
    before = {"x-partitions": 2, "x-partition-by": "roundrobin"}
    check_queue(queue({**before, "x-max-length": 5}), before)
    with pytest.raises(ChannelError, match="x-publish-burst"):
        check_queue(queue({**before, "x-publish-burst": 5}), before)


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
@pytest.mark.parametrize(("arguments", "problem"), OF_CONSUMERS)
def test_arguments_of_a_consumer_without_effect_are_refused(kind, arguments, problem):
    definition = queue(
        {"x-queue-type": kind, "x-partitions": 2}, layout=PartitionLayout((0, 1, 5), (2,), 6)
    )
    member = {"x-consumer-group": "g", **arguments}
    check_consumer_arguments(definition, member)
    with pytest.raises(ChannelError) as refused:
        check_consumer(definition, member, no_ack=False)
    (key,) = arguments
    assert refused.value.explanation == (
        f"invalid arg '{key}' for queue 'q' in vhost '/': \"{problem}\""
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "no_ack"),
    [
        ("classic", {"x-visibility-timeout": 5}, True),
        ("quorum", {"x-consumer-group": "g", "x-group-session": "1m"}, True),
        ("stream", {"x-filter-tags": "a", "x-filter-unmatched": "skip"}, False),
    ],
)
def test_arguments_that_do_nothing_for_this_consumer_are_refused(kind, arguments, no_ack):
    definition = queue({"x-queue-type": kind})
    check_consumer_arguments(definition, arguments)
    with pytest.raises(ChannelError, match=next(reversed(arguments))):
        check_consumer(definition, arguments, no_ack=no_ack)


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_arguments_of_a_consumer_with_an_effect_are_accepted(kind):
    definition = queue({"x-queue-type": kind, "x-partitions": 3})
    for arguments in (
        {"x-consumer-group": "g", "x-group-assign": [2, 0], "x-group-session": "1m"},
        {"x-queue-type": kind, "x-message-ttl": 5, "x-unheard-of": 1},  # RabbitMQ ignores these
    ):
        check_consumer(definition, arguments, no_ack=False)


@pytest.mark.parametrize(("arguments", "problem"), OF_EXCHANGES)
def test_arguments_of_an_exchange_without_effect_are_refused(arguments, problem):
    with pytest.raises(ChannelError, match=problem):
        check_exchange(ExchangeDefinition("/", "x", "fanout", arguments=arguments))
    check_exchange(ExchangeDefinition("/", "x", "fanout", arguments={"x-dedup-window": True}))


@pytest.mark.parametrize(("definition", "problem"), OF_POLICIES)
def test_settings_of_a_policy_without_effect_are_refused(definition, problem):
    policy = PolicyDefinition("/", "p", "^x", definition, apply_to="queues")
    check_policy(policy)
    policies = Policies()
    with pytest.raises(InvalidPolicyError) as refused:
        policies.put(policy)
    assert str(refused.value) == f"{next(reversed(definition))}: {problem}"
    policies.put(policy, imported=True)
    policies.restore([policy])
    assert policies.for_queue("/", "x", "classic").definition == definition


@pytest.mark.parametrize(("definition", "apply_to"), EFFECTIVE_OF_POLICIES)
def test_settings_of_a_policy_with_an_effect_are_accepted(definition, apply_to):
    policy = PolicyDefinition("/", "p", "^x", definition, apply_to=apply_to)
    assert list(contradictions_of_policy(policy)) == []


def test_every_argument_of_leveret_belongs_somewhere():
    assert OWN_ARGUMENTS["queues"] <= EVERY_ARGUMENT
    assert OWN_ARGUMENTS["consumers"] <= EVERY_CONSUMER_ARGUMENT
    rabbitmqs = {"x-priority", "x-consumer-timeout", "x-stream-offset", "x-stream-filter"}
    assert EVERY_CONSUMER_ARGUMENT - OWN_ARGUMENTS["consumers"] == rabbitmqs | {
        "x-stream-match-unfiltered"
    }


# -- over the wire


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def client(stage):
    return Client(stage).open()


def test_a_declaration_is_refused_with_406(client):
    arguments = {"x-partitions": 2, "x-partition-by": "roundrobin"}
    closed = client.call(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    assert closed.reply_code == 406
    assert closed.reply_text == (
        "PRECONDITION_FAILED - invalid arg 'x-partition-by' for queue 'q' in vhost '/': "
        "\"did you mean 'round-robin'? 'roundrobin' would be a header's name, which is too "
        'similar"'
    )


def test_an_exchange_is_refused_with_406(client):
    declare = commands.Exchange.Declare(exchange="x", arguments={"x-partitions": 2})
    assert client.call(declare).reply_code == 406


@pytest.mark.parametrize("options", [{"x-group-assign": [1]}, {"x-group-assign": [0, 0]}])
def test_a_consumer_is_refused_with_406(client, options):
    client.declare("q", durable=True, arguments=STREAM)
    client.prefetch(1)
    arguments = {"x-consumer-group": "g", **options}
    closed = client.call(commands.Basic.Consume(queue="q", arguments=arguments))
    assert closed.reply_code == 406
    assert "x-group-assign" in closed.reply_text


def test_a_queue_of_an_earlier_release_is_imported_redeclared_and_changed(stage, client):
    arguments = {"x-partitions": 2, "x-partition-by": "roundrobin", "x-consumer-group": "g"}
    stage.broker.vhosts["/"].add_queue(queue(arguments))
    client.declare("q", durable=True, arguments=arguments)
    change_arguments(stage.broker, stage.queue("q"), {"x-max-length": 5})
    with pytest.raises(ChannelError, match="x-publish-burst"):
        change_arguments(stage.broker, stage.queue("q"), {"x-publish-burst": 5})
