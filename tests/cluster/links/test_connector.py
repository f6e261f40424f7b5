"""When a node connects again, by a clock that stands still."""

import pytest

from leveret.cluster.links.connector import LinkConnector, LinkDialing
from leveret.cluster.links.link import LinkLimits, NodeLink
from tests.cluster.links.ends import Loop, Owner, Transport, framed
from tests.cluster.links.peers import acceptor, opener

LIMITS = LinkLimits()


class Task:
    def __init__(self, work):
        work.close()
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


class Attempts(Owner):
    """A connector whose attempts end as a test has it."""

    def __init__(self, drawn=0, address=("127.0.0.1", 1)):
        super().__init__()
        self.loop, self.links, self.tasks = Loop(), [], []
        dialing = LinkDialing(lambda node: address, self.spawn)
        self.connector = LinkConnector(
            dialing, LIMITS, self.loop, self.make_link, lambda count: bytes([drawn] * count)
        )

    def make_link(self, node):
        self.links.append(NodeLink(self, opener(meant=node), LIMITS, self.loop))
        return self.links[-1]

    def spawn(self, work):
        self.tasks.append(Task(work))
        return self.tasks[-1]

    def ended(self, link, reason):
        super().ended(link, reason)
        self.connector.ended(link)

    def pause_ms(self):
        """Let time pass until there is another attempt."""
        before, began = len(self.links), self.loop.monotonic
        self.loop.advance(0)
        while len(self.links) == before:
            self.loop.advance(1)
        return self.loop.monotonic - began


def open_link(link):
    other = acceptor()
    link.connection_made(Transport())
    welcome = other.receive(opener().first)
    for frame in (welcome, b"\x04"):
        for part in framed(frame)[:4], frame:
            link.get_buffer(-1)[:] = part
            link.buffer_updated(len(part))
    assert link.is_open


def test_pauses_double_up_to_the_longest():
    attempts = Attempts()
    attempts.connector.want(1)
    pauses = [attempts.pause_ms()]
    for _ in range(6):
        attempts.links[-1].abort("refused")
        pauses.append(attempts.pause_ms())
    assert pauses == [0, 100, 200, 400, 800, 1600, 2000]


def test_pauses_are_shortened_by_up_to_a_half():
    attempts = Attempts(drawn=255)
    attempts.connector.want(1)
    attempts.pause_ms()
    attempts.links[-1].abort("refused")
    assert 50 <= attempts.pause_ms() <= 51


@pytest.mark.parametrize(("lived_ms", "pause_ms"), [(0, 800), (4_999, 800), (5_000, 100)])
def test_pauses_begin_anew_after_a_link_that_has_lived(lived_ms, pause_ms):
    attempts = Attempts()
    attempts.connector.want(1)
    for _ in range(3):
        attempts.pause_ms()
        attempts.links[-1].abort("refused")
    attempts.pause_ms()
    open_link(attempts.links[-1])
    attempts.loop.advance(lived_ms)
    attempts.links[-1].abort("lost")
    assert attempts.pause_ms() == pause_ms


def test_another_node_is_connected_to_at_once():
    attempts = Attempts()
    attempts.connector.want(1)
    attempts.pause_ms()
    attempts.links[-1].abort("refused")
    attempts.connector.want(3)
    assert attempts.pause_ms() == 0
    attempts.loop.advance(LIMITS.handshake_ms - 1)
    assert len(attempts.links) == 2  # none to the first node


def test_an_attempt_that_takes_too_long_is_given_up():
    attempts = Attempts()
    attempts.connector.want(1)
    attempts.pause_ms()
    attempts.loop.advance(LIMITS.handshake_ms)
    assert attempts.ends == ["ended: there was no link within 5000 ms"]
    assert attempts.tasks[0].is_cancelled
    assert attempts.pause_ms() == 100


def test_an_attempt_ends_with_the_wish():
    attempts = Attempts()
    attempts.connector.want(1)
    attempts.pause_ms()
    attempts.connector.want(None)
    assert attempts.tasks[0].is_cancelled
    assert len(attempts.ends) == 1
    attempts.loop.advance(60_000)
    assert len(attempts.links) == 1


def test_the_end_of_another_link_changes_nothing():
    attempts = Attempts()
    attempts.connector.want(1)
    attempts.pause_ms()
    NodeLink(attempts, acceptor(), LIMITS, attempts.loop).abort("lost")
    attempts.loop.advance(1_000)
    assert len(attempts.links) == 1
    assert not attempts.tasks[0].is_cancelled


def test_who_has_no_address_is_asked_for_again():
    attempts = Attempts(address=None)
    attempts.connector.want(1)
    attempts.pause_ms()
    assert attempts.pause_ms() == 100
    assert attempts.ends == ["ended: no address of it is known"] * 2
    assert attempts.tasks == []
