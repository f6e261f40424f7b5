"""Links of nodes over sockets of the loopback, on both loops."""

import asyncio
import contextlib
import logging
import socket

import pytest

from leveret.cluster.links.connector import LinkDialing
from leveret.cluster.links.handshake import LinkPurpose, OpenerHandshake
from leveret.cluster.links.link import LinkLimits, NodeLink
from leveret.cluster.links.links import Links
from leveret.errors import LeveretError
from leveret.replication.codec import LENGTH
from tests.cluster.links.ends import Owner, framed
from tests.cluster.links.peers import SECRET, identity
from tests.support.waiting import LIMIT_SECONDS, eventually

NEVER_MS = 3_600_000
# Nothing ends a link but what a test is about, however slow the machine is.
PATIENT = {"silence_ms": NEVER_MS, "handshake_ms": NEVER_MS}
SOON = {"pause_ms_min": 1, "pause_ms_max": 10}


class Observer:
    """Notes what the links of a node tell."""

    def __init__(self):
        self.events = []
        self.present = []
        self.frames = []

    def connected(self, link):
        assert link.is_open
        self.present.append(link)
        self.events.append(("connected", link))

    def received(self, link, frame):
        assert link in self.present
        self.frames.append(frame)

    def disconnected(self, link, reason):
        assert not link.is_open
        self.present.remove(link)
        self.events.append((reason, link))

    @property
    def told(self):
        return [event for event, _ in self.events]


class Node:
    """A node's links, and the addresses by which it knows other nodes."""

    def __init__(self, number, **options):
        own = {name: options.pop(name) for name in ("incarnation", "secret") if name in options}
        self.number = number
        self.observer, self.addresses, self.tasks = Observer(), {}, set()
        limits = LinkLimits(**{**PATIENT, **SOON, **options})
        dialing = LinkDialing(self.addresses.get, self.spawn)
        self.links = Links(identity(number, **own), self.observer, dialing, limits)

    def spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    @property
    def connecting(self):
        link = self.links._connector._link
        return None if link is None or link._transport is None else link.node

    async def listen(self):
        return await self.links.listen("127.0.0.1", 0)

    async def connect(self, other):
        """Connect to a node that listens from now on. Returns both ends."""
        self.addresses[other.number] = await other.listen()
        before = len(other.observer.present)
        self.links.connect(other.number)
        await eventually(lambda: self.observer.present, "the opener's end")
        await eventually(lambda: len(other.observer.present) > before, "the acceptor's end")
        return self.observer.present[-1], other.observer.present[-1]


@contextlib.asynccontextmanager
async def nodes(*made):
    errors = []

    def note(_, context):  # uvloop tells of lookups whose attempt was cancelled
        if not isinstance(context.get("exception"), socket.gaierror):
            errors.append(context)

    asyncio.get_running_loop().set_exception_handler(note)
    try:
        yield made
    finally:
        for node in made:
            node.links.close()
        await eventually(lambda: not any(node.tasks for node in made), "the end of tasks")
        for node in made:
            assert node.observer.present == []
        await asyncio.sleep(0.01)  # for sockets to be closed by the loop
    assert errors == []


def size_of(observer):
    return sum(map(len, observer.frames))


def reads_no_more(link):
    link._transport.pause_reading()


def says_no_more(link):
    link._timer.cancel()


async def test_frames_go_both_ways():
    async with nodes(Node(1), Node(2)) as (one, two):
        to_two, from_one = await one.connect(two)
        assert (to_two.is_outgoing, to_two.peer.node) == (True, 2)
        assert (from_one.is_outgoing, from_one.peer.node) == (False, 1)
        large = bytes(range(256)) * (8 << 12)  # 8 MiB
        for link in (to_two, from_one):
            for frame in (b"small", large, b"x"):
                link.send([LENGTH.pack(len(frame)), memoryview(frame)])
        for node in (one, two):
            await eventually(lambda node=node: len(node.observer.frames) == 3, "three frames")
            assert [bytes(frame) for frame in node.observer.frames] == [b"small", large, b"x"]


