"""Links over real sockets."""

import asyncio
import contextlib
import random
import socket
from dataclasses import replace
from functools import partial

import pytest
import uvloop

from leveret.links.breaker import BreakerState
from leveret.links.errors import (
    MessageTooLargeError,
    PeerRefusedError,
    PeerUnavailableError,
    RefusalCode,
    RequestTimeoutError,
    StreamFailedError,
    Unavailable,
)
from leveret.links.identity import ClusterSecret
from leveret.links.links import _close_unbegun
from leveret.links.settings import LinkLimits
from tests.links.nodes import (
    BRIEF,
    BULK,
    CHECKED,
    ECHO,
    FAIL,
    NOTE,
    QUICK,
    REFUSE,
    REPEAT,
    STUCK,
    WAIT,
    Node,
    Proxy,
    send,
)
from tests.support.waiting import eventually


async def test_requests_are_answered():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        assert bytes(await peer.request(ECHO, b"hello", timeout_s=60)) == b"hello"
        assert len(await peer.request(BULK, b"3000", timeout_s=60)) == 3_000_000
        assert await peer.request(CHECKED, b"30", timeout_s=60) == b"b" * 30_000
        payload = [b"x" * 700_000, memoryview(b"y" * 9)]
        assert bytes(await peer.request(ECHO, payload, timeout_s=60)) == b"".join(payload)
        answers = await asyncio.gather(
            *(peer.request(ECHO, str(i).encode(), timeout_s=60) for i in range(500))
        )
        assert [int(bytes(each)) for each in answers] == list(range(500))
        assert peer.identity.node == 2
        assert peer.identity.features == {"x"}


async def test_refusals_and_failures_of_handlers_are_told_apart(caplog):
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        with pytest.raises(PeerRefusedError) as refused:
            await peer.request(REFUSE, b"", timeout_s=60)
        assert (refused.value.code, refused.value.text) == (404, "not here")
        with pytest.raises(PeerRefusedError) as failed:
            await peer.request(FAIL, b"", timeout_s=60)
        assert failed.value.code == RefusalCode.INTERNAL
        assert "implementation" not in failed.value.text
        with pytest.raises(PeerRefusedError) as unknown:
            await peer.request(999, b"", timeout_s=60)
        assert unknown.value.code == RefusalCode.UNKNOWN_KIND
    assert "a secret of the implementation" in caplog.text


async def test_a_cancelled_long_poll_ends_on_the_other_side():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        asked = one.spawn(peer.request(WAIT, b"poll", timeout_s=50))
        await eventually(lambda: two.waiting)
        asked.cancel()
        await eventually(lambda: two.cancelled == [b"poll"])
        assert bytes(await peer.request(ECHO, b"on", timeout_s=60)) == b"on"


async def test_a_request_that_takes_too_long_is_cancelled_there():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        with pytest.raises(RequestTimeoutError, match="node 2"):
            await peer.request(WAIT, b"poll", timeout_s=0.05)
        await eventually(lambda: two.cancelled == [b"poll"])
        assert peer.counters.requests_timed_out == 1


async def test_requests_without_answers_in_a_row_close_the_link():
    settings = replace(QUICK, timeouts_max=3)
    async with Node(1, settings) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        states = []
        peer.on_state(states.append)
        for _ in range(3):
            with pytest.raises(RequestTimeoutError):
                await peer.request(WAIT, b"", timeout_s=0.02)
        await eventually(lambda: states[:1] == [False])
        await eventually(lambda: peer.is_connected)


async def test_messages_arrive_in_order():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        sent = [b"%d" % i * (100_000 if i % 10 == 3 else 1) for i in range(100)]
        for each in sent:
            peer.send(NOTE, each)
        await eventually(lambda: len(two.notes) == 100)
        assert two.notes == [(1, each) for each in sent]


