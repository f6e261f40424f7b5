import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from leveret.perf.plan import LoadPlan
from leveret.perf.publisher import Burst, LoadPublisher, Numbers
from leveret.perf.template import publish_template
from leveret.perf.wire import Link, WireError

from .streams import FRAME_BYTES_MAX, content, frames_of, make_board, make_counters

ALL = 1 << 40
MILLISECOND_NS = 1_000_000


def make_publisher(
    plan=None, *, window=0, quota=ALL, slots=64, numbers=None, varied=True, channel=1
):
    plan = plan or LoadPlan()
    board = make_board()
    link = Link(-1, FRAME_BYTES_MAX)
    template = publish_template(plan, channel, 0, varied=varied, frame_bytes_max=FRAME_BYTES_MAX)
    burst = Burst(
        template.data,
        slots,
        number_at=template.number_at,
        priority_at=template.priority_at,
        stamp_at=template.stamp_at,
        delay_ns=plan.delay * MILLISECOND_NS,
    )
    numbers = numbers or Numbers(0, 1, plan.numbers, None)
    priorities = Numbers(0, 1, plan.priority_max + 1, 1)
    publisher = LoadPublisher(
        link, channel, 7, burst, numbers, make_counters(board), quota, window, priorities
    )
    return publisher, link, board


def messages_in(data):
    """Each message in a byte stream as (channel, exchange, key, properties, body)."""
    found, frames = [], frames_of(data)
    while frames:
        (channel, method), (_, head) = frames[0], frames[1]
        assert isinstance(method, commands.Basic.Publish)
        assert isinstance(head, header.ContentHeader)
        payload, frames = b"", frames[2:]
        while frames and isinstance(frames[0][1], body.ContentBody):
            payload, frames = payload + frames[0][1].value, frames[1:]
        assert len(payload) == head.body_size
        found.append((channel, method.exchange, method.routing_key, head.properties, payload))
    return found


plans = st.builds(
    LoadPlan,
    size=st.integers(0, 64) | st.integers(4000, 9000),
    queues=st.integers(1, 30),
    persistent=st.booleans(),
    priority_max=st.integers(0, 255),
    expiration=st.none() | st.integers(0, 10**10),
    delay=st.just(0) | st.integers(1, 10**10),
    exchange_type=st.sampled_from(["", "topic", "direct"]),
    routing_key=st.sampled_from(["perf.{}", "a.{}.b", "{}", "same"]),
    name=st.sampled_from(["leveret-perf", "q"]),
)


@given(plans, st.integers(1, 100), st.integers(1, 300))
def test_bursts_are_what_pamqp_would_have_written(plan, count, channel):
    publisher, link, board = make_publisher(plan, channel=channel)
    before_ns = time.monotonic_ns()
    sent, data = 0, b""
    while sent < count:
        sent += publisher.pump(count - sent)
        data += link.take_unsent()
    found = messages_in(data)
    assert len(found) == count == publisher.published == board.totals(1).published
    for index, (on, exchange, key, properties, payload) in enumerate(found):
        number = index % plan.numbers
        assert (on, exchange) == (channel, plan.exchange)
        assert key == plan.key_template.replace("{}", f"{number:08d}")
        assert properties.delivery_mode == (2 if plan.persistent else None)
        assert (properties.priority is None) == (plan.priority_max == 0)
        assert (properties.priority or 0) <= plan.priority_max
        assert properties.expiration == (
            plan.expiration if plan.expiration is None else str(plan.expiration)
        )
        assert properties.headers == ({"x-delay": plan.delay} if plan.delay else None)
        assert len(payload) == plan.size
        if plan.stamped:
            at_ns, identity = struct.unpack("=QQ", payload[:16])
            assert before_ns <= at_ns - plan.delay * MILLISECOND_NS <= time.monotonic_ns()
            assert identity == 7 << 52 | number << 32 | index // plan.numbers


def test_every_priority_is_drawn():
    publisher, link, _ = make_publisher(LoadPlan(priority_max=3))
    publisher.pump(64)
    drawn = [properties.priority for *_, properties, _ in messages_in(link.take_unsent())]
    assert set(drawn) == {0, 1, 2, 3}
    assert drawn != sorted(drawn)


def test_the_quota_is_kept():
    publisher, link, _ = make_publisher(quota=10)
    assert publisher.pump(ALL) == 10
    link.take_unsent()
    assert publisher.pump(ALL) == 0
    assert not publisher.eager
    assert publisher.sent() == {0: 10}


def test_a_burst_waits_until_the_one_before_is_written():
    publisher, link, _ = make_publisher(slots=5)
    assert publisher.pump(ALL) == 5
    assert publisher.pump(ALL) == 0
    link.take_unsent()
    assert publisher.eager
    assert publisher.pump(3) == 3


