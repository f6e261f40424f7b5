"""Messages of replication channels: what comes is what was sent, and nothing else is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.partition_state import Member
from leveret.cluster.replication.messages import Diverged, Fetch, Records, Refused
from leveret.ports.epochs import EpochEnd
from leveret.ports.replication import StreamRun
from leveret.replication.wire import (
    ChannelMessageError,
    FollowerMessage,
    LeaderMessage,
    pack_answer,
    pack_fetch,
    pack_follower,
    parse_answer,
    parse_fetch,
    parse_follower,
)

ME = Member(3, 7)
keys = st.text(max_size=50)
epochs = st.integers(0, (1 << 32) - 1)
offsets = st.integers(0, (1 << 63) - 1)
maybe = st.none() | offsets
fetches = st.builds(Fetch, st.just(ME), epochs, offsets, epochs, offsets, offsets)
follower_messages = st.builds(FollowerMessage, keys, fetches, maybe, offsets, st.booleans())
ends = st.builds(EpochEnd, epochs, offsets)
leader_messages = st.one_of(
    st.builds(
        LeaderMessage,
        keys,
        st.builds(Records, epochs, offsets, offsets),
        st.builds(StreamRun, st.binary(max_size=100), maybe, maybe),
    ),
    st.builds(LeaderMessage, keys, st.builds(Diverged, epochs, offsets, epochs, ends), st.none()),
    st.builds(LeaderMessage, keys, st.builds(Refused, epochs), st.none()),
)


@given(follower_messages)
def test_a_followers_message_is_read_as_it_was_sent(message):
    assert parse_fetch(memoryview(pack_fetch(message)), ME) == message


@given(leader_messages)
def test_a_leaders_message_is_read_as_it_was_sent(message):
    assert parse_answer(memoryview(b"".join(pack_answer(message)))) == message


@given(st.binary(max_size=200) | leader_messages.map(lambda each: b"".join(pack_answer(each))[:-1]))
def test_bytes_that_make_no_sense_are_refused(data):
    for parse in (parse_answer, lambda data: parse_fetch(data, ME), parse_follower):
        try:
            parse(memoryview(data))
        except ChannelMessageError:
            continue


@pytest.mark.parametrize(
    "data", [b"", b"\x03", b"\x09" + bytes(60), b"\x01\xff\xff" + bytes(48), bytes(52)]
)
def test_a_followers_message_is_refused(data):
    with pytest.raises(ChannelMessageError):
        parse_fetch(memoryview(data), ME)


def test_who_follows_is_told_when_a_channel_is_opened():
    assert parse_follower(memoryview(pack_follower(ME))) == ME
    with pytest.raises(ChannelMessageError):
        parse_follower(memoryview(b"abc"))