async def test_a_stream_carries_messages_both_ways():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        stream = peer.open_stream(REPEAT, b"open")
        sent = [b"%d" % i * 3000 for i in range(500)]

        async def send_all():
            for each in sent:
                await send(stream, each)
            stream.end()

        one.spawn(send_all())
        received = []
        while (message := await stream.receive()) is not None:
            received.append(bytes(message))
        assert received == [b"open", *sent]


async def test_a_handler_that_returns_early_lets_the_other_side_end():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        stream = peer.open_stream(BRIEF, b"")
        for _ in range(300):
            await send(stream, b"x" * 20_000)
        stream.end()
        assert len(await stream.receive()) == 20_000
        assert await stream.receive() is None
        await eventually(lambda: not peer._link.link.machine.streams_count)


async def test_streams_fail_on_both_sides():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        stream = peer.open_stream(STUCK, b"")
        await eventually(lambda: two.streams)
        two.streams[0].fail(7, "enough")
        with pytest.raises(StreamFailedError) as failed:
            await stream.receive()
        assert (failed.value.code, failed.value.text) == (7, "enough")
        with pytest.raises(StreamFailedError):
            stream.send(b"")
        unknown = peer.open_stream(999, b"")
        with pytest.raises(StreamFailedError, match="no stream of kind 999"):
            await unknown.receive()


async def test_a_stream_that_is_not_read_delays_no_other_request():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        stream = peer.open_stream(STUCK, b"")
        again = []
        stream.on_writable(lambda: again.append(1))
        while stream.writable:
            stream.send(b"x" * 10_000)
            await asyncio.sleep(0)
        with pytest.raises(PeerUnavailableError):
            stream.send(b"x")
        assert len(await peer.request(BULK, b"2000", timeout_s=60)) == 2_000_000
        assert not again
        two.streams[0].receive_ready()
        await eventually(lambda: again)


async def test_a_message_that_is_too_large_is_refused_here_and_there():
    settings = replace(QUICK, limits=LinkLimits(message_bytes_max=100_000))
    async with Node(1) as one, Node(2, settings) as two:
        peer = one.dial(two)
        with pytest.raises(MessageTooLargeError):
            await peer.request(ECHO, b"x" * 100_001, timeout_s=60)
        back = two.dial(one)
        with pytest.raises(PeerRefusedError, match="are more than"):
            await back.request(BULK, b"101", timeout_s=60)


async def test_more_requests_than_the_other_side_takes_fail_at_once():
    settings = replace(QUICK, limits=LinkLimits(requests_max=3))
    async with Node(1) as one, Node(2, settings) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        asked = [one.spawn(peer.request(WAIT, b"", timeout_s=50)) for _ in range(3)]
        await eventually(lambda: two.waiting == 3)
        with pytest.raises(PeerUnavailableError) as caught:
            await peer.request(ECHO, b"", timeout_s=60)
        assert caught.value.why is Unavailable.QUEUE_FULL
        for each in asked:
            each.cancel()


async def test_a_lost_link_ends_everything_and_is_dialed_again():
    async with Node(1) as one, Node(2) as two, Proxy(two.address) as proxy:
        peer = one.dial(two, proxy.address)
        states = []
        peer.on_state(states.append)
        await peer.request(ECHO, b"", timeout_s=60)
        asked = one.spawn(peer.request(WAIT, b"w", timeout_s=50))
        stream = peer.open_stream(STUCK, b"")
        await eventually(lambda: two.streams and two.waiting)
        proxy.cut()
        with pytest.raises(PeerUnavailableError) as caught:
            await asked
        assert caught.value.why is Unavailable.LOST
        with pytest.raises(PeerUnavailableError):
            await stream.receive()
        await eventually(lambda: two.cancelled == [b"w"])
        await eventually(lambda: states == [True, False, True])
        assert bytes(await peer.request(ECHO, b"again", timeout_s=60)) == b"again"