async def test_many_frames_stay_in_order():
    async with nodes(Node(1), Node(2)) as (one, two):
        link, _ = await one.connect(two)
        sent = [number.to_bytes(4, "little") * (number % 700 + 1) for number in range(3000)]
        for frame in sent:
            link.send([framed(frame)])
        await eventually(lambda: len(two.observer.frames) == 3000, "all frames")
        assert two.observer.frames == sent


async def test_keepalives_keep_a_link():
    times = {"keepalive_ms": 5, "silence_ms": 1000 * LIMIT_SECONDS}
    async with nodes(Node(1, **times), Node(2, **times)) as (one, two):
        ends = await one.connect(two)
        for link in ends:
            link._silent_looks = 1_000  # each look adds one, each keepalive sets it to 0
        await eventually(lambda: max(link._silent_looks for link in ends) < 1_000, "keepalives")
        assert one.observer.told == two.observer.told == ["connected"]


async def test_a_peer_that_is_silent_is_left():
    async with nodes(Node(1), Node(2, keepalive_ms=10)) as (one, two):
        ends = await one.connect(two)
        says_no_more(ends[0])
        ends[1]._limits = LinkLimits(keepalive_ms=10, silence_ms=200)
        await eventually(lambda: len(two.observer.told) > 1, "the end of a silent link")
        assert two.observer.events[1] == ("nothing came for 200 ms", ends[1])
        await eventually(lambda: len(one.observer.told) > 1, "the end at the other node")


async def test_a_peer_that_does_not_read_is_left():
    async with nodes(Node(1, buffered_bytes_max=1 << 20), Node(2)) as (one, two):
        link, other = await one.connect(two)
        reads_no_more(other)
        piece = bytes(256 << 10)

        def is_over():
            link.send([LENGTH.pack(len(piece)), piece])
            return link not in one.observer.present

        await eventually(is_over, "the end of a link whose peer does not read")
        assert "the other node has not read" in one.observer.told[1]


async def test_a_huge_length_ends_the_link():
    async with nodes(Node(1), Node(2)) as (one, two):
        link, _ = await one.connect(two)
        link._transport.write(LENGTH.pack(0xFFFF_FFFF))
        await eventually(lambda: len(two.observer.told) > 1, "the end")
        assert "sends a frame of 4294967295 bytes" in two.observer.told[1]
        assert two.observer.frames == []


async def test_slow_handshakes_end_in_time():
    async with nodes(Node(1, handshake_ms=50)) as (one,):
        reader, writer = await asyncio.open_connection(*await one.listen())
        writer.write(LENGTH.pack(80))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await reader.read() == b""
        writer.close()
        assert one.observer.told == []
        await eventually(lambda: not one.links._handshakes, "no handshake")


async def test_handshakes_have_a_limit_and_the_slowest_makes_room():
    async with nodes(Node(1, handshakes_max=3), Node(2)) as (one, two):
        address = await one.listen()
        silent = [await asyncio.open_connection(*address) for _ in range(3)]
        await eventually(lambda: len(one.links._handshakes) == 3, "three handshakes")
        two.addresses[1] = address
        two.links.connect(1)
        await eventually(lambda: two.observer.present, "a link of who does shake hands")
        async with asyncio.timeout(LIMIT_SECONDS):
            with contextlib.suppress(ConnectionError):
                assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()
        await eventually(lambda: not one.links._handshakes, "no handshake")


async def test_a_link_is_opened_again_where_the_node_is_then(caplog):
    caplog.set_level(logging.INFO)
    async with nodes(Node(1), Node(2), Node(2, incarnation=8)) as (one, two, again):
        await one.connect(two)
        two.links.close()
        await eventually(lambda: one.observer.told[1:], "the end")
        await eventually(lambda: "no link to node 2 at" in caplog.text, "a failed attempt")
        one.addresses[2] = await again.listen()
        await eventually(lambda: again.observer.present, "a link to the node that is back")
        await eventually(lambda: len(one.observer.told) == 3, "the link at its opener")
        ended, reopened = one.observer.events[1:]
        assert ended[0] == "the other node has closed the link"
        assert reopened[0] == "connected"
        assert reopened[1].peer.incarnation == 8
        assert caplog.text.count("the link to node 2") == 3


