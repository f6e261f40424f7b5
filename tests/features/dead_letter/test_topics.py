"""The queue that takes what another one without a dead-letter exchange gives up."""

import pytest
from pamqp import commands

from leveret.core.access.limits import NodeLimits
from leveret.errors import StorageError
from leveret.features.dead_letter.topics import dead_letter_topic
from leveret.features.dead_letter.worker import RETRY_MS
from leveret.ports.contents import headers_table
from leveret.ports.definitions import PolicyDefinition
from leveret.ports.tables import decode_table
from tests.support.client import Client
from tests.support.queue_bench import content_header
from tests.support.stage import Stage

ASKED = {"x-dead-letter-topic": True}


@pytest.fixture
def stage():
    return Stage()


def declare(stage, name="q", **arguments):
    return stage.broker.vhosts["/"].declare_queue(
        name,
        durable=True,
        exclusive=False,
        auto_delete=False,
        arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        owner=None,
    )


def reject_one(stage, queue, body=b"body"):
    queue.builder.add(0, stage.now, b"x", b"key", content_header(len(body))[1], body)
    stage.turn.touch(queue)
    stage.run()
    offset, _ = queue.get()
    queue.discard([(offset, offset + 1)])
    stage.run()


def headers(stage, name="q.dlq", offset=0):
    batch = next(b for b in stage.log(name).batches if b.base_offset <= offset < b.stop_offset)
    return decode_table(headers_table(batch.record(offset)[4]))


def test_a_topic_comes_with_the_first_dead_letter_and_keeps_its_history(stage):
    queue = declare(stage, **ASKED)
    assert set(stage.broker.vhosts["/"].queues) == {"q"}
    reject_one(stage, queue)
    assert stage.queue("q.dlq").message_count == 1
    assert queue.leased_count == 0
    (death,) = headers(stage)["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("q", "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("x", ["key"])


def test_a_topic_has_the_type_of_its_queue_and_is_durable(stage):
    for kind in ("classic", "quorum"):
        reject_one(stage, declare(stage, kind, **ASKED, x_queue_type=kind))
        definition = stage.queue(f"{kind}.dlq").definition
        assert (definition.durable, definition.arguments) == (True, {"x-queue-type": kind})


def test_a_queue_of_that_name_is_taken_as_it_is(stage):
    own = declare(stage, "q.dlq", x_max_length=1)
    reject_one(stage, declare(stage, **ASKED))
    assert stage.queue("q.dlq") is own
    assert own.message_count == 1


def test_a_letter_waits_until_a_restart_would_find_its_topic(stage):
    queue = declare(stage, **ASKED)
    works, stage.metadata.flush = stage.metadata.flush, failing
    reject_one(stage, queue)
    assert stage.queue("q.dlq").message_count == 0
    assert queue.leased_count == 1
    assert any(isinstance(error, StorageError) for _, error in stage.reported)
    stage.metadata.flush = works
    stage.advance(RETRY_MS / 1000)
    assert stage.queue("q.dlq").message_count == 1
    assert queue.leased_count == 0


async def failing():
    raise StorageError("no space")


def test_a_letter_waits_while_there_may_be_no_more_queues():
    stage = Stage(limits=NodeLimits(queues_max=1))
    queue = declare(stage, **ASKED)
    reject_one(stage, queue)
    assert queue.leased_count == 1
    assert stage.reported
    queue.reconfigure(type(queue.settings)())  # whoever wants them no more
    stage.advance(RETRY_MS / 1000)
    assert queue.leased_count == 0


def test_what_no_topic_is_for_vanishes(stage):
    queue = declare(stage, x_delivery_limit=1)
    reject_one(stage, queue)
    assert set(stage.broker.vhosts["/"].queues) == {"q"}
    assert (queue.message_count, queue.leased_count) == (0, 0)


@pytest.mark.covers("C-215")
def test_a_message_that_comes_back_too_often_is_set_apart(stage):
    queue = declare(stage, x_delivery_limit=2)
    queue.builder.add(0, stage.now, b"", b"q", content_header(6)[1], b"poison")
    queue.flush()
    for _ in range(3):
        offset, _ = queue.get()
        queue.return_([(offset, offset + 1)])
        stage.run()
    assert queue.get() is None
    assert headers(stage)["x-death"][0]["reason"] == "delivery_limit"


def test_the_longest_names_are_cut():
    assert dead_letter_topic("q") == "q.dlq"
    assert dead_letter_topic("n" * 255) == "n" * 251 + ".dlq"
    assert len(dead_letter_topic("ü" * 127).encode()) <= 255


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(
    "definition",
    [{"retry-delays": [1]}, {"dead-letter-topic": True}, {"delivery-limit": 0}],
    ids=lambda definition: next(iter(definition)),
)
def test_a_policy_for_all_queues_begets_no_topic_of_a_topic(stage, kind, definition):
    apply_to = f"{kind}_queues"
    policy = PolicyDefinition("/", "all", ".*", definition, apply_to=apply_to)
    stage.broker.policies.put(policy)
    queue = declare(stage, **ASKED, x_queue_type=kind)
    reject_one(stage, queue)
    while "q.dlq" not in stage.broker.vhosts["/"].queues:  # tried once more, where it retries
        stage.advance(1)
        offset, _ = queue.get()
        queue.discard([(offset, offset + 1)])
        stage.run()
    dead = stage.queue("q.dlq")
    for _ in range(25):  # a quorum queue would have given it up by itself
        offset, _ = dead.get()
        dead.return_([(offset, offset + 1)])
        stage.run()
    assert dead.message_count == 1
    offset, _ = dead.get()
    dead.discard([(offset, offset + 1)])
    stage.advance(5)
    assert set(stage.broker.vhosts["/"].queues) == {"q", "q.dlq"}
    assert (dead.message_count, dead.leased_count) == (0, 0)


def test_what_a_dead_letter_topic_states_itself_counts(stage):
    reject_one(stage, declare(stage, "q.dlq", x_retry_max_attempts=0), b"dead twice")
    assert stage.queue("q.dlq.dlq").message_count == 1


def test_the_topic_of_an_exclusive_queue_goes_with_its_connection(stage):
    client = Client(stage).open()
    client.declare("mine", exclusive=True, arguments=ASKED)
    client.publish("mine", b"dead")
    client.send(commands.Basic.Get(queue="mine"))
    client.received()
    client.send(commands.Basic.Reject(delivery_tag=1, requeue=False))
    topic = stage.queue("mine.dlq")
    assert topic.message_count == 1
    assert (topic.definition.durable, topic.definition.exclusive) == (False, True)
    client.call(commands.Connection.Close(200, "", 0, 0), channel=0)
    assert set(stage.broker.vhosts["/"].queues) == set()
