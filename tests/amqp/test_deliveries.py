"""Frames of the compiled writer, as pamqp reads them."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from leveret.amqp.deliveries import Outbox
from leveret.amqp.frames import ChannelSlot
from leveret.ports.records import BatchBuilder
from tests.amqp.strategies import properties
from tests.support.contents import encode_properties

REFERRED_BYTES = 16384  # from here on a body is sent from its batch
names = st.text(max_size=60).map(str.encode)
contents = st.binary(max_size=50) | st.sampled_from(
    [4087, 4088, 4089, REFERRED_BYTES - 1, REFERRED_BYTES, 2 * REFERRED_BYTES + 5, 150_000]
).map(lambda size: b"\xce" * size)


@st.composite
def messages(draw):
    """(exchange, routing key, content header, body)."""
    content = draw(contents)
    head = encode_properties(draw(properties().map(without_moments)), len(content))
    return draw(names), draw(names), head, content


def without_moments(chosen):
    chosen.timestamp = None
    return chosen


def sealed(stored, base_offset=0):
    builder = BatchBuilder()
    for message in stored:
        builder.add(0, 1, *message)
    return builder.seal(base_offset)


def frames_of(parts):
    data = b"".join(bytes(part) for part in parts)
    while data:
        size, channel, piece = frame.unmarshal(data)
        assert channel == 5
        yield size, piece, data[7 : size - 1]
        data = data[size:]


def read_back(parts, frame_size_max):
    """[(method, content header, body)] of the contents in `parts`."""
    found = []
    for size, piece, payload in frames_of(parts):
        if isinstance(piece, header.ContentHeader):
            found[-1][1] = payload
        elif isinstance(piece, body.ContentBody):
            assert size <= frame_size_max + 8
            found[-1][2] += piece.value
        else:
            found.append([piece, b"", b""])
    return found


@pytest.fixture
def slot():
    return ChannelSlot(5, None)


@given(
    st.lists(st.lists(messages(), min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from([4088, 20_000, 131064]),
    st.booleans(),
    st.text(max_size=60),
    st.data(),
)
def test_pamqp_reads_the_records_that_were_delivered(groups, frame_size_max, again, tag, data):
    stored = [message for group in groups for message in group]
    batches, base = [], 100
    for group in groups:
        batches.append(sealed(group, base))
        base += len(group)
    first = data.draw(st.integers(100, base - 1))
    stop = data.draw(st.integers(first + 1, base))
    outbox, slot = Outbox(), ChannelSlot(5, None)
    outbox.frame_size_max, outbox.size_max = frame_size_max, 1 << 30
    slot.delivery_tag = 7
    assert outbox.deliver(slot, tag.encode(), batches, first, stop, again) == stop
    size = outbox.size
    parts = outbox.take()
    assert sum(map(len, parts)) == size
    assert (outbox.size, outbox.take(), slot.delivery_tag) == (0, [], 7 + stop - first)
    found = read_back(parts, frame_size_max)
    for number, (method, head, content) in enumerate(found, start=8):
        exchange, key, *rest = stored[first - 100 + number - 8]
        assert (method.consumer_tag, method.delivery_tag) == (tag, number)
        assert (method.redelivered, method.exchange.encode()) == (again, exchange)
        assert (method.routing_key.encode(), [head, content]) == (key, rest)
    assert len(found) == stop - first


@given(messages(), st.integers(0, 2**32 - 1))
def test_pamqp_reads_the_record_that_was_asked_for(message, left):
    outbox, slot = Outbox(), ChannelSlot(5, None)
    outbox.get_ok(slot, sealed([message]), 0, False, left)
    ((method, head, content),) = read_back(outbox.take(), 4088)
    assert (method.delivery_tag, method.redelivered, method.message_count) == (1, False, left)
    assert (method.exchange.encode(), method.routing_key.encode(), head, content) == message


def test_a_full_outbox_ends_a_delivery_behind_the_record_that_filled_it(slot):
    head = encode_properties(commands.Basic.Properties(), 100)
    batches = [sealed([(b"", b"q", head, b"x" * 100)] * 10)]
    outbox = Outbox()
    outbox.size_max = 1
    assert outbox.deliver(slot, b"t", batches, 0, 10, False) == 1
    assert outbox.is_full
    outbox.size_max = 10_000
    assert outbox.deliver(slot, b"t", batches, 1, 10, False) == 10
    assert not outbox.is_full
    assert [method.delivery_tag for method, *_ in read_back(outbox.take(), 4088)] == list(
        range(1, 11)
    )


def test_batches_that_leave_a_gap_end_a_delivery(slot):
    head = encode_properties(commands.Basic.Properties(), 1)
    batches = [sealed([(b"", b"q", head, b"x")], base) for base in (0, 1, 5)]
    assert Outbox().deliver(slot, b"t", batches, 0, 6, False) == 2
    assert Outbox().deliver(slot, b"t", batches[2:], 0, 6, False) == 0


def test_large_bodies_stay_valid_when_the_batch_is_forgotten(slot):
    content = bytes(range(256)) * 100
    head = encode_properties(commands.Basic.Properties(), len(content))
    outbox = Outbox()
    outbox.frame_size_max = 131064
    outbox.deliver(slot, b"t", [sealed([(b"", b"q", head, content)])], 0, 1, False)
    parts = outbox.take()
    assert any(isinstance(part, memoryview) for part in parts)
    assert read_back(parts, 131064)[0][2] == content


@pytest.mark.parametrize("nack", [False, True])
def test_confirms_are_acks_and_nacks(nack):
    outbox, slot = Outbox(), ChannelSlot(5, None)
    outbox.confirm(slot, 2**63 - 1, True, nack)
    assert slot.counters.counted() == ({} if nack else {"confirm": 2**63 - 1})
    outbox.write(b"\x08\x00\x05\x00\x00\x00\x00\xce")
    (_, piece, _), (_, beat, _) = frames_of(outbox.take())
    assert isinstance(piece, commands.Basic.Nack if nack else commands.Basic.Ack)
    assert (piece.delivery_tag, piece.multiple, type(beat).__name__) == (
        2**63 - 1,
        True,
        "Heartbeat",
    )


@pytest.mark.parametrize("size_max", [1, 700, 1 << 20])
@pytest.mark.parametrize("runs", [[(1, 2), (3, 5)], [(0, 1), (2, 5), (6, 8)], [(7, 9)]])
def test_runs_are_delivered_one_after_the_other(slot, runs, size_max):
    head = encode_properties(commands.Basic.Properties(), 100)
    stored = [(b"", b"q%d" % i, head, b"x" * 100) for i in range(9)]
    batches = [sealed(stored[first : first + 3], first) for first in (0, 3, 6)]
    outbox, expected, one_by_one = Outbox(), Outbox(), ChannelSlot(5, None)
    outbox.size_max = expected.size_max = size_max
    reached = outbox.deliver_runs(slot, b"t", batches, runs, False)
    for first, stop in runs:
        end = expected.deliver(one_by_one, b"t", batches, first, stop, False)
        if end < stop or expected.size >= size_max:
            break
    assert reached == end
    assert slot.delivery_tag == one_by_one.delivery_tag
    assert b"".join(outbox.take()) == b"".join(expected.take())


# -- where memory or a batch fails


WITHOUT_MEMORY = """
import resource
from leveret.amqp.deliveries import Outbox

