"""Messages that fail wait in their queue's retry topic and come back to it."""

import pytest

from leveret.core.settings.discard_reasons import Reason
from leveret.core.settings.queue_settings import resolve_settings
from leveret.errors import DiskFullError, NotEnoughCopiesError
from leveret.features.retry.retrying import RETRY_MS, RetryTopic
from leveret.ports import Durability
from leveret.ports.contents import headers_table
from leveret.ports.definitions import QueueDefinition
from leveret.ports.records import RecordFlag
from leveret.ports.tables import decode_table
from tests.support.queue_bench import content_header
from tests.support.stage import Stage

LADDER = {"x-retry-delays": [1000, 5000]}
FEW = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")


@pytest.fixture
def stage():
    return Stage()


def declare(stage, name="q", arguments=LADDER):
    return stage.broker.vhosts["/"].declare_queue(
        name, durable=True, exclusive=False, auto_delete=False, arguments=arguments, owner=None
    )


def publish(stage, queue, body=b"body", **properties):
    flags, header = content_header(len(body), **properties)
    if "headers" in properties:
        flags |= RecordFlag.HAS_HEADERS
        if any(name in properties["headers"] for name in LADDER):
            flags |= RecordFlag.HAS_RETRY
    queue.builder.add(flags, stage.now, b"x", b"key", header, body)
    stage.turn.touch(queue)
    stage.run()


def flush(stage):
    """Have the disk flush all logs, and those that are written then."""
    for _ in range(3):
        stage.run()
        for log in list(stage.topics.logs.values()):
            log.commit()
    stage.run()


def take(stage, queue):
    """Lease the next message: (offset, its headers); None where there is none."""
    got = queue.get()
    if got is None:
        return None
    batch = queue.batch_at_hand(got[0])
    return got[0], decode_table(headers_table(batch.record(got[0])[4]))


def bodies(queue):
    """Lease all messages that are ready."""
    found = []
    while (got := queue.get()) is not None:
        found.append(queue.batch_at_hand(got[0]).record(got[0])[5])
    return found


def fail(stage, queue, reason=None):
    """Deliver the next message, and let it fail. Returns the headers that it had."""
    offset, headers = take(stage, queue)
    if reason is None:
        queue.discard([(offset, offset + 1)])
    else:
        queue.return_([(offset, offset + 1)], cause=reason)
    stage.run()
    return headers


@pytest.mark.covers("C-205")
def test_a_rejected_message_comes_back_after_its_delay_and_tells_why(stage):
    queue = declare(stage)
    publish(stage, queue, headers={"own": 1})
    assert fail(stage, queue) == {"own": 1}
    assert (queue.message_count, queue.leased_count) == (0, 0)
    assert queue.extension(RetryTopic).pending_count == 1
    stage.advance(0.9)
    assert take(stage, queue) is None
    stage.advance(0.2)
    headers = fail(stage, queue)
    assert headers["own"] == 1
    assert headers["x-retry-count"] == 1
    assert headers["x-last-failure-reason"] == "rejected"
    assert headers["x-first-failure-at"] == 1_700_000_000_000 // 1000
    stage.advance(4)
    assert take(stage, queue) is None
    stage.advance(1.1)
    _, headers = take(stage, queue)
    assert headers["x-retry-count"] == 2
    assert headers["x-first-failure-at"] < headers["x-last-failure-at"]
    assert queue.extension(RetryTopic).pending_count == 0


@pytest.mark.covers("C-205", "C-215")
def test_a_message_that_nothing_helped_is_a_dead_letter_with_its_attempts(stage):
    queue = declare(stage)
    publish(stage, queue)
    for _ in range(3):
        fail(stage, queue)
        stage.advance(6)
    assert (queue.message_count, queue.leased_count) == (0, 0)
    _, headers = take(stage, stage.queue("q.dlq"))
    assert headers["x-retry-count"] == 2
    assert headers["x-last-failure-reason"] == "rejected"
    (death,) = headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("rejected", "q", 1)
    assert (death["exchange"], death["routing-keys"]) == ("x", ["key"])


