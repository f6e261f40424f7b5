"""`python -m bench.instructions CHECKOUT`: instructions per message of an older build and this.

    git worktree add ../before COMMIT && make -C ../before build
    python -m bench.instructions ../before [exchanges]

Counted by Valgrind (Debian's package `valgrind`) in user code, while a client repeats one exchange
with the node so that each read brings the same bytes. The counts repeat within 0.2 %, on a busy
machine as well: they tell a change of 1 %, where readings of time lie 5 % apart (`bench.versions`).
What they leave out is the kernel's work, and how far apart in memory a build's data lies.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from bench.leveret import Leveret
from bench.processes import BenchError
from leveret.perf.plan import Address
from leveret.perf.process import usage
from leveret.perf.session import LoadSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pamqp.base import Frame

QUEUE = "counted"
REST_S, REST_CPU_S = 3.0, 0.5  # a node that uses less in this time has imported all its modules
# Where buffers happen to lie decides whether libc copies by one instruction for each byte.
WHOLE_COPIES = "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1000000000"
FRAME_OVERHEAD = 8
METHOD_FRAME = 1
WARM_ROUNDS = 1 / 10  # of the counted ones: CPython specializes what runs often


@dataclass(frozen=True)
class Exchange:
    """Messages that a client repeats: `publishers` send `burst` messages each in one write.

    Then it waits until all are confirmed and delivered; they are acknowledged in the next write.
    With `gets` they are not delivered but fetched by basic.get, one after the other, and each is
    acknowledged with the next. A burst is less than 100 kB, which a socket takes although nobody
    reads.
    """

    name: str
    rounds: int
    burst: int = 1
    publishers: int = 1
    size: int = 16
    arguments: dict[str, Any] = field(default_factory=dict)
    consumed: str = QUEUE
    durability: str = "os"
    gets: bool = False


DEAD_LETTERED = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
EXCHANGES = (
    Exchange("one", 2000),
    Exchange("one-flushed", 2000, durability="fsync"),
    Exchange("get", 100, burst=20, gets=True),
    Exchange("hundred", 300, burst=100),
    Exchange("thousand", 60, burst=1000),
    Exchange("twenty-1-kib", 800, burst=20, size=1024),
    Exchange("50-publishers", 100, publishers=50),
    Exchange("quorum", 60, burst=1000, arguments={"x-queue-type": "quorum"}, durability="fsync"),
    Exchange("priorities", 60, burst=1000, arguments={"x-max-priority": 10}),
    Exchange(
        "expired",
        60,
        burst=1000,
        arguments={"x-message-ttl": 0} | DEAD_LETTERED,
        consumed="dead",
    ),
)


class Peer:
    """One connection of the client, with one channel."""

    def __init__(self, address: Address) -> None:
        self._session = LoadSession.connect(address)
        self._session.call(commands.Channel.Open(), 1)
        self.socket = self._session.socket

    def call(self, method: Frame) -> None:
        """Send a method and wait for its reply."""
        self._session.call(method, 1)

    def methods(self) -> Iterator[tuple[int, bytes]]:
        """Yield (id of the method, its arguments) as they come; contents are passed over."""
        received = self._session.received
        while True:
            size = int.from_bytes(received[3:7], "big") + FRAME_OVERHEAD
            if len(received) < FRAME_OVERHEAD or len(received) < size:
                data = self.socket.recv(1 << 20)
                if not data:
                    raise BenchError("the node closed the connection")
                received += data
                continue
            payload = bytes(received[7 : size - 1]) if received[0] == METHOD_FRAME else b""
            del received[:size]
            if payload:
                yield int.from_bytes(payload[2:4], "big"), payload[4:]


class Client:
    """The client of one exchange."""

    def __init__(self, address: Address, exchange: Exchange) -> None:
        self._exchange = exchange
        self._consumer = Peer(address)
        self._publishers = [Peer(address) for _ in range(exchange.publishers)]
        for queue in sorted({QUEUE, exchange.consumed}):
            arguments = exchange.arguments if queue == QUEUE else {}
            self._consumer.call(
                commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
            )
        if not exchange.gets:
            self._consumer.call(commands.Basic.Consume(queue=exchange.consumed))
        for publisher in self._publishers:
            publisher.call(commands.Confirm.Select())
        properties = commands.Basic.Properties(delivery_mode=2)
        parts = (
            commands.Basic.Publish(routing_key=QUEUE),
            ContentHeader(body_size=exchange.size, properties=properties),
            ContentBody(bytes(exchange.size)),
        )
        self._burst = b"".join(frame.marshal(part, 1) for part in parts) * exchange.burst
        self._ack = b""  # of the last round's messages

    def run(self, rounds: int, pid: int) -> None:
        """Repeat the exchange. The node is stopped meanwhile, so that it reads all at once."""
        for _ in range(rounds):
            os.kill(pid, signal.SIGSTOP)
            if not self._exchange.gets:
                self._consumer.socket.sendall(self._ack)
            for publisher in self._publishers:
                publisher.socket.sendall(self._burst)
            os.kill(pid, signal.SIGCONT)
            for publisher in self._publishers:
                self._await_confirms(publisher)
            if self._exchange.gets:
                self._get_all()
            else:
                tag = self._last_delivered()
                self._ack = frame.marshal(commands.Basic.Ack(delivery_tag=tag, multiple=True), 1)

    def _get_all(self) -> None:
        """Get the messages of one round; each request acknowledges the message before."""
        get = frame.marshal(commands.Basic.Get(queue=QUEUE), 1)
        methods = self._consumer.methods()
        for _ in range(self._exchange.burst):
            self._consumer.socket.sendall(self._ack + get)
            method, arguments = next(methods)
            assert method == commands.Basic.GetOk.frame_id, "all of the burst is ready"
            tag = int.from_bytes(arguments[:8], "big")
            self._ack = frame.marshal(commands.Basic.Ack(delivery_tag=tag), 1)

    def _last_delivered(self) -> int:
        """Wait for the deliveries of one round; return the last one's tag."""
        methods, arguments = self._consumer.methods(), b""
        for _ in range(self._exchange.burst * self._exchange.publishers):
            method, arguments = next(methods)
            assert method == commands.Basic.Deliver.frame_id, "a consumer gets deliveries"
        tag_at = 1 + arguments[0]
        return int.from_bytes(arguments[tag_at : tag_at + 8], "big")

    def _await_confirms(self, publisher: Peer) -> None:
        """Wait for the confirms of one publisher's burst."""
        confirmed = 0
        for method, arguments in publisher.methods():
            assert method == commands.Basic.Ack.frame_id, "nothing is refused"
            confirmed = self._exchange.burst if arguments[8] else confirmed + 1
            if confirmed == self._exchange.burst:
                return