def ack(tag, *, multiple=False):
    return frame.marshal(commands.Basic.Ack(tag, multiple), 1)


def nack(tag, *, multiple=False):
    return frame.marshal(commands.Basic.Nack(tag, multiple, False), 1)


def test_the_window_opens_with_confirms():
    publisher, link, board = make_publisher(window=4, slots=4)
    assert publisher.pump(ALL) == 4
    link.take_unsent()
    assert publisher.pump(ALL) == 0
    link.feed(ack(3, multiple=True))
    assert publisher.pump(ALL) == 3
    totals = board.totals(1)
    assert (totals.published, totals.confirmed, totals.refused) == (7, 3, 0)
    assert publisher.latency.count == 3
    assert totals.published_at_ns >= totals.confirmed_at_ns > 0


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.booleans()), max_size=60))
def test_confirms_in_any_order_settle_each_message_once(confirms):
    publisher, link, board = make_publisher(window=60, slots=60)
    publisher.pump(60)
    link.take_unsent()
    confirmed, refused = set(), set()
    for tag, multiple, negative in confirms:
        named = {tag} if not multiple else set(range(1, tag + 1))
        fresh = named - confirmed - refused
        data = (nack if negative else ack)(tag, multiple=multiple)
        if not multiple and not fresh:
            with pytest.raises(WireError, match="second confirm"):
                link.feed(data)
            return
        link.feed(data)
        (refused if negative else confirmed).update(fresh)
    totals = board.totals(1)
    assert (totals.confirmed, totals.refused) == (len(confirmed), len(refused))
    assert publisher.settled == len(confirmed | refused)


def test_zero_with_multiple_confirms_everything():
    publisher, link, _ = make_publisher(window=9, slots=9)
    publisher.pump(9)
    link.feed(ack(0, multiple=True))
    assert publisher.settled == 9


@pytest.mark.parametrize("data", [ack(10), ack(10, multiple=True), ack(0)])
def test_confirms_of_what_was_not_published_are_an_error(data):
    publisher, link, _ = make_publisher(window=9, slots=9)
    publisher.pump(9)
    with pytest.raises(WireError, match="confirm"):
        link.feed(data)


def test_the_ring_bounds_how_far_confirms_may_overtake():
    publisher, link, _ = make_publisher(window=2, slots=2)
    publisher.pump(ALL)
    for tag in range(2, 200):
        link.take_unsent()
        if publisher.published < tag:
            break
        link.feed(ack(tag))
        publisher.pump(ALL)
    assert publisher.published == 32  # sixteen windows
    link.take_unsent()
    link.feed(ack(1))
    assert publisher.pump(ALL) == 2


def test_returned_messages_are_counted_and_their_content_skipped():
    publisher, link, board = make_publisher(window=9)
    publisher.pump(1)
    returned = frame.marshal(commands.Basic.Return(312, "NO_ROUTE", "", "k"), 1)
    link.feed(returned + content(b"x" * 5000) + ack(1))
    assert (board.totals(1).returned, board.totals(1).confirmed) == (1, 1)
    assert link.methods == []


def test_random_numbers_reach_every_key_about_equally():
    numbers = Numbers(0, 1, 100, 3)
    drawn = [numbers.next() for _ in range(20_000)]
    assert set(drawn) == set(range(100))
    assert max(drawn.count(each) for each in range(100)) < 2 * 200


def test_seeds_differ_and_repeat():
    one, same, other = Numbers(0, 1, 1000, 1), Numbers(0, 1, 1000, 1), Numbers(0, 1, 1000, 2)
    drawn = [[each.next() for _ in range(20)] for each in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]


@given(st.integers(1, 50), st.integers(1, 50), st.data())
def test_numbers_in_turn_go_round(step, count, data):
    first = data.draw(st.integers(0, count - 1))
    numbers = Numbers(first, step, count, None)
    turn = list(range(first, count, step))
    assert [numbers.next() for _ in range(3 * len(turn))] == turn * 3


def test_a_place_for_priorities_needs_priorities():
    link, counters = Link(-1, FRAME_BYTES_MAX), make_counters(make_board())
    burst = Burst(b"x" * 20, 1, priority_at=3)
    with pytest.raises(ValueError, match="priorities"):
        LoadPublisher(link, 1, 7, burst, Numbers(0, 1, 1, None), counters, 1, 0)


def test_places_outside_the_template_are_refused():
    with pytest.raises(ValueError, match="number"):
        Burst(b"x" * 20, 1, number_at=13)
    with pytest.raises(ValueError, match="priority"):
        Burst(b"x" * 20, 1, priority_at=20)
    with pytest.raises(ValueError, match="stamp"):
        Burst(b"x" * 20, 1, stamp_at=5)
    with pytest.raises(ValueError, match="numbers start"):
        Numbers(3, 1, 3, None)