@pytest.mark.parametrize("seed", range(6))
async def test_every_request_and_stream_ends_however_often_the_link_is_cut(seed):
    chance = random.Random(seed)
    async with Node(1) as one, Node(2) as two, Proxy(two.address) as proxy:
        peer = one.dial(two, proxy.address)
        await peer.request(ECHO, b"", timeout_s=60)
        ended = []

        async def ask():
            for _ in range(40):
                payload = chance.randbytes(chance.choice((0, 10, 20_000, 300_000)))
                try:
                    assert await peer.request(ECHO, payload, timeout_s=20) == payload
                except PeerUnavailableError:
                    await asyncio.sleep(0.005)
                ended.append("request")

        async def repeat():
            for _ in range(10):
                sent, received = [chance.randbytes(20_000) for _ in range(10)], []
                try:
                    stream = peer.open_stream(REPEAT, b"")
                    for each in sent:
                        stream.send(each)
                    stream.end()
                    while (message := await stream.receive()) is not None:
                        received.append(bytes(message))
                    assert received == [b"", *sent]
                except PeerUnavailableError:
                    assert received == [b"", *sent][: len(received)]
                    await asyncio.sleep(0.005)
                ended.append("stream")

        tasks = [one.spawn(ask()) for _ in range(5)] + [one.spawn(repeat()) for _ in range(3)]
        while not all(each.done() for each in tasks):
            await asyncio.sleep(chance.random() * 0.05)
            proxy.cut()
        await asyncio.gather(*tasks)
        assert (ended.count("request"), ended.count("stream")) == (200, 30)
        await eventually(lambda: peer.is_connected)
        assert not peer._link._waiting


@pytest.mark.parametrize("from_dialer", [True, False])
@pytest.mark.parametrize("how", ["holds", "drops"])
async def test_a_network_that_carries_one_way_only_is_noticed(from_dialer, how):
    async with Node(1) as one, Node(2) as two, Proxy(two.address) as proxy:
        peer = one.dial(two, proxy.address)
        await peer.request(ECHO, b"", timeout_s=60)
        states = []
        peer.on_state(states.append)
        getattr(proxy, how)[from_dialer] = True
        await eventually(lambda: states)
        getattr(proxy, how)[from_dialer] = False
        await eventually(lambda: peer.is_connected)


async def test_silence_opens_the_breaker_and_requests_fail_at_once():
    settings = replace(QUICK, retry_ms_min=60_000, retry_ms_max=60_000)
    async with Node(1, settings) as one, Node(2) as two, Proxy(two.address) as proxy:
        peer = one.dial(two, proxy.address)
        await peer.request(ECHO, b"", timeout_s=60)
        proxy.holds[False] = True
        await eventually(lambda: peer.breaker.state is BreakerState.OPEN)
        with pytest.raises(PeerUnavailableError) as caught:
            await peer.request(ECHO, b"", timeout_s=50)
        assert caught.value.why is Unavailable.BREAKER_OPEN
        with pytest.raises(PeerUnavailableError):
            peer.send(NOTE, b"")
        one.dial(two)
        await eventually(lambda: peer.is_connected)


async def test_who_dials_is_dialed_without_further_delay():
    settings = replace(QUICK, retry_ms_min=60_000, retry_ms_max=60_000)
    async with Node(1, settings) as one, Node(2) as two, Proxy(two.address) as proxy:
        peer = one.dial(two, proxy.address)
        await peer.request(ECHO, b"", timeout_s=60)
        proxy.holds[False] = True
        await eventually(lambda: peer.breaker.state is BreakerState.OPEN)
        proxy.holds[False] = False
        two.dial(one)
        await eventually(lambda: peer.is_connected)


