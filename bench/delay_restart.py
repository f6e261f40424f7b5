"""How soon a node serves again when millions of delayed messages wait in it.

    python -m bench.delay_restart [messages] [--durability os|fsync] [--rounds 2]

A node takes in persistent delayed messages of 100 bytes: half of them due in an hour, the others in
half an hour. Then, in each round, it is stopped in order and by `kill -9`, and started again. Just
before each end it takes in a hundredth more, due soon after the start, and one that falls due while
the node is down.

How to read it: "ready" is from starting the process to an open connection, "first" to the overdue
message at its consumer, "late" by how much the last of those came late that were due after the
start: they are due in nearly the same moment, so it tells how long so many take. The target is
5 seconds to the first message.

The run fails if a message comes twice or early, if those that waited before are not those that came
and those that wait after, or if the index of the node, stopped in the end, does not know of each
that waits: what it does not know would never be delivered. It fails, too, if a message fell due
before the node had ended: what is delivered in the moment before `kill -9` may come again.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands, frame

from bench.leveret import Leveret
from bench.measure import perf
from bench.processes import BenchError
from leveret.features.delay.due_list import DUE_MS_MAX, DueList
from leveret.mgmt_ui.control_client import request
from leveret.perf.plan import Address, LoadPlan
from leveret.perf.session import LoadSession
from leveret.storage.state import LmdbStateStore

__all__ = ["Restart", "measure"]

MESSAGES = 10_000_000
SIZE = 100
FAR_MS, NEARER_MS = 3_600_000, 1_800_000
SOON_MS = 25_000  # from publishing to the due time of what comes due after the start
DOWN_MS = 3_000  # the same, of what falls due while the node is down
SOON_IN = 100  # one message in so many comes due after the start
TARGET_S = 5.0
SILENCE_S_MAX = 60.0
INDEX, INDEX_STOP = b"due/", b"due0"
ROOM_BYTES, CHUNK = 16, 1  # of a key behind the prefix, and what follows in that of a chunk
FRAME_HEAD, FRAME_END_BYTES, BODY = struct.Struct(">BHI"), 1, 3
STAMP = struct.Struct("=QQ")  # due time by the monotonic clock, identity: see leveret perf


@dataclass(frozen=True)
class Restart:
    """Seconds of one restart, and how many messages waited before and after, or came."""

    name: str
    stop_s: float
    ready_s: float
    first_s: float
    late_s: float
    before: int
    delivered: int
    after: int

    def __str__(self) -> str:
        verdict = "met" if self.first_s <= TARGET_S else "NOT met"
        return (
            f"{self.name:>10}: ended in {self.stop_s:.2f} s, ready after {self.ready_s:.2f} s, "
            f"first {self.first_s:.2f} s (target {TARGET_S:g}: {verdict}), "
            f"late {self.late_s:.2f} s; "
            f"{self.before:,} waited = {self.delivered:,} came + {self.after:,} wait"
        )


@dataclass(frozen=True)
class Ending:
    """How the node ends, and when the first message falls due, by the monotonic clock.

    It may be due at `due_from`, and it is at `due_until`: the node is down at both.
    """

    name: str
    end: Callable[[], None]
    due_from: float
    due_until: float


def measure(
    directory: Path, messages: int, durability: str, rounds: int, soon_ms: int, down_ms: int
) -> Iterator[Restart]:
    """Fill a node, and restart it twice in each round."""
    node = Leveret(directory, durability)
    node.start()
    try:
        for name, delay_ms in (("far", FAR_MS), ("nearer", NEARER_MS)):
            rate = _fill(node, messages // 2, delay_ms, name)
            print(f"{messages // 2:,} taken in, {rate:,.0f} a second", flush=True)
        for number in range(rounds):
            for name, end in (("clean stop", node.stop), ("kill -9", node.kill)):
                # Each fill declares its queue anew: what came due before would be gone.
                queues = (f"{name} {number} soon", f"{name} {number} overdue")
                far = _pending(node)
                _fill(node, messages // SOON_IN, soon_ms, queues[0])
                due_from = time.monotonic() + down_ms / 1000
                _fill(node, 1, down_ms, queues[1])
                ending = Ending(name, end, due_from, time.monotonic() + down_ms / 1000)
                yield _restart(node, ending, queues, far, messages // SOON_IN + 1)
        left = _pending(node)
    finally:
        node.stop()
    known = _indexed(node.data_dir)
    if known != left:
        raise BenchError(f"{left:,} messages wait, and the index knows of {known:,}")
    print(f"the index knows of all {known:,} that wait")


def _fill(node: Leveret, count: int, delay_ms: int, name: str) -> float:
    """Publish messages that wait for `delay_ms`. Returns how many were confirmed a second."""
    filled = perf(
        node,
        *("--mode", "fill", "--messages", str(count), "--size", str(SIZE)),
        *("--delay", str(delay_ms), "--persistent", "--confirms", "2000", "--name", name),
    )
    if not filled["ok"]:
        raise BenchError(f"not all of {count:,} messages were confirmed")
    return float(filled["confirmed_per_s"])


def _pending(node: Leveret) -> int:
    """How many messages wait, as the node says."""
    answer = request(
        node.data_dir / "control.sock", "schedule.list", {"vhost": "/", "limit": 0, "headers": {}}
    )
    if not answer["ok"]:
        raise BenchError(answer["explanation"])
    return int(answer["result"]["pending"])


def _restart(node: Leveret, ending: Ending, queues: Sequence[str], far: int, soon: int) -> Restart:
    """End the node and start it; besides those that are far, `soon` messages wait for `queues`."""
    begun = time.monotonic()
    ending.end()
    stop_s = time.monotonic() - begun
    if time.monotonic() >= ending.due_from:
        raise BenchError("the node ended after a message fell due: --down-ms is too short here")
    time.sleep(max(ending.due_until - time.monotonic(), 0))
    begun = time.monotonic()
    node.start()
    first_s, late_s = _consume(node.uri, queues, soon, begun)
    after = _pending(node)
    if after != far:
        raise BenchError(f"{far + soon:,} waited, {soon:,} came and {after:,} wait")
    ready_s = node.start_seconds
    return Restart(ending.name, stop_s, ready_s, first_s, late_s, far + soon, soon, after)


def _consume(uri: str, names: Sequence[str], count: int, begun: float) -> tuple[float, float]:
    """Take that many messages: seconds from `begun` to the first, and by how much the last is late.

    Raises BenchError where one comes early or twice, or none comes for long.
    """
    seen: set[bytes] = set()
    first_s = late_s = 0.0
    with LoadSession.connect(Address.parse(uri)) as session:
        session.socket.settimeout(SILENCE_S_MAX)
        session.call(commands.Channel.Open(), 1)
        for name in names:
            queue = LoadPlan(name=name).queue_name(0)
            consume = commands.Basic.Consume(
                queue=queue, no_ack=True, nowait=True, consumer_tag=name
            )
            session.socket.sendall(frame.marshal(consume, 1))
        for stamp in _stamps(session):
            now = time.monotonic()
            first_s = first_s or now - begun
            late_s = now - STAMP.unpack(stamp)[0] / 1e9
            if stamp in seen or late_s < 0:
                raise BenchError("a message came " + ("early" if late_s < 0 else "twice"))
            seen.add(stamp)
            if len(seen) == count:
                break
    return first_s, late_s


def _stamps(session: LoadSession) -> Iterator[bytes]:
    """The beginning of each body that comes."""
    data = session.received
    while True:
        at = 0
        while len(data) - at >= FRAME_HEAD.size:
            kind, _, length = FRAME_HEAD.unpack_from(data, at)
            stop = at + FRAME_HEAD.size + length + FRAME_END_BYTES
            if stop > len(data):
                break
            if kind == BODY:
                body = at + FRAME_HEAD.size
                yield bytes(data[body : body + STAMP.size])
            at = stop
        del data[:at]
        try:
            more = session.socket.recv(1 << 16)
        except TimeoutError:
            more = b""
        if not more:
            raise BenchError("messages are missing")
        data += more


def _indexed(data_dir: Path) -> int:
    """How many messages the index of a stopped node knows of that are due in the future."""
    state = LmdbStateStore(data_dir / "state.lmdb", print)
    count, now_ms = 0, time.time_ns() // 1_000_000
    try:
        for key in state.keys(INDEX, INDEX_STOP):
            value = state.get(key)
            if value is not None and key[len(INDEX) + ROOM_BYTES] == CHUNK:
                dues = DueList()
                dues.unpack(value)
                count += len(dues.between(now_ms, DUE_MS_MAX + 1))
    finally:
        state.close()
    return count


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="A restart with delayed messages pending.")
    parser.add_argument("messages", type=int, nargs="?", default=MESSAGES)
    parser.add_argument("--durability", choices=("os", "fsync"), default="os")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--soon-ms", type=int, default=SOON_MS)
    parser.add_argument("--down-ms", type=int, default=DOWN_MS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for restart in measure(Path(directory), **vars(asked)):
            print(restart, flush=True)


if __name__ == "__main__":
    main()