async def test_a_listener_may_take_its_port_again():
    async with nodes(Node(1), Node(2), Node(2)) as (one, two, again):
        await one.connect(two)
        two.links.close()
        await again.links.listen(*one.addresses[2])
        await eventually(lambda: again.observer.present, "a link to the node that is back")
        await eventually(lambda: len(one.observer.told) == 3, "the link at its opener")


async def test_a_newer_link_takes_the_place_of_an_older_one():
    late = {"pause_ms_min": NEVER_MS, "pause_ms_max": NEVER_MS}
    made = Node(1), Node(2, **late), Node(2, incarnation=8)
    async with nodes(*made) as (one, old, new):
        _, older = await old.connect(one)
        older_end = one.observer.present[0]
        new.addresses[1] = old.addresses[1]
        new.links.connect(1)
        await eventually(lambda: len(one.observer.told) == 3, "the newer link")
        newer = one.observer.present[0]
        assert one.observer.events == [
            ("connected", older),
            ("a newer link of the node takes its place", older_end),
            ("connected", newer),
        ]
        assert newer.peer.incarnation == 8
        await eventually(lambda: len(old.observer.told) == 2, "the end at the older node")
        await eventually(lambda: new.observer.present, "the link at the newer node")
        old.links._connector._schedule(0)  # it tries once more
        await eventually(lambda: old.links._failures, "the refusal")
        assert "a later start of the node has a link" in old.links._failures[1]
        assert len(one.observer.told) == 3


async def test_nothing_of_an_older_link_comes_after_a_newer_one():
    """Frames of the older one that nobody has read yet are dropped."""
    late = {"pause_ms_min": NEVER_MS, "pause_ms_max": NEVER_MS}
    async with nodes(Node(1), Node(2, **late), Node(2)) as (one, old, new):
        link, older = await old.connect(one)
        reads_no_more(older)
        link.send([framed(b"of the older one")])
        new.addresses[1] = old.addresses[1]
        new.links.connect(1)
        await eventually(lambda: new.observer.present, "the newer link")
        new.observer.present[0].send([framed(b"of the newer one")])
        await eventually(lambda: one.observer.frames, "a frame")
        await eventually(lambda: not old.observer.present, "the end of the older one")
        assert one.observer.frames == [b"of the newer one"]


async def test_another_node_is_wanted():
    async with nodes(Node(1), Node(2), Node(3)) as (one, two, three):
        first, _ = await one.connect(two)
        one.addresses[3] = await three.listen()
        one.links.connect(3)
        assert not first.is_open
        assert one.observer.told[1] == "this node wants no link to that one any more"
        await eventually(lambda: one.observer.present, "the link to the other node")
        assert one.observer.present[0].peer.node == 3
        one.links.connect(3)  # as before: nothing changes
        assert one.observer.present[0].is_open
        one.links.connect(None)
        assert one.observer.present == []
        await eventually(lambda: len(three.observer.told) == 2, "the end at the other node")
        await eventually(lambda: len(two.observer.told) == 2, "the end at the first node")


async def test_who_is_told_of_an_end_may_want_another_node():
    async with nodes(Node(1), Node(2), Node(3)) as (one, two, three):
        await one.connect(two)
        one.addresses[3] = await three.listen()
        told = one.observer.disconnected

        def disconnected(link, reason):
            told(link, reason)
            one.links.connect(None)

        one.observer.disconnected = disconnected
        one.links.connect(3)
        assert one.links._connector._node is None
        assert one.links._connector._timer is None


async def test_links_in_both_directions_are_two():
    async with nodes(Node(1), Node(2)) as (one, two):
        ends = [*await one.connect(two), *await two.connect(one)]
        assert len(set(ends)) == 4
        assert all(link.is_open for link in ends)
        two.links.disconnect(1, "both are to end")
        assert two.observer.told[2:] == ["both are to end"] * 2
        assert two.observer.present == []
        await eventually(lambda: len(one.observer.present) == 2, "both again")


async def test_a_frame_before_a_close_arrives():
    async with nodes(Node(1), Node(2)) as (one, two):
        _, incoming = await one.connect(two)
        incoming.send([framed(b"refused")])
        two.links.disconnect(1, "refused")
        await eventually(lambda: len(one.observer.told) > 1, "the end")
        assert one.observer.frames == [b"refused"]


