"""Messages as bytes: each comes out as it went in, and a peer's bytes do no harm."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.ports.replication import BATCH_BYTES_MAX, EpochEnd, LogFiles, LogPlace
from leveret.replication.codec import (
    FRAME_BYTES_MAX,
    HEAD,
    LENGTH,
    NAME_LENGTH,
    NUMBER,
    OPERATION,
    PLACE,
    LinkDecoder,
    LinkEncoder,
    MalformedMessageError,
)
from leveret.replication.copying import OPERATION_BYTES
from leveret.replication.limits import ReplicationLimits
from leveret.replication.messages import (
    Acknowledge,
    Append,
    Attach,
    Attached,
    Copy,
    Detached,
    Drop,
    Operations,
    Refused,
    Remove,
)
from leveret.storage.names import log_key

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
SHARD = 7
NAME_BYTES_MAX = 511  # of a log (see storage.names)

places = st.builds(LogPlace, U64, U32, U64)
files = st.lists(st.tuples(U64, U32), max_size=3).map(tuple)
epochs = st.lists(st.builds(EpochEnd, U32, places), max_size=3).map(tuple)
names = st.sampled_from([log_key("/", name, "aB3", 0) for name in ("one", "two", "Grüße/..")])
data = st.binary(max_size=20)

logs = st.lists(
    st.builds(LogFiles, names, files, epochs, places, U64, places, U32),
    max_size=3,
    unique_by=lambda log: log.log,
).map(tuple)
operations = st.lists(
    st.one_of(
        st.builds(Append, names, places, data),
        st.builds(Copy, names, places, data, st.booleans()),
        st.builds(Remove, names, U64, U32),
        st.builds(Drop, names),
    ),
    max_size=6,
).map(tuple)
messages = st.one_of(
    st.builds(Attach, U32, U64, logs),
    st.builds(Attached, U32, st.lists(st.tuples(names, places), max_size=3).map(tuple)),
    st.builds(Refused, U32),
    st.builds(Detached, U32),
    st.builds(Operations, U32, U64, operations),
    st.builds(Acknowledge, U32, U64),
)


def test_a_frame_takes_the_longest_batch_behind_all_that_may_be_in_front_of_it():
    operation = 2 * OPERATION.size + NAME_LENGTH.size + NAME_BYTES_MAX + PLACE.size + LENGTH.size
    others = ReplicationLimits().frame_bytes_max // OPERATION_BYTES * operation
    assert others + operation + BATCH_BYTES_MAX < FRAME_BYTES_MAX


def frame_of(encoder, message):
    """Return a frame without its length."""
    length, *pieces = encoder.encode(message)
    frame = b"".join(pieces)
    assert LENGTH.unpack(length) == (len(frame),)
    return frame


def decode(frames):
    decoder = LinkDecoder(SHARD)
    return [with_logs(decoder.decode(frame)) for frame in frames]


def with_logs(message):
    """Decode the logs of a message, too."""
    return message._replace(logs=tuple(message.logs)) if isinstance(message, Attach) else message


@given(st.lists(messages, max_size=6))
def test_messages_come_out_as_they_went_in(sent):
    encoder = LinkEncoder(SHARD)
    assert decode(frame_of(encoder, message) for message in sent) == sent


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_a_frame_that_was_changed_is_a_message_or_refused(sent, data):
    encoder = LinkEncoder(SHARD)
    frames = [bytearray(frame_of(encoder, message)) for message in sent]
    frame = data.draw(st.sampled_from(frames))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessageError):
        decode(frames)


@given(st.integers(0, 7), st.binary(max_size=80))
def test_any_bytes_are_a_message_or_refused(kind, rest):
    head = bytes([kind, 1, SHARD, 0])
    with contextlib.suppress(MalformedMessageError):
        decode([head + rest])


@given(messages, st.data())
def test_a_frame_that_ends_too_early_is_refused(message, data):
    frame = frame_of(LinkEncoder(SHARD), message)
    size = data.draw(st.integers(0, len(frame) - 1))
    try:
        [decoded] = decode([frame[:size]])
    except MalformedMessageError:
        return
    assert isinstance(decoded, Operations)  # some operations fewer are a message, too
    assert decoded.operations == message.operations[: len(decoded.operations)]


@given(
    st.text(max_size=200), st.text(max_size=300), st.text(max_size=120), st.integers(0, 10**9 - 1)
)
def test_every_log_has_a_name_that_can_be_sent(vhost, topic, incarnation, partition):
    try:
        name = log_key(vhost, topic, incarnation, partition)
    except ValueError:
        return
    sent = Operations(1, 1, (Remove(name, 0, 0),))
    assert decode([frame_of(LinkEncoder(SHARD), sent)]) == [sent]


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a/../0", "../b/0", "/b/0", "a/b/0/", "a/b/-1", "a/.b/0", "a/b\0/0", "a/b/0\n"],
)
def test_a_name_that_is_no_log_is_refused(name):
    frame = frame_of(LinkEncoder(SHARD), Operations(1, 1, (Drop(name),)))
    with pytest.raises(MalformedMessageError, match="name"):
        decode([frame])


def test_a_name_is_sent_once_until_the_next_attachment():
    encoder, name = LinkEncoder(SHARD), log_key("/", "queue", "x", 0)
    message = Operations(1, 1, (Remove(name, 0, 0),))
    first, second = frame_of(encoder, message), frame_of(encoder, message)
    assert len(second) < len(first) - len(name)
    attached = frame_of(encoder, Attached(1))
    assert decode([first, second, attached, frame_of(encoder, message)])[3] == message


def test_a_frame_of_another_shard_or_version_is_refused():
    frame = bytearray(frame_of(LinkEncoder(SHARD + 1), Refused(1)))
    with pytest.raises(MalformedMessageError, match="shard 8"):
        decode([frame])
    frame[1] = 2
    with pytest.raises(MalformedMessageError, match="version 2"):
        decode([frame])


def test_a_number_of_things_that_cannot_be_in_a_frame_is_refused():
    frame = bytearray(frame_of(LinkEncoder(SHARD), Attach(1, 1, ())))
    frame[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(MalformedMessageError, match="do not fit"):
        decode([frame])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_logs_are_decoded_when_they_are_asked_for(count):
    log = LogFiles(log_key("/", "q", "x", 0))
    frame = bytearray(frame_of(LinkEncoder(SHARD), Attach(1, 1, (log, log))))
    frame[HEAD.size + NUMBER.size] = count
    attach = LinkDecoder(SHARD).decode(frame)
    assert attach[:2] == (1, 1)
    for _ in range(2):
        with pytest.raises(MalformedMessageError, match=r"twice|behind|early|fit"):
            tuple(attach.logs)


def test_batches_are_not_copied():
    batches = bytearray(b"batches")
    append = Append(log_key("/", "q", "x", 0), LogPlace(), batches)
    assert any(piece is batches for piece in LinkEncoder(SHARD).encode(Operations(1, 1, (append,))))