async def test_a_peer_that_reads_nothing_delays_no_other_one():
    settings = replace(QUICK, silent_ms_max=60_000, queued_bytes_max=2_000_000)
    async with (
        Node(1, settings) as one,
        Node(2, settings) as two,
        Node(3, settings) as three,
        Proxy(two.address) as proxy,
    ):
        slow, quick = one.dial(two, proxy.address), one.dial(three)
        await slow.request(ECHO, b"", timeout_s=60)
        await quick.request(ECHO, b"", timeout_s=60)
        proxy.holds[True] = True
        turns = 0
        loop = asyncio.get_running_loop()

        def turn():
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        async def turns_of_a_round_trip():
            before = turns
            for _ in range(50):
                await quick.request(ECHO, b"x" * 1000, timeout_s=60)
            return turns - before

        while slow.writable:
            slow.send(NOTE, b"x" * 300_000)
            await asyncio.sleep(0)
        with pytest.raises(PeerUnavailableError) as caught:
            slow.send(NOTE, b"")
        assert caught.value.why is Unavailable.QUEUE_FULL
        assert not slow.writable
        assert slow.counters.queued_bytes <= 2_300_000
        assert quick.writable
        turn()
        assert await turns_of_a_round_trip() < 50 * 400
        assert quick.counters.queued_bytes == 0
        proxy.holds[True] = False
        await eventually(lambda: slow.writable)


async def test_requests_wait_for_the_first_connection_only():
    async with Node(1) as one, Node(2) as two:
        peer = one.links.peer(2)
        with pytest.raises(PeerUnavailableError) as caught:
            await peer.request(ECHO, b"", timeout_s=60)
        assert caught.value.why is Unavailable.NO_ADDRESS
        one.dial(two)
        with pytest.raises(PeerUnavailableError):
            peer.send(NOTE, b"")
        assert not peer.is_connected
        assert bytes(await peer.request(ECHO, b"1", timeout_s=60)) == b"1"


async def test_nobody_listens():
    async with Node(1) as one:
        peer = one.links.peer(2)
        one.links.set_address(2, "localhost", 1)
        with pytest.raises(PeerUnavailableError) as caught:
            await peer.request(ECHO, b"", timeout_s=60)
        assert caught.value.why is Unavailable.DOWN
        await eventually(lambda: peer.breaker.state is not BreakerState.CLOSED)
        assert peer.counters.failures >= 3


@pytest.mark.parametrize("which", ["secret", "node"])
async def test_a_refused_handshake_is_logged_once(which, caplog):
    secret = ClusterSecret(b"another secret of a cluster")
    other = Node(2, secret=secret) if which == "secret" else Node(3)
    async with Node(1) as one, other as two:
        one.links.set_address(2, *two.address)
        peer = one.links.peer(2)
        await eventually(lambda: peer.counters.failures >= 4)
        assert not peer.is_connected
    said = "different cluster secrets" if which == "secret" else "node 3 answers where node 2"
    lines = [each for each in caplog.messages if said in each and "no link with" in each]
    assert len(lines) == 1
    assert "secret of a" not in caplog.text


async def test_a_node_without_an_address_is_dialed_no_more(caplog):
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await peer.request(ECHO, b"", timeout_s=60)
        one.links.clear_address(2)
        await eventually(lambda: not peer.is_connected)
        await eventually(lambda: not [each for each in two.links.figures() if each.is_connected])
        with pytest.raises(PeerUnavailableError) as caught:
            await peer.request(ECHO, b"", timeout_s=60)
        assert caught.value.why is Unavailable.NO_ADDRESS
        await asyncio.sleep(QUICK.retry_ms_max / 1000 * 2)
        assert peer.counters.connects == 1
    assert "it is dialed until" not in caplog.text


async def test_a_node_that_is_back_is_dialed_at_once_by_the_same_peer():
    settings = replace(QUICK, retry_ms_min=60_000, retry_ms_max=60_000)
    async with Node(1, settings) as one, Node(2) as two:
        one.links.set_address(2, "localhost", 1)  # nobody is there
        peer = one.links.peer(2)
        waiting = one.spawn(peer.request(ECHO, b"", timeout_s=60))
        await eventually(lambda: peer.counters.failures)
        one.links.clear_address(2)
        one.links.clear_address(2)
        with pytest.raises(PeerUnavailableError):
            await waiting
        assert one.dial(two) is peer
        assert bytes(await peer.request(ECHO, b"1", timeout_s=60)) == b"1"


