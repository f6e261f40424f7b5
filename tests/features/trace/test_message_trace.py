"""The way of a message, as its record and its headers tell it."""

from leveret.features.trace.message_trace import TraceStep, sentences, trace_steps

STORED = TraceStep("stored", 9000, queue="q")


def told(headers=None, *, dead=False, retried=False):
    return trace_steps(STORED, "x", "key", headers or {}, is_dead_letter=dead, is_retried=retried)


def death(queue, reason, seconds, exchange="x", count=1):
    keys = {"exchange": exchange, "routing-keys": ["k1", "k2"]}
    return {"queue": queue, "reason": reason, "time": seconds, "count": count, **keys}


def test_a_message_is_published_and_stored():
    assert told() == [TraceStep("published", 9000, "x", ("key",)), STORED]


def test_deaths_come_in_their_order_and_the_first_knows_the_origin():
    headers = {"x-death": [death("b", "expired", 7, "dlx"), death("a", "rejected", 5, "first", 3)]}
    assert told(headers, dead=True) == [
        TraceStep("published", None, "first", ("k1", "k2")),
        TraceStep("died", 5000, "first", ("k1", "k2"), "a", "rejected", 3),
        TraceStep("died", 7000, "dlx", ("k1", "k2"), "b", "expired", 1),
        TraceStep("dead-lettered", None, "x", ("key",)),
        STORED,
    ]


def test_failures_come_before_the_death_that_they_led_to():
    tried = {"x-retry-count": 2, "x-last-failure-at": 5, "x-last-failure-reason": "timeout"}
    failed = TraceStep("failed", 5000, reason="timeout", count=2)
    assert told(tried, retried=True) == [
        TraceStep("published", None, "x", ("key",)),
        failed,
        STORED,
    ]
    both = told(tried | {"x-death": [death("a", "rejected", 5)]}, dead=True)
    assert [step.kind for step in both] == [
        "published",
        "failed",
        "died",
        "dead-lettered",
        "stored",
    ]


def test_what_a_client_has_written_is_no_history():
    claimed = {
        "x-death": [death("a", "rejected", 5)],
        "x-retry-count": 2,
        "x-last-failure-reason": "timeout",
    }
    assert told(claimed) == told()


def test_headers_that_make_no_sense_tell_nothing():
    headers = {"x-death": [1, {"count": "x", "time": None}], "x-retry-count": True}
    published, died, _, stored = told(headers, dead=True)
    assert (published.exchange, published.routing_keys, stored) == (None, (), STORED)
    assert died == TraceStep("died", routing_keys=())
    assert told({"x-death": "no list"}, dead=True) == told()


def test_people_read_sentences():
    message = {
        "queue": "dead",
        "offset": 4,
        "steps": [
            {"step": "published", "exchange": "", "routing_keys": ["q"]},
            {"step": "failed", "time_ms": 1, "count": 2, "reason": "timeout"},
            {"step": "died", "time_ms": 2, "count": 1, "queue": "q", "reason": "rejected"},
            {"step": "dead-lettered", "exchange": "dlx", "routing_keys": ["k"]},
            {"step": "stored", "time_ms": 3, "queue": "dead"},
        ],
        "state": "unacked",
        "holder": None,
    }
    assert sentences(message) == [
        (None, "Published to the default exchange with key 'q'"),
        (1, "Failed 2 times and was retried, last failure: timeout"),
        (2, "Dead-lettered from queue q once: rejected"),
        (None, "Dead-lettered to exchange dlx with key 'k'"),
        (3, "Stored in queue dead as offset 4"),
        (None, "Delivered and not settled yet"),
    ]
    holder = {"connection": "a -> b", "user": "u", "channel": 1, "consumer_tag": "t"}
    (*_, (_, last)) = sentences(message | {"holder": holder})
    assert last == "Delivered to consumer t on channel 1 of a -> b (user u), not settled yet"
    (*_, (_, last)) = sentences(message | {"holder": {**holder, "consumer_tag": None}})
    assert last.startswith("Delivered to a basic.get on channel 1")
    for state, word in (("ready", "Ready"), ("delayed", "Delayed"), ("settled", "Settled")):
        (*_, (_, last)) = sentences(message | {"state": state})
        assert last.startswith(word)
