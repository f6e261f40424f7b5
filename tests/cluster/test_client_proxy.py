"""Clients that are passed on to the leader, over sockets of the loopback, on both loops."""

import asyncio
import contextlib
import itertools
import logging
import random
import socket

import pytest

from leveret.cluster import client_proxy, client_relay, passed_client
from leveret.cluster.client_proxy import ClientPort, ClientProxy
from leveret.cluster.client_relay import BUFFERED_BYTES_MAX
from leveret.cluster.links.connector import LinkDialing
from leveret.cluster.links.link import KEEPALIVE, LinkLimits
from leveret.cluster.links.links import Links
from leveret.cluster.passed_client import TAKEN, LeaderAddress, PassedClient, pass_client
from leveret.cluster.waiting_clients import PASSES_MAX
from leveret.errors import LeveretError
from tests.cluster.links.peers import ACCEPTOR, OPENER, identity
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_SECONDS, eventually

NEVER_SECONDS = 3600
PATIENT = LinkLimits(silence_ms=NEVER_SECONDS * 1000, handshake_ms=NEVER_SECONDS * 1000)
OTHER_SECRET = b"another secret of a cluster"
WORDS = b"AMQP\x00\x00\x09\x01"
UNLED = b"nobody leads"
UNTAKEN = b"the leader has not taken you"
READ_BYTES_MAX = 256 << 10  # of one call of a loop


class Unlinked:
    """Observer of links of which there are none."""

    def connected(self, link):
        raise AssertionError(link)

    received = disconnected = connected


class LeadingNode:
    """A node that leads, as far as it takes clients."""

    def __init__(self, number=ACCEPTOR, *, answer=TAKEN, **own):
        self.number, self.answer = number, answer
        self.links = Links(
            identity(number, **own), Unlinked(), LinkDialing(lambda _: None, None), PATIENT
        )
        self.links.on_client = self._take
        self.taken = []
        self.address = None

    async def listen(self):
        self.address = await self.links.listen("127.0.0.1", 0)
        return self

    def as_leader(self, number=None):
        return LeaderAddress(number or self.number, *self.address)

    def _take(self, connection, told):
        connection.send(self.answer)
        self.taken.append((connection, PassedClient.from_bytes(told)))

    async def next(self):
        """Return the streams of the next client that is passed on."""
        await eventually(lambda: self.taken, "a client that was passed on")
        connection, _ = self.taken.pop(0)
        return await asyncio.open_connection(sock=connection)


class ProxyingNode:
    """A node that does not lead; `leader` is who does, as far as it knows."""

    def __init__(
        self, *, hold_seconds=NEVER_SECONDS, clients_max=100, refusals=(UNLED, UNTAKEN), **own
    ):
        self.identity = identity(OPENER, **own)
        self.leader = None
        self.refusals = refusals
        self.tasks, self.failures, self.opened = set(), [], []
        self.proxy = ClientProxy(
            lambda: None if self.leader is None else (self.identity, self.leader),
            self.spawn,
            hold_seconds=hold_seconds,
            clients_max=clients_max,
        )

    def spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception())

    async def listen(self, port=0):
        self.address = await self.proxy.open(ClientPort("amqp", "127.0.0.1", port, *self.refusals))
        assert self.address == ("127.0.0.1", port or self.address[1])

    async def connect(self, **options):
        """Return the streams of a new client."""
        client = socket.socket()
        for option, value in options.items():
            client.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(client, self.address)
        except OSError:
            client.close()
            raise
        self.opened.append(await asyncio.open_connection(sock=client))
        return self.opened[-1]

    async def passed(self, leading, **options):
        """Return the streams of a new client, and those that the leader has for it."""
        self.leader = leading.as_leader()
        client = await self.connect(**options)
        there = await leading.next()
        self.opened.append(there)
        await eventually(lambda: not self.proxy.held_count, "a relay")
        return client, there

    @property
    def relays(self):
        return list(self.proxy._relays)