@pytest.mark.covers("C-205")
def test_messages_behind_a_failed_one_are_not_held_up(stage):
    queue = declare(stage)
    for body in (b"1", b"2"):
        publish(stage, queue, body)
    fail(stage, queue)
    offset, headers = take(stage, queue)
    assert (offset, headers) == (1, {})


def test_the_dead_letter_exchange_comes_before_the_topic(stage):
    declare(stage, "dead", {})
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue = declare(stage, arguments={**dlx, "x-retry-max-attempts": 0})
    publish(stage, queue)
    fail(stage, queue)
    _, headers = take(stage, stage.queue("dead"))
    assert headers["x-first-death-reason"] == "rejected"
    assert "q.dlq" not in stage.broker.vhosts["/"].queues


def test_a_client_cannot_claim_attempts(stage):
    queue = declare(stage)
    publish(stage, queue, headers={"x-retry-count": 99, "x-first-failure-at": 5})
    fail(stage, queue)
    stage.advance(1.1)
    _, headers = take(stage, queue)
    assert headers["x-retry-count"] == 1
    assert headers["x-first-failure-at"] != 5


@pytest.mark.covers("C-205")
def test_a_message_may_bring_its_own_ladder(stage):
    queue = declare(stage)
    publish(stage, queue, headers={"x-retry-delays": [50], "x-retry-max-attempts": 5})
    for count in range(5):
        assert fail(stage, queue).get("x-retry-count", 0) == count
        stage.advance(0.051)
    assert fail(stage, queue)["x-retry-count"] == 5
    assert queue.extension(RetryTopic).pending_count == 0


@pytest.mark.parametrize("cause", [Reason.REQUEUED, Reason.DISCONNECTED, Reason.TIMED_OUT])
def test_other_failures_are_retried_where_the_queue_says_so(stage, cause):
    words = {"requeued": "requeue", "disconnected": "disconnect", "timeout": "timeout"}
    plain = declare(stage, "plain")
    publish(stage, plain)
    fail(stage, plain, cause)
    assert plain.message_count == 1
    queue = declare(stage, arguments={**LADDER, "x-retry-on": [words[cause]]})
    publish(stage, queue)
    fail(stage, queue, cause)
    assert queue.message_count == 0
    stage.advance(1.1)
    headers = fail(stage, queue, cause)
    assert headers["x-last-failure-reason"] == str(cause)
    stage.advance(5.1)
    fail(stage, queue, cause)
    _, headers = take(stage, stage.queue("q.dlq"))
    assert headers["x-death"][0]["reason"] == "delivery_limit"


def test_what_a_consumer_does_is_retried_only_where_asked(stage):
    queue = declare(stage, arguments={**LADDER, "x-retry-on": ["timeout"]})
    publish(stage, queue)
    fail(stage, queue)
    assert stage.queue("q.dlq").message_count == 1


def test_attempts_in_a_dead_letter_queue_begin_anew(stage):
    queue = declare(stage, arguments={"x-retry-delays": [0]})
    declare(stage, "q.dlq", LADDER)
    publish(stage, queue)
    fail(stage, queue)
    stage.advance(0.1)
    fail(stage, queue)
    dead = stage.queue("q.dlq")
    fail(stage, dead)
    stage.advance(1.1)
    _, headers = take(stage, dead)
    assert headers["x-retry-count"] == 1


def test_a_full_queue_takes_its_messages_back_when_there_is_room(stage):
    queue = declare(stage, arguments={**LADDER, "x-max-length": 1, "x-overflow": "reject-publish"})
    publish(stage, queue, b"1")
    fail(stage, queue)
    publish(stage, queue, b"2")
    stage.advance(1.1)
    assert queue.message_count == 1
    assert queue.extension(RetryTopic).pending_count <= 1
    fail_free, _ = take(stage, queue)
    queue.settle([(fail_free, fail_free + 1)])
    stage.advance(RETRY_MS / 1000)
    assert take(stage, queue)[1]["x-retry-count"] == 1