async def test_a_node_without_an_address_is_asked_for_again():
    async with nodes(Node(1), Node(2)) as (one, two):
        one.links.connect(2)
        await eventually(lambda: one.links._failures, "a failed attempt")
        assert one.links._failures == {2: "no address of it is known"}
        one.addresses[2] = await two.listen()
        await eventually(lambda: two.observer.present, "the link")


@pytest.mark.parametrize(
    "address", [("256.1.1.1", 1), ("\x00", 1), ("a" * 70, 1), ("127.0.0.1", 70_000)]
)
async def test_an_address_that_cannot_be_used_is_a_failed_attempt(address):
    async with nodes(Node(1)) as (one,):
        one.addresses[2] = address
        one.links.connect(2)
        await eventually(lambda: one.links._failures, "a failed attempt")


async def test_a_refusal_is_logged_once_until_it_changes(caplog):
    caplog.set_level(logging.INFO)
    wrong = b"another secret of a cluster"
    async with nodes(Node(1), Node(2, secret=wrong), Node(3)) as (one, two, three):
        attempts = []
        two.addresses[1] = await one.listen()
        two.links._connector._dialing = two.links._connector._dialing._replace(
            address_of=lambda node: attempts.append(node) or two.addresses[node]
        )
        two.links.connect(1)
        await eventually(lambda: len(attempts) > 5, "attempts")
        here, there = (
            [line for line in caplog.messages if line.startswith(f"there is no link {peer}")]
            for peer in ("to node 1 at", "from a peer at")
        )
        assert (len(here), len(there)) == (1, 1)
        assert "different secrets" in here[0]
        assert "the other end says: the two nodes have different secrets" in there[0]
        two.addresses[1] = await three.listen()
        await eventually(lambda: "another node answers" in caplog.text, "the other reason")
        assert not any(secret.decode() in caplog.text for secret in (SECRET, wrong))


async def test_a_failure_is_forgotten_once_there_is_a_link():
    async with nodes(Node(1), Node(2), Node(3)) as (one, two, three):
        two.addresses[1] = await three.listen()
        two.links.connect(1)
        await eventually(lambda: two.links._failures, "a refusal")
        two.addresses[1] = await one.listen()
        await eventually(lambda: two.observer.present, "a link")
        assert two.links._failures == {}


async def test_what_a_node_ends_itself_is_no_failure(caplog):
    caplog.set_level(logging.INFO)
    async with nodes(Node(1)) as (one,):
        reader, writer = await asyncio.open_connection(*await one.listen())
        await eventually(lambda: one.links._handshakes, "a link from nobody")
        accepted = [writer]
        silent = await asyncio.start_server(
            lambda _, writer: accepted.append(writer), "127.0.0.1", 0
        )
        one.addresses[2] = one.addresses[3] = silent.sockets[0].getsockname()
        for node in (2, 3):
            one.links.connect(node)
            await eventually(lambda node=node: one.connecting == node, "a link that is on its way")
        one.links.close()
        silent.close()
        await eventually(lambda: len(accepted) == 3, "what was accepted")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        for writer in accepted:
            writer.close()
    assert caplog.messages == []


async def test_failures_are_remembered_of_some_peers_only():
    async with nodes(Node(1)) as (one,):
        for number in range(1000):
            link = one.links._make_outgoing(2)
            link.node = number
            link.abort("a reason")
        assert len(one.links._failures) == 256
        assert 999 in one.links._failures


async def test_nothing_is_left_after_close():
    async with nodes(Node(1), Node(2)) as (one, two):
        await one.connect(two)
        one.links.connect(3)
        one.addresses[3] = ("192.0.2.1", 1)  # nobody answers
        await asyncio.sleep(0)
        two.links.close()
        one.links.close()
        assert one.observer.present == two.observer.present == []
        one.links.connect(2)
        assert one.links._accept().is_open is False
        assert one.links._handshakes == {}
        assert one.links._connector._timer is None
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_who_closes_all_when_told_of_an_older_links_end_gets_no_newer_one():
    late = {"pause_ms_min": NEVER_MS, "pause_ms_max": NEVER_MS}
    async with nodes(Node(1), Node(2, **late), Node(2)) as (one, old, new):
        await old.connect(one)
        told = one.observer.disconnected
        one.observer.disconnected = lambda *end: (told(*end), one.links.close())
        new.addresses[1] = old.addresses[1]
        new.links.connect(1)
        await eventually(lambda: len(one.observer.told) == 2, "the end of the older one")
        assert one.observer.told.count("connected") == 1