@contextlib.asynccontextmanager
async def proxying(*leading, port=0, **options):
    """A node that passes clients on, and the leaders that it may come to know."""
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    node = ProxyingNode(**options)
    async with asyncio.timeout(LIMIT_SECONDS):
        try:
            await node.listen(port)
            for each in leading:
                await each.listen()
            yield node
        finally:
            await node.proxy.close()
            for each in leading:
                each.links.close()
                for connection, _ in each.taken:
                    connection.close()
            for _, writer in node.opened:
                writer.close()
            await eventually(lambda: not node.tasks, "the end of tasks")
            await asyncio.sleep(0.01)  # for sockets to be closed by the loop
    assert (node.failures, errors) == ([], [])
    assert (node.proxy.held_count, node.proxy.passed_count) == (0, 0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    for name in ("RETRY_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(client_proxy, name, 0.005)


async def say(streams, data):
    streams[1].write(data)
    await streams[1].drain()


async def hear(streams, count):
    return await streams[0].readexactly(count)


async def rest(streams):
    """Return what comes up to the end, in whatever way it comes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := await streams[0].read(1 << 20):
            data += piece
    return data


async def reaches(one, other):
    """Assert that bytes go both ways."""
    for source, sink in ((one, other), (other, one)):
        await say(source, b"words")
        assert await hear(sink, 5) == b"words"


# -- bytes


async def test_the_leader_is_told_both_ends_of_a_client():
    leading = LeadingNode()
    async with proxying(leading) as node:
        node.leader = leading.as_leader()
        _, writer = await node.connect()
        await eventually(lambda: leading.taken, "a client that was passed on")
        ((_, client),) = leading.taken
        assert client == PassedClient(
            "amqp", writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        )


async def test_bytes_go_both_ways_at_once_and_arrive_whole():
    leading = LeadingNode()
    async with proxying(leading) as node:
        ends = await node.passed(leading)
        sent = [random.Random(seed).randbytes(6 << 20) for seed in (1, 2)]
        async with asyncio.TaskGroup() as tasks:
            for end, data in zip(ends, sent, strict=True):
                tasks.create_task(say(end, data))
            received = [
                tasks.create_task(hear(end, len(data)))
                for end, data in zip(reversed(ends), sent, strict=True)
            ]
        assert [task.result() for task in received] == sent


async def test_what_a_client_says_at_once_arrives_in_front():
    leading = LeadingNode()
    async with proxying(leading) as node:
        client = await node.connect()
        await say(client, WORDS)
        node.leader = leading.as_leader()
        there = await leading.next()
        node.opened.append(there)
        assert await hear(there, len(WORDS)) == WORDS
        await reaches(client, there)


@pytest.mark.parametrize("slow", ["client", "leader"])
async def test_what_is_not_read_is_not_kept_without_limit(slow):
    leading = LeadingNode()
    async with proxying(leading) as node:
        small = {"SO_RCVBUF" if slow == "client" else "SO_SNDBUF": 64 << 10}
        client, there = await node.passed(leading, **small)
        reader, sender = (client, there) if slow == "client" else (there, client)
        reader[1].transport.pause_reading()
        (relay,) = node.relays
        to, source = relay._ends if slow == "client" else reversed(relay._ends)
        data = random.Random(3).randbytes(16 << 20)
        sending = node.spawn(say(sender, data))
        await eventually(lambda: not source._transport.is_reading(), "a pause")
        assert 0 < to._transport.get_write_buffer_size() <= BUFFERED_BYTES_MAX + READ_BYTES_MAX
        assert not sending.done()
        reader[1].transport.resume_reading()
        assert await hear(reader, len(data)) == data
        await sending
        await reaches(client, there)


# -- ends


@pytest.mark.parametrize("first", ["client", "leader"])
async def test_each_half_ends_for_itself_and_both_end_all(first):
    leading = LeadingNode()
    async with proxying(leading) as node:
        client, there = await node.passed(leading)
        one, other = (client, there) if first == "client" else (there, client)
        await say(one, b"question")
        one[1].write_eof()
        assert await rest(other) == b"question"
        assert node.proxy.passed_count == 1
        answer = random.Random(4).randbytes(3 << 20)
        async with asyncio.TaskGroup() as tasks:
            told = tasks.create_task(rest(one))
            await say(other, answer)
            other[1].write_eof()
        assert told.result() == answer
        await eventually(lambda: not node.proxy.passed_count, "the end")


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("first", ["client", "leader"])
async def test_the_end_of_either_is_the_end_of_the_other(first, how):
    leading = LeadingNode()
    async with proxying(leading) as node:
        client, there = await node.passed(leading)
        one, other = (client, there) if first == "client" else (there, client)
        await say(one, b"last words")
        assert await hear(other, 10) == b"last words"
        if how == "reset":
            linger = b"\1\0\0\0\0\0\0\0"
            one[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        one[1].transport.abort()
        assert await rest(other) == b""
        other[1].close()
        await eventually(lambda: not node.proxy.passed_count, "the end")


async def test_what_a_leader_said_before_its_end_arrives():
    leading = LeadingNode()
    async with proxying(leading) as node:
        client, there = await node.passed(leading, SO_RCVBUF=32 << 10)
        there[1].write(bytes(1 << 20))
        there[1].close()
        assert await rest(client) == bytes(1 << 20)


@pytest.mark.parametrize("reads", [False, True])
async def test_who_does_not_end_behind_the_leader_is_cut(monkeypatch, reads):
    monkeypatch.setattr(client_relay, "CLOSE_SECONDS", 0.05)
    leading = LeadingNode()
    async with proxying(leading) as node:
        client, there = await node.passed(leading, SO_RCVBUF=32 << 10)
        (relay,) = node.relays
        if not reads:
            client[1].transport.pause_reading()
            while not relay._ends[0]._transport.get_write_buffer_size():
                await say(there, bytes(64 << 10))
                await asyncio.sleep(0)
        there[1].close()
        if reads:
            assert await client[0].read() == b""
        await eventually(
            lambda: not any(end._transport for end in relay._ends), "the end of both connections"
        )
        assert node.proxy.passed_count == 0


# -- who leads


async def test_who_comes_while_nobody_leads_is_held():
    leading = LeadingNode()
    async with proxying(leading) as node:
        clients = [await node.connect() for _ in range(3)]
        await eventually(lambda: node.proxy.held_count == 3, "held clients")
        for number, client in enumerate(clients):
            await say(client, bytes([number]))
        node.leader = leading.as_leader()
        await eventually(lambda: node.proxy.passed_count == 3, "passed clients")
        heard = set()
        for _ in clients:
            node.opened.append(await leading.next())
            heard.add(await hear(node.opened[-1], 1))
        assert heard == {b"\0", b"\1", b"\2"}
        await eventually(lambda: not node.proxy.held_count, "no held client")


async def held(node, count):
    """Have clients come, and wait until all of them are held."""
    for _ in range(count):
        await node.connect()
    await eventually(lambda: node.proxy._waiting["amqp"].count == count, "held clients")


async def test_one_timer_looks_who_leads_for_all_that_are_held(monkeypatch):
    monkeypatch.setattr(client_proxy, "RETRY_SECONDS", NEVER_SECONDS)
    async with proxying() as node:
        planned, looks = [], []
        loop = LoopThatTells(node.proxy._loop, lambda *call: planned.append(call))
        monkeypatch.setattr(node.proxy, "_loop", loop)
        await held(node, 20)
        ((_, look),) = planned
        monkeypatch.setattr(node.proxy, "_leader", lambda: looks.append(True))
        look()
        assert (len(looks), len(planned)) == (1, 2)


async def test_one_at_a_time_asks_a_leader_that_takes_nobody(monkeypatch):
    leading = LeadingNode()
    asked, asking, most = [], set(), 0

    async def tell(identity, leader, client, draw):
        nonlocal most
        asked.append(client)
        asking.add(client)
        most = max(most, len(asking))
        try:
            return await pass_client(identity, leader, client, draw)
        finally:
            asking.discard(client)

    async with proxying(leading) as node:
        leading.links.on_client = None
        await held(node, 3 * PASSES_MAX)
        monkeypatch.setattr(client_proxy, "pass_client", tell)
        node.leader = leading.as_leader()
        await eventually(lambda: len(asked) > 4, "some attempts")
        assert most == 1
        assert len(set(asked)) == len(asked)  # each in its turn
        leading.links.on_client = leading._take
        await eventually(lambda: node.proxy.passed_count == 3 * PASSES_MAX, "passed clients")
        assert 1 < most <= PASSES_MAX


async def test_a_client_whose_protocol_is_not_served_yet_keeps_no_other_one():
    async with proxying() as node:
        await held(node, 2)
        await node.proxy.open(ClientPort("http", "127.0.0.1", free_port(), UNLED, UNTAKEN))
        amqp, node.address = node.address, node.proxy._listening[-1][1].getsockname()
        for _ in range(2):
            await node.connect()
        await eventually(lambda: node.proxy._waiting["http"].count == 2, "held clients")
        node.address, taken, serves_http = amqp, [], False

        def take(connection, client):
            if client.protocol == "http" and not serves_http:
                return False
            taken.append((connection, client.protocol))
            return True

        node.proxy.serve_here(take)
        await eventually(lambda: len(taken) == 2, "clients that are taken")
        serves_http = True
        await eventually(lambda: len(taken) == 4, "all clients")
        assert [port for _, port in taken] == ["amqp", "amqp", "http", "http"]
        for connection, _ in taken:
            connection.close()


async def test_who_ends_while_it_asks_keeps_nobody_else():
    leading = LeadingNode()
    async with proxying(leading) as node:
        await held(node, 3)
        waiting = node.proxy._waiting["amqp"]
        first = next(iter(waiting._waiting.values()))
        waiting.try_one()
        first.cancel()
        node.leader = leading.as_leader()
        await eventually(lambda: node.proxy.passed_count == 2, "the others")


async def test_many_clients_are_passed_on():
    leading = LeadingNode()
    async with proxying(leading) as node:
        for _ in range(3 * PASSES_MAX):
            await node.connect()
        node.leader = leading.as_leader()
        await eventually(lambda: node.proxy.passed_count == 3 * PASSES_MAX, "passed clients")
        assert len({client.peer for _, client in leading.taken}) == 3 * PASSES_MAX


async def test_who_is_connected_to_one_who_leads_no_more_is_cut():
    former, present = LeadingNode(), LeadingNode(3)
    async with proxying(former, present) as node:
        old, there = await node.passed(former)
        node.leader = None  # as far as this node knows, in between
        await reaches(old, there)
        new, behind = await node.passed(present)
        assert await rest(old) == b""
        assert await rest(there) == b""
        await eventually(lambda: node.proxy.passed_count == 1, "the end of the old one")
        await reaches(new, behind)


async def test_it_is_looked_by_one_timer_who_leads(monkeypatch):
    monkeypatch.setattr(client_proxy, "LOOK_SECONDS", NEVER_SECONDS)
    leading = LeadingNode()
    async with proxying(leading) as node:
        call_later, planned = node.proxy._loop.call_later, []
        monkeypatch.setattr(
            node.proxy,
            "_loop",
            LoopThatTells(
                node.proxy._loop, lambda *call: (planned.append(call), call_later(*call))
            ),
        )
        for _ in range(3):
            client, there = await node.passed(leading)
            client[1].close()
            assert await rest(there) == b""
            there[1].close()
            await eventually(lambda: not node.proxy.passed_count, "the end")
        assert len(planned) == 1


class LoopThatTells:
    """A loop whose calls for later a test sees."""

    def __init__(self, loop, call_later):
        self._loop = loop
        self.call_later = call_later

    def __getattr__(self, name):
        return getattr(self._loop, name)


async def test_a_node_that_leads_itself_takes_who_was_held():
    former = LeadingNode()
    async with proxying(former) as node:
        old, there = await node.passed(former)
        node.leader = None
        held = await node.connect()
        await say(held, WORDS)
        await eventually(lambda: node.proxy.held_count == 1, "a held client")
        await node.proxy.stop_listening()
        taken, early = [], []

        def take(*client):
            (taken if early else early).append(client)
            return bool(taken)

        node.proxy.serve_here(take)
        await eventually(lambda: taken and not node.proxy.held_count, "the client")
        ((connection, client),) = taken
        assert early == taken
        assert client.peer == held[1].get_extra_info("sockname")
        node.opened.append(await asyncio.open_connection(sock=connection))
        assert await hear(node.opened[-1], len(WORDS)) == WORDS
        await reaches(held, node.opened[-1])
        assert await rest(old) == b""
        assert await rest(there) == b""


async def test_ports_are_free_at_once_and_relays_and_who_is_held_stay():
    leading = LeadingNode()
    async with proxying(leading, port=free_port()) as node:
        client, there = await node.passed(leading)
        node.leader = None
        held = await node.connect()
        await eventually(lambda: node.proxy.held_count == 1, "a held client")
        await node.proxy.stop_listening()
        with socket.create_server(node.address):
            await reaches(client, there)
            node.leader = leading.as_leader()
            node.opened.append(await leading.next())
            await reaches(held, node.opened[-1])


async def test_closing_ends_all():
    leading = LeadingNode()
    async with proxying(leading, port=free_port()) as node:
        client, there = await node.passed(leading)
        node.leader = None
        held = await node.connect()
        await eventually(lambda: node.proxy.held_count == 1, "a held client")
        await node.proxy.close()
        for each in (client, there, held):
            assert await rest(each) == b""
        with pytest.raises(ConnectionRefusedError):
            await node.connect()


# -- who cannot be passed on


async def test_who_was_held_for_too_long_is_told_so(caplog):
    async with proxying(hold_seconds=0.05) as node:
        client = await node.connect()
        await say(client, WORDS)
        assert await hear(client, len(UNLED)) == UNLED
        await say(client, b"what it had to say behind its first words")
        client[1].write_eof()
        assert await client[0].read() == b""
        host, port = client[1].get_extra_info("sockname")
        assert caplog.messages == [
            f"refused a client at {host}:{port}: no node took it within 0.05 s (none leads)"
        ]
        assert caplog.records[0].source == "127.0.0.1"


async def test_who_says_nothing_is_told_nothing():
    async with proxying(hold_seconds=0) as node:
        client = await node.connect()
        client[1].write_eof()
        assert await client[0].read() == b""


@pytest.mark.parametrize("speaks", [False, True])
async def test_who_does_not_end_behind_a_refusal_is_closed(monkeypatch, speaks):
    monkeypatch.setattr(client_proxy, "REFUSAL_SECONDS", 0.05)
    async with proxying(hold_seconds=0) as node:
        client = await node.connect()
        if speaks:
            await say(client, WORDS)
        assert await rest(client) == (UNLED if speaks else b"")
        await eventually(lambda: not node.proxy.held_count, "its end")


async def test_without_a_refusal_a_client_is_closed():
    async with proxying(hold_seconds=0, refusals=(b"", b"")) as node:
        client = await node.connect()
        assert await client[0].read() == b""


async def test_clients_have_a_limit(caplog):
    leading = LeadingNode()
    async with proxying(leading, clients_max=2) as node:
        client, there = await node.passed(leading)
        node.leader = None
        await node.connect()
        await eventually(lambda: node.proxy.held_count == 1, "a held client")
        for _ in range(3):
            assert await rest(await node.connect()) == b""
        (told,) = caplog.messages
        assert "refused a client at 127.0.0.1: 2 are held or passed on" in told
        node.proxy._quiet_until = 0.0
        assert await rest(await node.connect()) == b""
        assert len(caplog.messages) == 2
        client[1].close()
        assert await rest(there) == b""
        there[1].close()
        await eventually(lambda: not node.proxy.passed_count, "a place")
        await node.connect()
        await eventually(lambda: node.proxy.held_count == 2, "another held client")


async def refused_by(node, leader, caplog):
    """Have a client refused, and return why, as the log has it."""
    caplog.set_level(logging.INFO)
    node.leader = leader
    client = await node.connect()
    await say(client, WORDS)
    assert await hear(client, len(UNTAKEN)) == UNTAKEN
    client[1].close()
    (told,) = (line for line in caplog.messages if line.startswith("refused a client"))
    return told


@pytest.mark.parametrize(
    ("own", "number", "reason"),
    [
        ({"secret": OTHER_SECRET}, ACCEPTOR, "different secrets"),
        ({"cluster_id": b"another cluster."}, ACCEPTOR, "different clusters"),
        ({}, 3, "another node answers"),
    ],
)
async def test_a_wrong_leader_gets_no_client(caplog, own, number, reason):
    leading = LeadingNode(**own)
    async with proxying(leading, hold_seconds=0.05) as node:
        told = await refused_by(node, leading.as_leader(number), caplog)
        assert "no node took it within 0.05 s" in told
        assert f"(node {number}: " in told
        assert reason in told
        assert leading.taken == []
        assert reason in "".join(line for line in caplog.messages if "no link from" in line)
        assert OTHER_SECRET.decode() not in caplog.text


async def test_a_leader_that_serves_nobody_yet_gets_no_client(caplog):
    leading = LeadingNode()
    leading.links.on_client = None
    async with proxying(leading, hold_seconds=0.05) as node:
        told = await refused_by(node, leading.as_leader(), caplog)
        assert "(node 1: the node that leads takes no clients now)" in told


async def test_a_leader_that_takes_no_client_gets_none(caplog):
    leading = LeadingNode(answer=b"\x07")
    async with proxying(leading, hold_seconds=0) as node:
        assert "(node 1: the node that leads answers some" in await refused_by(
            node, leading.as_leader(), caplog
        )


async def test_keepalives_that_were_under_way_are_none_of_the_leaders_words():
    leading = LeadingNode(answer=2 * KEEPALIVE + TAKEN)
    async with proxying(leading) as node:
        await reaches(*await node.passed(leading))


async def test_a_leader_that_does_not_answer_gets_no_client(caplog, monkeypatch):
    monkeypatch.setattr(client_proxy, "PASS_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with proxying(hold_seconds=0) as node:
            leader = LeaderAddress(ACCEPTOR, *silent.getsockname())
            told = await refused_by(node, leader, caplog)
            assert "(node 1: it did not answer in time)" in told


@pytest.mark.parametrize(
    "address", [("256.1.1.1", 1), ("\x00", 1), ("a" * 70, 1), ("127.0.0.1", 70_000)]
)
async def test_an_address_that_cannot_be_used_is_no_leaders(caplog, address):
    async with proxying(hold_seconds=0) as node:
        told = await refused_by(node, LeaderAddress(ACCEPTOR, *address), caplog)
        assert "(node 1: " in told
        assert told.isprintable()


async def test_a_leader_that_is_gone_is_tried_again():
    leading = LeadingNode()
    async with proxying(leading) as node:
        node.leader = LeaderAddress(ACCEPTOR, "127.0.0.1", free_port())
        client = await node.connect()
        await eventually(lambda: node.proxy.held_count == 1, "a held client")
        node.leader = leading.as_leader()
        node.opened.append(await leading.next())
        await reaches(client, node.opened[-1])


@contextlib.asynccontextmanager
async def asking_one_that_hangs(*leading, monkeypatch):
    """A node whose leader answers nothing; as many clients as may ask it do, and one waits."""
    monkeypatch.setattr(client_proxy, "PASS_SECONDS", NEVER_SECONDS)
    with socket.create_server(("127.0.0.1", 0), backlog=PASSES_MAX) as silent:
        async with proxying(*leading) as node:
            node.leader = LeaderAddress(3, *silent.getsockname())
            for _ in range(PASSES_MAX + 1):
                await node.connect()
            await eventually(lambda: node.proxy._passing._waiters, "one who waits")
            yield node


async def test_a_leader_that_hangs_keeps_nobody_once_another_one_leads(monkeypatch):
    leading = LeadingNode()
    async with asking_one_that_hangs(leading, monkeypatch=monkeypatch) as node:
        node.leader = leading.as_leader()
        await eventually(lambda: node.proxy.passed_count > PASSES_MAX, "all clients")


async def test_a_leader_that_hangs_keeps_nobody_once_this_node_leads(monkeypatch):
    async with asking_one_that_hangs(monkeypatch=monkeypatch) as node:
        taken = []
        node.proxy.serve_here(lambda connection, _: taken.append(connection) or True)
        await eventually(lambda: len(taken) > PASSES_MAX, "all clients")
        for connection in taken:
            connection.close()


async def test_who_has_lost_its_time_on_a_former_leader_is_passed_on_to_the_present_one(
    monkeypatch,
):
    leading, pass_client = LeadingNode(), client_proxy.pass_client

    async def fail(*_):
        node.leader = leading.as_leader()
        monkeypatch.setattr(client_proxy, "pass_client", pass_client)
        raise TimeoutError

    monkeypatch.setattr(client_proxy, "pass_client", fail)
    async with proxying(leading, hold_seconds=0) as node:
        node.leader = LeaderAddress(3, "127.0.0.1", 1)
        client = await node.connect()
        node.opened.append(await leading.next())
        await reaches(client, node.opened[-1])


async def test_who_waits_behind_others_is_told_in_time(caplog, monkeypatch):
    monkeypatch.setattr(client_proxy, "PASS_SECONDS", 0.05)
    async with proxying(hold_seconds=0.05) as node:
        for _ in range(PASSES_MAX):
            await node.proxy._passing.acquire()
        told = await refused_by(node, LeaderAddress(ACCEPTOR, "127.0.0.1", 1), caplog)
        assert "(too many others wait)" in told


async def test_who_is_past_its_time_and_gets_its_turn_waits_behind_newcomers(monkeypatch):
    monkeypatch.setattr(client_proxy, "PASS_SECONDS", 0.05)
    leading = LeadingNode()
    async with proxying(leading, hold_seconds=0.1) as node:
        client = await node.connect()
        (waiting,) = node.proxy._waiting.values()
        await eventually(lambda: waiting.count == 1, "a held client")
        waiting._takes = True  # the leader takes others
        await eventually(lambda: waiting._late, "a client past its time")
        monkeypatch.setattr(client_proxy, "PASS_SECONDS", NEVER_SECONDS)
        for _ in range(PASSES_MAX):
            await node.proxy._passing.acquire()
        node.leader = leading.as_leader()
        waiting.try_one()
        await eventually(lambda: node.proxy._passing._waiters, "one who waits")
        node.proxy._passing.release()
        node.opened.append(await leading.next())
        await reaches(client, node.opened[-1])


async def test_a_leader_whose_machine_is_silent_is_given_up_soon(caplog, monkeypatch):
    monkeypatch.setattr(passed_client, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(client_proxy, "PASS_SECONDS", NEVER_SECONDS)
    # Linux answers nobody for whom there is no place.
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        contextlib.ExitStack() as full,
    ):
        full.enter_context(socket.create_connection(silent.getsockname()))
        async with proxying(hold_seconds=0) as node:
            leader = LeaderAddress(ACCEPTOR, *silent.getsockname())
            told = await refused_by(node, leader, caplog)
            assert "(node 1: it did not answer in time)" in told


async def test_all_addresses_of_a_leader_are_tried(monkeypatch):
    leading = LeadingNode()
    async with proxying(leading) as node:
        find = asyncio.get_running_loop().getaddrinfo
        nobody = ("127.0.0.1", free_port())

        async def find_more(host, port, **options):
            if host != "leader.example":
                return await find(host, port, **options)
            found = await find(*leading.address, **options)
            return [(*found[0][:4], nobody), *found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", find_more)
        node.leader = LeaderAddress(ACCEPTOR, "leader.example", leading.address[1])
        client = await node.connect()
        node.opened.append(await leading.next())
        await reaches(client, node.opened[-1])


@pytest.mark.parametrize("host", ["127.0.0.1", "256.1.1.1"])
async def test_an_address_that_cannot_be_listened_on_is_named(host):
    async with proxying() as node:
        port = node.address[1]
        problem = f"cannot listen for https on {host}:{port}: .*https_port"
        with pytest.raises(LeveretError, match=problem):
            await node.proxy.open(ClientPort("https", host, port, b"", b""))


async def test_without_file_descriptors_it_is_tried_again(caplog, monkeypatch):
    monkeypatch.setattr(client_proxy, "ACCEPT_RETRY_SECONDS", 0.005)
    leading = LeadingNode()
    async with proxying(leading) as node:
        failing = itertools.count()

        async def accept(listening):
            if next(failing) < 2:
                raise OSError(24, "Too many open files")
            return await LoopThatTells(node.proxy._loop._loop, None).sock_accept(listening)

        await node.proxy.stop_listening()
        loop = LoopThatTells(node.proxy._loop, None)
        loop.sock_accept = accept
        monkeypatch.setattr(node.proxy, "_loop", loop)
        await node.listen()
        monkeypatch.setattr(loop, "call_later", loop._loop.call_later)
        await reaches(*await node.passed(leading))
        assert caplog.messages == ["cannot accept a connection: Too many open files"] * 2
