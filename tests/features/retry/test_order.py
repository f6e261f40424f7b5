"""Messages of the same key wait with one that failed, and come in their order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from leveret.core.settings.queue_settings import resolve_settings
from leveret.errors import DiskFullError
from leveret.features.retry.retrying import RetryTopic
from leveret.ports.definitions import QueueDefinition
from leveret.ports.records import RecordFlag
from tests.features.filters.test_filtered import Taker
from tests.features.retry.test_retrying import declare
from tests.support.contents import encode_properties
from tests.support.examples import examples
from tests.support.queue_bench import content_header
from tests.support.stage import Stage

ORDERED = {"x-retry-delays": [100, 200, 400], "x-retry-keep-order": "key"}


def publish(stage, queue, key, body):
    _, header = content_header(len(body))
    queue.builder.add(0, stage.now, b"x", key, header, body)
    stage.turn.touch(queue)
    stage.run()


def got(queue):
    """(offset, key, body) of the next message; None where there is none."""
    found = queue.get()
    if found is None:
        return None
    _, _, _, key, _, body = queue.batch_at_hand(found[0]).record(found[0])
    return found[0], key, body


@pytest.fixture
def stage():
    return Stage()


@pytest.mark.covers("C-205")
def test_who_follows_a_failed_message_waits_and_others_do_not(stage):
    queue = declare(stage, arguments=ORDERED)
    for key, body in ((b"a", b"1"), (b"a", b"2"), (b"b", b"3")):
        publish(stage, queue, key, body)
    offset, *_ = got(queue)
    queue.discard([(offset, offset + 1)])
    stage.run()
    assert got(queue)[2] == b"3"
    assert got(queue) is None
    assert (queue.leased_count, queue.delayed_count) == (1, 1)
    publish(stage, queue, b"a", b"4")
    stage.advance(0.2)
    offset, _, body = got(queue)
    assert body == b"1"
    assert got(queue) is None
    queue.settle([(offset, offset + 1)])
    assert [got(queue)[2], got(queue)[2]] == [b"2", b"4"]


def test_a_key_is_free_when_nothing_helped_or_somebody_gives_up(stage):
    queue = declare(stage, arguments={**ORDERED, "x-retry-delays": [100]})
    for body in (b"1", b"2"):
        publish(stage, queue, b"a", body)
    for _ in range(2):
        offset, _, body = got(queue)
        assert body == b"1"
        queue.discard([(offset, offset + 1)])
        stage.run()
        stage.advance(0.2)
    offset, _, body = got(queue)
    assert body == b"2"
    queue.discard([(offset, offset + 1)])
    stage.run()
    publish(stage, queue, b"a", b"3")
    assert got(queue) is None
    assert queue.extension(RetryTopic).cancel(None) == 1
    assert got(queue)[2] == b"3"


def test_who_was_delivered_before_waits_when_it_fails_too(stage):
    queue = declare(stage, arguments=ORDERED)
    for body in (b"1", b"2"):
        publish(stage, queue, b"a", body)
    first, second = got(queue)[0], got(queue)[0]
    queue.discard([(first, second + 1)])
    stage.run()
    assert queue.extension(RetryTopic).pending_count == 1
    stage.advance(0.2)
    offset, _, body = got(queue)
    assert (body, got(queue)) == (b"1", None)
    queue.settle([(offset, offset + 1)])
    assert got(queue)[2] == b"2"


def tagged(stage, queue, tag):
    """Publish a message of the key `a` with a tag, which is its body, too."""
    properties = commands.Basic.Properties(headers={"x-tags": tag})
    header = encode_properties(properties, 1)
    queue.builder.add(RecordFlag.HAS_HEADERS, stage.now, b"x", b"a", header, tag.encode())
    stage.turn.touch(queue)
    stage.run()


def failed_once(stage, queue):
    """Let the first message fail, and come back behind the next one, which it blocks."""
    for tag in ("b", "a"):
        tagged(stage, queue, tag)
    offset, *_ = got(queue)
    queue.discard([(offset, offset + 1)])
    stage.run()
    assert got(queue) is None


def test_a_key_is_free_when_a_filter_skips_the_message_that_blocks_it(stage):
    queue = declare(stage, arguments=ORDERED)
    failed_once(stage, queue)
    taker = Taker("a", unmatched="skip")
    queue.add_consumer(taker)
    stage.advance(0.2)
    assert taker.offsets == [1]


def test_a_key_is_free_when_the_message_that_blocks_it_cannot_be_read(stage):
    queue = declare(stage, arguments=ORDERED)
    failed_once(stage, queue)
    stage.advance(0.2)
    stage.log("q").damaged.add(2)  # where it came back
    queue.reader.clear()
    taker = Taker()
    queue.add_consumer(taker)
    stage.run()
    assert taker.offsets == [1]


def test_a_key_is_free_when_a_message_that_waits_cannot_be_read(stage):
    queue = declare(stage, arguments={**ORDERED, "x-retry-delays": [3_600_000]})
    failed_once(stage, queue)
    stage.log("q.retry").damaged.add(0)
    stage.advance(3601)
    assert got(queue)[2] == b"a"


def test_a_key_is_free_when_the_message_that_blocks_it_is_purged(stage):
    queue = declare(stage, arguments=ORDERED)
    failed_once(stage, queue)
    stage.advance(0.2)
    assert queue.purge() == 1
    assert got(queue)[2] == b"a"


def test_who_waits_and_expires_after_a_purge_is_kept_for_readers(stage):
    queue = declare(stage, arguments={**ORDERED, "x-retention": "14d"})
    publish(stage, queue, b"a", b"1")
    _, header = content_header(1, expiration="150")
    queue.builder.add(RecordFlag.HAS_EXPIRATION, stage.now, b"x", b"a", header, b"2")
    stage.turn.touch(queue)
    stage.run()
    offset, *_ = got(queue)
    queue.discard([(offset, offset + 1)])
    stage.run()
    assert got(queue) is None  # the other waits, and its time passes
    stage.advance(0.2)
    assert queue.purge() == 1
    stage.run()
    assert list(queue.log.settled) == [(0, 3)]
    assert list(queue.log.erased) == [(0, 1), (2, 3)]


def test_a_key_is_free_when_a_message_is_given_up_that_the_queue_has_no_room_for(stage):
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    queue = declare(stage, arguments={**ORDERED, **limits})
    failed_once(stage, queue)
    for body in (b"1", b"2"):
        publish(stage, queue, b"b", body)
    stage.advance(0.2)
    assert queue.message_count == 2
    assert queue.extension(RetryTopic).cancel(None) == 1
    assert got(queue)[2] == b"a"


def test_a_key_is_free_when_a_message_is_given_up_that_the_disk_has_refused(stage):
    queue = declare(stage, arguments=ORDERED)
    failed_once(stage, queue)
    stage.advance(0.2)
    while (found := got(queue)) is not None:
        queue.settle([(found[0], found[0] + 1)])
    for body in (b"1", b"2"):
        publish(stage, queue, b"b", body)
    offset, *_ = got(queue)
    topic = stage.log("q.retry")
    topic.append_error = DiskFullError("no space")
    queue.discard([(offset, offset + 1)])
    stage.run()
    topic.append_error = None
    assert got(queue) is None
    queue.reconfigure(resolve_settings(queue.definition, {"retry-max-attempts": 0}))
    stage.advance(6)
    assert got(queue)[2] == b"2"


def test_without_the_setting_everybody_goes_on(stage):
    queue = declare(stage, arguments=ORDERED)
    for body in (b"1", b"2"):
        publish(stage, queue, b"a", body)
    offset, *_ = got(queue)
    queue.discard([(offset, offset + 1)])
    stage.run()
    assert got(queue) is None
    queue.reconfigure(resolve_settings(QueueDefinition("/", "q")))
    assert got(queue)[2] == b"2"


@settings(max_examples=examples(60))
@given(
    keys=st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=12),
    fails=st.lists(st.booleans(), max_size=60),
    pauses=st.lists(st.integers(0, 300), min_size=1, max_size=5),
)
def test_within_a_key_messages_are_done_in_order(keys, fails, pauses):
    stage = Stage()
    queue = declare(stage, arguments={**ORDERED, "x-retry-max-attempts": 50})
    for number, key in enumerate(keys):
        publish(stage, queue, key, b"%d" % number)
    done: list[tuple[bytes, int]] = []
    for turn in range(2000):
        found = got(queue)
        if found is None:
            if len(done) == len(keys):
                break
            stage.advance(pauses[turn % len(pauses)] / 1000 + 0.01)
            continue
        offset, key, body = found
        if turn < len(fails) and fails[turn]:
            queue.discard([(offset, offset + 1)])
            stage.run()
        else:
            queue.settle([(offset, offset + 1)])
            done.append((key, int(body)))
    assert len(done) == len(keys)
    for key in set(keys):
        numbers = [number for of_key, number in done if of_key == key]
        assert numbers == sorted(numbers)
    assert (queue.leased_count, queue.delayed_count) == (0, 0)