class CountedNode(Leveret):
    """A node whose instructions are counted while `counting`."""

    def __init__(self, directory: Path, python: Path, durability: str) -> None:
        super().__init__(directory, durability, (), python)
        self._counts = directory / "counts"

    @property
    def command(self) -> list[str]:
        """How it is started."""
        valgrind = [
            *("env", "PYTHONHASHSEED=0", "LEVERET_BUSY_POLL_MICROSECONDS=0", WHOLE_COPIES),
            *("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"),
            f"--callgrind-out-file={self._counts}",
        ]
        return [*valgrind, *super().command]

    def count(self, exchange: Exchange) -> float:
        """Return the instructions of each message of an exchange."""
        client = Client(Address.parse(self.uri), exchange)
        client.run(max(int(exchange.rounds * WARM_ROUNDS), 20), self.pid)
        self._control("--instr=on")
        client.run(exchange.rounds, self.pid)
        self._control("--instr=off")
        self._control("--dump")
        [dump] = self._counts.parent.glob(f"{self._counts.name}.*")
        total = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
        if total is None:
            raise BenchError(f"{dump} has no total")
        dump.unlink()
        return int(total.group(1)) / (exchange.rounds * exchange.burst * exchange.publishers)

    def wait_for_rest(self) -> None:
        """Return once the node has nothing to do: behind its start it imports what pages need."""
        before, used = 0.0, self._cpu_s()
        while used - before > REST_CPU_S:
            time.sleep(REST_S)
            before, used = used, self._cpu_s()

    def _cpu_s(self) -> float:
        """Return the processor time that the node has used so far, in seconds."""
        return usage(self.pid).cpu_us / 1_000_000

    def _control(self, option: str) -> None:
        subprocess.run(
            ["callgrind_control", option, str(self.pid)], check=True, capture_output=True
        )


def main(
    checkout: Annotated[Path, typer.Argument(help="The other build's checkout, with its .venv.")],
    names: Annotated[list[str] | None, typer.Argument(help="Exchanges; all when none.")] = None,
) -> None:
    """Compare the instructions per message of two builds."""
    if shutil.which("callgrind_control") is None:
        raise typer.BadParameter("valgrind is not installed: apt-get install valgrind")
    python = checkout.resolve() / ".venv" / "bin" / "python"
    if not python.exists():
        raise typer.BadParameter(f"{python} does not exist: run `make build` there first")
    known = {exchange.name: exchange for exchange in EXCHANGES}
    if unknown := set(names or []) - known.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
    print(f"{'exchange':<16} {'other':>10} {'this':>10}   this/other")
    for name in names or known:
        other, this = (_count(known[name], each) for each in (python, Path(sys.executable)))
        print(f"{name:<16} {other:>10,.0f} {this:>10,.0f}   {this / other:.3f}", flush=True)


def _count(exchange: Exchange, python: Path) -> float:
    """Return the instructions per message of one build."""
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory:
        node = CountedNode(Path(directory), python, exchange.durability)
        node.start()
        try:
            node.wait_for_rest()
            return node.count(exchange)
        finally:
            node.stop()


if __name__ == "__main__":
    typer.run(main)
