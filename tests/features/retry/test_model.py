"""With any failures, each message is acknowledged or dead in the end, and rightly counted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.features.retry.retrying import RetryTopic
from tests.features.retry.test_retrying import declare, publish, take
from tests.support.examples import examples
from tests.support.stage import Stage

ADVANCE_MS_MAX = 400
DELAYS = st.lists(st.integers(0, 300), min_size=1, max_size=4)


@settings(max_examples=examples(60))
@given(
    delays=DELAYS,
    jitter=st.sampled_from([0, 0.5, 1]),
    failures=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.integers(1, 4), st.integers(0, ADVANCE_MS_MAX)), max_size=20),
    trouble=st.sets(st.integers(0, 19)),
)
def test_every_message_ends_once_and_with_the_right_count(delays, jitter, failures, steps, trouble):
    """`failures`: how often each message fails; `trouble`: the steps at which no disk writes."""
    stage = Stage()
    queue = declare(stage, arguments={"x-retry-delays": delays, "x-retry-jitter": jitter})
    for number in range(len(failures)):
        publish(stage, queue, b"%d" % number)
    seen = dict.fromkeys(range(len(failures)), 0)  # deliveries of each
    acked, earliest = set(), {}
    endless = [(4, ADVANCE_MS_MAX)] * 200
    for step, (count, pause_ms) in enumerate([*steps, *endless]):
        if queue.extension(RetryTopic) is not None:
            log = queue.extension(RetryTopic).store.log
            log.append_error = OSError("no disk") if step in trouble else None
        for _ in range(count):
            got = take(stage, queue)
            if got is None:
                break
            offset, headers = got
            number = int(queue.batch_at_hand(offset).record(offset)[5])
            assert headers.get("x-retry-count", 0) == seen[number]
            assert stage.now >= earliest.get(number, 0)
            seen[number] += 1
            if seen[number] > failures[number]:
                queue.settle([(offset, offset + 1)])
                acked.add(number)
            else:
                queue.discard([(offset, offset + 1)])
                delay = delays[min(seen[number], len(delays)) - 1]
                earliest[number] = stage.now + round(delay * (1 - jitter)) - 1
            stage.run()
        stage.advance(pause_ms / 1000)
        if len(acked) == len(failures):
            break
    stage.advance(10)
    dead = {}
    topic = stage.broker.vhosts["/"].queues.get("q.dlq")
    while topic is not None and (got := take(stage, topic)) is not None:
        number = int(topic.batch_at_hand(got[0]).record(got[0])[5])
        assert number not in dead
        dead[number] = got[1]["x-retry-count"]
    hopeless = {n for n, count in enumerate(failures) if count > len(delays)}
    assert dead == dict.fromkeys(hopeless, len(delays))
    assert acked == set(seen) - hopeless
    assert (queue.message_count, queue.leased_count) == (0, 0)