async def test_an_address_in_use_is_named():
    async with nodes(Node(1), Node(2)) as (one, two):
        host, port = await one.listen()
        problem = f"cannot listen for links on {host}:{port}: .*in use; .*cluster_port"
        with pytest.raises(LeveretError, match=problem):
            await two.links.listen(host, port)


# -- links for clients


class ClientLink:
    """A link of a node, which is for a client, to another node."""

    def __init__(self, node, other):
        handshake = OpenerHandshake(
            node.links.identity, other.number, bytes(32), LinkPurpose.CLIENT
        )
        self.owner = Owner()
        self.link = NodeLink(
            self.owner, handshake, LinkLimits(**PATIENT), asyncio.get_running_loop()
        )

    async def open(self, address):
        await asyncio.get_running_loop().create_connection(lambda: self.link, *address)
        await eventually(lambda: self.owner.events, "the link of a client")
        return self


@contextlib.asynccontextmanager
async def linked_for_replication():
    """Two nodes with a link between them, which is there at the end, too."""
    async with nodes(Node(1), Node(2)) as (one, two):
        await one.connect(two)
        yield one, two
        assert one.observer.told == two.observer.told == ["connected"]
        one.observer.present[0].send([framed(b"a frame")])
        await eventually(lambda: two.observer.frames, "a frame of replication")
        assert two.observer.frames == [b"a frame"]


async def test_a_link_for_a_client_leaves_that_for_replication(caplog):
    caplog.set_level(logging.INFO)
    async with linked_for_replication() as (one, two):
        taken = []
        two.links.on_client = lambda *client: taken.append(client)
        caplog.clear()
        for number in range(3):
            client = await ClientLink(one, two).open(one.addresses[2])
            await eventually(lambda: two.links._clients, "a link of which nothing is known")
            client.link.send([framed(bytes([number]))])
            await eventually(lambda number=number: len(taken) > number, "a client")
            assert two.links._clients == {}
            assert client.link.is_open  # what is behind it is the client's
            client.link._transport.write(b"first words of a client")
            connection, told = taken[-1]
            assert told == bytes([number])
            with connection:
                loop = asyncio.get_running_loop()
                assert connection.gettimeout() == 0
                assert await loop.sock_recv(connection, 100) == b"first words of a client"
            await eventually(lambda client=client: client.owner.ends, "the end")
        assert caplog.messages == []


async def test_a_node_that_serves_no_clients_ends_their_links(caplog):
    async with linked_for_replication() as (one, two):
        client = await ClientLink(one, two).open(one.addresses[2])
        await eventually(lambda: client.owner.ends, "the end")
        assert client.owner.events == ["opened", "ended: the other node has closed the link"]
        assert two.links._clients == {}
        assert caplog.messages == []


async def test_a_link_for_a_client_ends_before_there_is_one():
    async with linked_for_replication() as (one, two):
        two.links.on_client = lambda *client: pytest.fail(f"taken: {client}")
        client = await ClientLink(one, two).open(one.addresses[2])
        await eventually(lambda: two.links._clients, "a link of which nothing is known")
        client.link.close("it has gone")
        await eventually(lambda: not two.links._clients, "its end")


async def test_links_for_clients_end_with_all_links():
    async with nodes(Node(1), Node(2)) as (one, two):
        two.links.on_client = lambda *client: pytest.fail(f"taken: {client}")
        client = await ClientLink(one, two).open(await two.listen())
        await eventually(lambda: two.links._clients, "a link of which nothing is known")
        two.links.close()
        assert two.links._clients == {}
        await eventually(lambda: client.owner.ends, "the end")