def test_what_a_queue_refuses_for_lack_of_copies_waits_in_the_topic(stage):
    queue = declare(stage)
    for number in range(20):
        publish(stage, queue, b"%d" % number)
        fail(stage, queue)
    topic = queue.extension(RetryTopic)
    stage.log("q").refuse(FEW)
    stage.run()
    for _ in range(200):
        stage.advance(0.1)
        assert topic.pending_count == 20  # and nobody holds them in memory
    assert len(stage.reported) > 1
    stage.log("q").refuse(None)
    for _ in range(100):
        stage.advance(0.1)
    assert (queue.message_count, topic.pending_count) == (20, 0)


def test_what_was_to_come_back_early_and_is_refused_comes_when_it_is_due(stage):
    queue = declare(stage, arguments={"x-retry-delays": [60_000]})
    publish(stage, queue)
    fail(stage, queue)
    topic = queue.extension(RetryTopic)
    stage.log("q").refuse(FEW)
    stage.spawn(topic.bring_back(None))
    stage.run()
    stage.advance(RETRY_MS / 1000)
    stage.log("q").refuse(None)
    assert topic.pending_count == 1
    stage.advance(54)
    assert take(stage, queue) is None
    stage.advance(3)
    assert take(stage, queue)[1]["x-retry-count"] == 1


@pytest.mark.parametrize("early", [False, True])
def test_what_is_refused_after_the_clock_was_set_back_comes_back_all_the_same(early):
    stage = Stage(durability=Durability.FSYNC)
    queue = declare(stage)
    publish(stage, queue)
    flush(stage)
    fail(stage, queue)
    flush(stage)
    if early:
        stage.spawn(queue.extension(RetryTopic).bring_back(None))
        stage.run()
    stage.advance(1.1)
    log = stage.log("q")
    assert (log.end, log.committed) == (2, 1)
    stage.now -= 2000
    log.fail(DiskFullError("no space"))
    stage.advance(2.5)
    stage.advance(RETRY_MS / 1000)
    flush(stage)
    assert bodies(queue) == [b"body"]


@pytest.mark.parametrize("chosen", [None, [0]])
def test_what_a_full_queue_has_no_room_for_can_be_given_up(stage, chosen):
    queue = declare(stage, arguments={**LADDER, "x-max-length": 1, "x-overflow": "reject-publish"})
    publish(stage, queue, b"1")
    fail(stage, queue)
    publish(stage, queue, b"2")
    stage.advance(1.1)
    assert queue.extension(RetryTopic).cancel(chosen) == 1
    assert queue.purge() == 1
    stage.advance(RETRY_MS / 1000 + 1)
    assert take(stage, queue) is None


def test_what_waits_is_given_up_some_at_a_time_and_no_later_ones(stage, monkeypatch):
    monkeypatch.setattr("leveret.features.retry.retrying.PAGE_RECORDS", 2)
    queue = declare(stage)
    for body in (b"1", b"2", b"3"):
        publish(stage, queue, body)
        fail(stage, queue)
    steps = queue.extension(RetryTopic).clear()
    assert next(steps) == 2
    publish(stage, queue, b"4")
    fail(stage, queue)
    assert list(steps) == [1]
    assert queue.extension(RetryTopic).pending_count == 1


def test_a_message_stays_in_its_queue_while_the_topic_cannot_be_written(stage):
    queue = declare(stage)
    publish(stage, queue)
    stage.run()
    offset, _ = queue.get()
    log = stage.broker._opener.services.discarded.retry_topics.of(queue).store.log
    log.append_error = DiskFullError("no space")
    queue.discard([(offset, offset + 1)])
    stage.run()
    assert queue.leased_count == 1
    log.append_error = None
    stage.advance(RETRY_MS / 1000)
    assert queue.leased_count == 0
    stage.advance(1.1)
    assert take(stage, queue)[1]["x-retry-count"] == 1