outbox = Outbox()
outbox.write(b"x" * 1000)
chunk = bytes(1 << 20)  # so that nothing but the outbox asks for memory below
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
try:
    while True:
        outbox.write(chunk)
except MemoryError:
    pass
assert outbox.is_torn
outbox.write(b"y" * 1000)
assert outbox.take() == []
assert outbox.size == 0
"""


@pytest.mark.usefixtures("processes")
def test_an_outbox_without_memory_hands_out_nothing_and_touches_nothing_freed():
    ended = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], check=False)
    assert ended.returncode == 0


def test_runs_that_no_batch_holds_are_refused(slot):
    head = encode_properties(commands.Basic.Properties(), 1)
    batches = [sealed([(b"", b"q", head, b"x")] * 3, 0), sealed([(b"", b"q", head, b"x")], 5)]
    for runs in ([(6, 7)], [(3, 5)], [(100, 101)]):
        outbox = Outbox()
        with pytest.raises(IndexError):
            outbox.deliver_runs(slot, b"t", batches, runs, False)
        assert not outbox.is_torn
    with pytest.raises(IndexError):
        Outbox().deliver_runs(slot, b"t", [], [(0, 1)], False)


def test_an_outbox_whose_run_failed_halfway_is_torn(slot):
    head = encode_properties(commands.Basic.Properties(), 1)
    outbox = Outbox()
    with pytest.raises(IndexError):
        outbox.deliver_runs(
            slot, b"t", [sealed([(b"", b"q", head, b"x")])], [(0, 1), (7, 8)], False
        )
    assert outbox.is_torn
    assert outbox.take() == []
