import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.perf.options import Mode
from leveret.perf.plan import Address, LoadPlan, PlanError


def test_an_address_fills_in_what_is_left_out():
    assert Address.parse("amqp://h") == Address("h", 5672, "guest", "guest", "/")
    assert Address.parse("amqp://a%40b:p%2f@h:1/v%2fw") == Address("h", 1, "a@b", "p/", "v/w")


@pytest.mark.parametrize("uri", ["amqps://h", "http://h", "amqp://h:port", "amqp://h:99999"])
def test_an_address_that_cannot_be_used_is_refused(uri):
    with pytest.raises(PlanError, match=uri):
        Address.parse(uri)


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 5),
    st.integers(1, 1000),
)
def test_everything_is_done_exactly_once(publishers, consumers, queues, processes, messages):
    plan = LoadPlan(
        publishers=publishers,
        consumers=consumers,
        queues=queues,
        processes=processes,
        messages=messages,
    )
    shares = plan.shares()
    assert sorted(i for share in shares for i in share.publishers) == list(range(publishers))
    assert sorted(i for share in shares for i in share.consumers) == list(range(consumers))
    assert all(share.publishers or share.consumers for share in shares)
    parts = [plan.publisher_plan(index) for index in range(publishers)]
    assert sum(part.quota for part in parts) == messages
    reached = {n for part in parts for n in range(part.first, plan.numbers, part.step)}
    assert reached == set(range(queues))
    consumed = {queue for index in range(consumers) for queue in plan.consumer_queues(index)}
    assert consumed == set(range(queues))


def test_rejecters_take_what_is_published_and_consumers_the_dead_letters():
    plan = LoadPlan(queues=2, consumers=1, rejecters=3, processes=2, dead_letters=True)
    assert plan.consumed_names == [f"{name}.dead" for name in plan.queue_names]
    shares = plan.shares()
    assert sorted(i for share in shares for i in share.rejecters) == [0, 1, 2]
    assert [plan.rejecter_queues(index) for index in range(3)] == [[0], [1], [0]]
    assert plan.queue_arguments(1) == {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": plan.consumed_names[1],
        "x-queue-type": "classic",
    }


def test_arguments_are_numbers_and_booleans_where_they_read_so():
    pairs = ["x-max-length=5", "x-overflow=reject-publish", "x-flag=true", "x-text=a=b"]
    assert LoadPlan(queue_argument=pairs, queue_type="").queue_arguments(0) == {
        "x-max-length": 5,
        "x-overflow": "reject-publish",
        "x-flag": True,
        "x-text": "a=b",
    }


def test_a_fanout_has_a_queue_for_each_copy():
    plan = LoadPlan(fanout=3)
    assert (plan.queue_count, plan.copies, plan.numbers) == (3, 3, 1)
    assert [binding.queue for binding in plan.binding_list()] == plan.queue_names


def test_bindings_are_spread_over_the_queues():
    plan = LoadPlan(exchange_type="topic", bindings=5, queues=2, binding_key="a.{}.#")
    bindings = plan.binding_list()
    assert [binding.key for binding in bindings] == [f"a.{i:08d}.#" for i in range(5)]
    assert [plan.queue_names.index(binding.queue) for binding in bindings] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"verify": True, "size": 15},
        {"verify": True, "mode": Mode.DRAIN},
        {"fanout": 2, "exchange_type": "topic"},
        {"bindings": 2},
        {"rejecters": 1},
        {"queue_argument": ["x-max-length"]},
        {"mode": Mode.FILL},
        {"publishers": 0, "consumers": 0},
        {"publishers": 5000},
        {"queues": 0},
        {"channels": 3000},
        {"exchange_type": "direct", "routing_key": "{}.{}"},
    ],
)
def test_contradictions_are_named(options):
    with pytest.raises(PlanError):
        LoadPlan(**options).checked()


def test_acks_come_before_the_prefetch_runs_out():
    assert LoadPlan(prefetch=10, ack_every=100).checked().ack_every == 10
    assert LoadPlan(prefetch=0, ack_every=100).checked().ack_every == 100


def test_what_would_never_end_lasts_ten_seconds():
    assert LoadPlan().checked().duration == 10
    assert (
        LoadPlan(messages=5).checked().duration == LoadPlan(mode=Mode.DRAIN).checked().duration == 0
    )
    assert LoadPlan(mode=Mode.IDLE).checked().duration == 10