def test_the_topic_has_as_many_copies_as_the_queue(stage):
    queue = declare(stage, arguments={**LADDER, "x-queue-type": "quorum"})
    publish(stage, queue)
    fail(stage, queue)
    topic = stage.log("q.retry")
    assert topic.copies_min == stage.log("q").copies_min == 2
    queue.reconfigure(resolve_settings(queue.definition, {"min-isr": 3}))
    assert topic.copies_min == 3
    queue.reorder(resolve_settings(queue.definition))
    assert topic.copies_min == 2


def test_a_message_stays_in_its_queue_while_the_topic_lacks_copies(stage):
    queue = declare(stage, arguments={**LADDER, "x-queue-type": "quorum"})
    for body in (b"1", b"2"):
        publish(stage, queue, body)
    fail(stage, queue)
    topic = stage.log("q.retry")
    topic.refuse(FEW)
    fail(stage, queue)
    refusals = len(stage.reported)
    stage.advance(RETRY_MS / 1000 - 0.1)
    assert (queue.leased_count, topic.end) == (1, 1)
    assert len(stage.reported) == refusals  # it is not tried again before
    stage.advance(0.2)
    assert len(stage.reported) == refusals + 1
    assert bodies(queue) == [b"1"]
    topic.refuse(None)
    stage.advance(RETRY_MS / 1000)
    assert (topic.end, stage.log("q").settled.count) == (2, 2)
    stage.advance(3)
    assert bodies(queue) == [b"2"]


@pytest.mark.parametrize("log", ["q.retry", "q"])
def test_what_lacks_copies_on_its_way_there_or_back_comes_once(log):
    stage = Stage(durability=Durability.FSYNC)
    queue = declare(stage)
    publish(stage, queue)
    flush(stage)
    fail(stage, queue)
    if log == "q":
        flush(stage)
        stage.advance(1.1)
    written = stage.log(log)
    assert written.end > written.committed
    written.refuse(FEW)
    stage.advance(2 * RETRY_MS / 1000)
    written.refuse(None)
    for _ in range(10):
        stage.advance(1)
        flush(stage)
    assert bodies(queue) == [b"body"]
    assert queue.extension(RetryTopic).pending_count == 0


def test_others_fail_and_come_back_while_one_lacks_copies():
    stage = Stage(durability=Durability.FSYNC)
    queue = declare(stage)
    declare(stage, "q.dlq", {})
    publish(stage, queue, b"dead", headers={"x-retry-delays": []})
    for body in (b"1", b"2"):
        publish(stage, queue, body)
    flush(stage)
    fail(stage, queue)
    dead = stage.log("q.dlq")
    assert (dead.end, dead.committed) == (1, 0)
    dead.refuse(FEW)
    for _ in range(2):
        fail(stage, queue)
    for _ in range(5):
        stage.advance(1)
        flush(stage)
    assert bodies(queue) == [b"1", b"2"]
    dead.refuse(None)
    flush(stage)
    assert bodies(stage.queue("q.dlq")) == [b"dead"]
    assert stage.log("q").settled.count == 3


def test_without_a_ladder_any_more_what_waited_comes_back_all_the_same(stage):
    queue = declare(stage)
    publish(stage, queue)
    fail(stage, queue)
    queue.reconfigure(resolve_settings(QueueDefinition("/", "q")))
    stage.advance(1.1)
    assert take(stage, queue)[1]["x-retry-count"] == 1


def test_a_deleted_queue_takes_its_retry_topic_along(stage):
    queue = declare(stage)
    publish(stage, queue)
    fail(stage, queue)
    log = queue.extension(RetryTopic).store.log
    stage.broker.delete_queue(stage.broker.vhosts["/"], queue)
    stage.run()
    stage.advance(2)
    assert log.deleted
    assert stage.reported == []