async def test_a_request_that_waits_for_a_node_ends_when_its_address_is_cleared():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        async with Node(1, replace(QUICK, handshake_ms_max=60_000, silent_ms_max=60_000)) as one:
            one.links.set_address(2, *silent.getsockname())
            peer = one.links.peer(2)
            waiting = one.spawn(peer.request(ECHO, b"", timeout_s=60))
            await asyncio.sleep(0.05)
            one.links.clear_address(2)
            with pytest.raises(PeerUnavailableError) as caught:
                async with asyncio.timeout(10):
                    await waiting
            assert caught.value.why is Unavailable.NO_ADDRESS


async def test_a_node_that_connects_once_more_replaces_its_link():
    async with Node(1) as one, Node(1, session=2) as later, Node(2) as two:
        before = one.dial(two)
        await before.request(ECHO, b"", timeout_s=60)
        lost = []
        before.on_state(lost.append)
        await later.dial(two).request(ECHO, b"", timeout_s=60)
        await eventually(lambda: lost)
        assert later.links.peer(2).is_connected


async def test_strangers_are_few_and_cost_nobody_a_link():
    settings = replace(QUICK, strangers_max=4)
    async with Node(1) as one, Node(2, settings) as two:
        strangers = [await asyncio.open_connection(*two.address) for _ in range(20)]
        assert bytes(await one.dial(two).request(ECHO, b"1", timeout_s=60)) == b"1"
        assert len(two.links._strangers) <= 4
        for reader, writer in strangers[:12]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        for _, writer in strangers:
            writer.close()


async def test_a_stranger_has_little_time():
    settings = replace(QUICK, handshake_ms_max=100)
    async with Node(2, settings) as two:
        reader, writer = await asyncio.open_connection(*two.address)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()
        await eventually(lambda: not two.links._strangers)


async def test_a_stranger_that_speaks_otherwise_is_told(caplog):
    async with Node(2) as two:
        reader, writer = await asyncio.open_connection(*two.address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"not a node's link" in await reader.read()
        writer.close()
    assert "not a node's link" in caplog.text


async def test_a_round_trip_is_measured():
    async with Node(1) as one, Node(2) as two:
        peer = one.dial(two)
        await eventually(lambda: peer.counters.round_trip_ns)
        await eventually(lambda: any(not each.is_dialed and each.is_connected
                                     for each in two.links.figures()))  # fmt: skip
        (row,) = one.links.figures()
        assert (row.node, row.is_dialed, row.is_connected, row.breaker) == (2, True, True, "closed")


async def test_closing_ends_what_waits():
    async with Node(2) as two:
        async with Node(1) as one:
            asked = one.spawn(one.dial(two).request(WAIT, b"w", timeout_s=50))
            await eventually(lambda: two.waiting)
        with pytest.raises(PeerUnavailableError):
            await asked
        await eventually(lambda: two.cancelled == [b"w"])


@pytest.mark.parametrize(
    "scenario",
    [
        test_requests_are_answered,
        test_a_cancelled_long_poll_ends_on_the_other_side,
        test_messages_arrive_in_order,
        test_a_stream_carries_messages_both_ways,
        test_a_stream_that_is_not_read_delays_no_other_request,
        test_a_lost_link_ends_everything_and_is_dialed_again,
        test_a_peer_that_reads_nothing_delays_no_other_one,
        test_strangers_are_few_and_cost_nobody_a_link,
        test_closing_ends_what_waits,
    ],
)
def test_the_loop_of_a_node_does_the_same(scenario):
    uvloop.run(scenario())


async def test_a_connection_that_is_turned_away_before_it_is_brought_in_is_closed():
    async with Node(1) as node:
        ours, theirs = socket.socketpair()
        task = node.spawn(node.links._bring_in(theirs, None))
        task.add_done_callback(partial(_close_unbegun, theirs))
        task.cancel()
        await eventually(task.done)
        assert theirs.fileno() == -1
        ours.close()
