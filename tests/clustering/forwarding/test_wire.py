"""Messages of forwarding streams: what is packed is parsed, and nothing else is."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.clustering.forwarding import wire
from leveret.core.settings.discard_reasons import Reason
from leveret.ports.records import BatchBuilder

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**63)
RANGES = st.lists(
    st.tuples(U64, st.integers(1, 1000)).map(lambda each: (each[0], sum(each))), max_size=5
)
RETURNS = st.lists(st.builds(wire.RecordReturns, U64, U32, U32), max_size=3)
ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers(-5, 5) | st.text(max_size=5))


@st.composite
def batches(draw):
    builder = BatchBuilder()
    for body in draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4)):
        builder.add(1, 0, b"x", b"key", b"header", body)
    return builder.seal(draw(st.integers(0, 2**40)))


TO_LEADER = st.one_of(
    st.builds(wire.PublishRecords, batches()),
    st.builds(
        wire.BeginConsuming, U32, st.booleans(), st.integers(-(2**31), 2**31), U32, ARGUMENTS
    ),
    st.builds(wire.EndConsuming, U32),
    st.builds(wire.GrantCredit, U32, U32, U32),
    st.builds(
        wire.SettleRecords, st.sampled_from(wire.SettlementOutcome), st.sampled_from(Reason), RANGES
    ),
    st.builds(wire.GetRequest, U32),
    st.builds(wire.RefreshRequest, U32),
    st.builds(wire.PurgeRequest, U32),
    st.builds(wire.LookUpOffsets, U32, st.none() | U64, st.booleans()),
)
FROM_LEADER = st.one_of(
    st.builds(wire.RecordsCommitted, U64),
    st.builds(wire.RecordsFailed, RANGES),
    st.builds(wire.RecordsRefused, RANGES),
    st.builds(
        wire.DeliverRecords,
        U32,
        st.booleans(),
        RETURNS,
        st.lists(batches(), min_size=1, max_size=3),
    ),
    st.builds(wire.GotRecord, U32, st.booleans(), U64, RETURNS, st.none() | batches()),
    st.builds(wire.QueueFigures, U32, U64, U64, U32, st.booleans(), U64),
    st.builds(wire.PurgeAnswer, U32, U64),
    st.builds(wire.LogOffsets, U32, U64, U64, st.none() | U64, st.none() | U64, st.booleans()),
    st.builds(wire.ConsumerRefused, U32),
)


def joined(message) -> bytes:
    return b"".join(bytes(part) for part in wire.pack(message))


@given(TO_LEADER)
def test_messages_to_a_leader_pass(message):
    packed = joined(message)
    parsed = wire.parse_to_leader(memoryview(packed))
    assert type(parsed) is type(message)
    assert joined(parsed) == packed
    with pytest.raises(wire.ForwardingMessageError):
        wire.parse_from_leader(memoryview(packed))


@given(FROM_LEADER)
def test_messages_of_a_leader_pass(message):
    packed = joined(message)
    parsed = wire.parse_from_leader(memoryview(packed))
    assert type(parsed) is type(message)
    assert joined(parsed) == packed
    with pytest.raises(wire.ForwardingMessageError):
        wire.parse_to_leader(memoryview(packed))


@given(st.one_of(TO_LEADER, FROM_LEADER), st.data())
def test_whatever_else_comes_is_told(message, data):
    packed = bytearray(joined(message))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    else:
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    for parse in (wire.parse_to_leader, wire.parse_from_leader):
        with contextlib.suppress(wire.ForwardingMessageError):
            parse(memoryview(bytes(packed)))


@given(st.binary(max_size=60))
def test_a_stream_is_opened_for_a_partition(payload):
    with pytest.raises(wire.ForwardingMessageError):
        wire.StreamOpening.parse(memoryview(payload))
    opening = wire.StreamOpening("key/0", 3, 17)
    assert wire.StreamOpening.parse(memoryview(opening.pack())) == opening
