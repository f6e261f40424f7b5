"""However the network cuts what a client sends, the client sees the same."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, body, commands, header

from tests.support.client import Client, message, wire
from tests.support.stage import Stage

QUEUES = ("a", "b")
channels = st.sampled_from((1, 2))
queues = st.sampled_from((*QUEUES, "missing"))
bodies = st.sampled_from((b"", b"m", b"x" * 5000))

publishes = st.builds(
    message,
    st.sampled_from((*QUEUES, "nobody")),
    bodies,
    channels,
    exchange=st.sampled_from(("", "", "amq.fanout", "amq.headers", "missing")),
    mandatory=st.booleans(),
    headers=st.just({"kind": "x"}),
    frame_max=st.just(4096),
)


def method(make, *arguments):
    return st.builds(lambda channel, *values: wire(make(*values), channel), channels, *arguments)


calls = st.one_of(
    method(lambda queue: commands.Queue.Declare(queue=queue, passive=True), queues),
    method(lambda queue: commands.Queue.Purge(queue=queue), queues),
    method(lambda queue: commands.Queue.Delete(queue=queue), queues),
    method(lambda queue: commands.Queue.Declare(queue=queue), st.sampled_from(QUEUES)),
    method(lambda queue, no_ack: commands.Basic.Get(0, queue, no_ack), queues, st.booleans()),
    # Tag 0 is never wrong. After a wrong one, publishes of the same read are still taken: they are
    # packed before the settlements of their read are looked at.
    method(lambda: commands.Basic.Ack(0, multiple=True)),
    method(lambda requeue: commands.Basic.Nack(0, True, requeue), st.booleans()),
    method(lambda: commands.Basic.Recover(requeue=True)),
    method(commands.Confirm.Select),
    method(commands.Tx.Select),
    method(commands.Tx.Commit),
    method(commands.Tx.Rollback),
    method(lambda: commands.Channel.Close(200, "", 0, 0)),
    method(commands.Channel.CloseOk),
    method(commands.Channel.Open),
)


def seen(data, cuts):
    """Return what the client sees on each channel; of confirms, which may cover many, the last."""
    stage = Stage()
    client = Client(stage).open(1, 2)
    for name in QUEUES:
        client.declare(name)
        client.call(commands.Queue.Bind(queue=name, exchange="amq.fanout"))
    bind = commands.Queue.Bind(queue="a", exchange="amq.headers", arguments={"kind": "x"})
    client.call(bind)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        client.feed(data[start:stop])
    assert stage.reported == []
    lines, confirmed = {0: [], 1: [], 2: []}, {}
    for channel, value in client.received():
        if isinstance(value, commands.Basic.Ack):
            confirmed[channel] = value.delivery_tag
        else:
            if isinstance(value, commands.Channel.OpenOk | commands.Channel.Close):
                confirmed.pop(channel, None)  # what was not told by then never is
            if isinstance(value, commands.Connection.Close):
                confirmed.clear()
            lines[channel].append(as_line(value))
    queued = {
        name: (queue.message_count, queue.state.leased_count)
        for name, queue in stage.broker.vhosts["/"].queues.items()
    }
    return lines, confirmed, queued, client.transport.close_after_seconds


def as_line(value):
    if isinstance(value, header.ContentHeader):
        return value.body_size
    if isinstance(value, body.ContentBody):
        return value.value
    assert isinstance(value, base.Frame)
    return value.name, dict(value)


@given(
    st.lists(st.one_of(publishes, publishes, calls), max_size=25),
    st.lists(st.integers(0), max_size=30),
)
def test_cuts_change_nothing(frames, cuts):
    data = b"".join(frames)
    assert seen(data, cuts) == seen(data, [])
