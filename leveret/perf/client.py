"""One worker: its connections, and its event loop.

The loop is epoll and nothing else: a turn costs one system call for waiting and then one compiled
call for each ready socket, which a general event loop cannot match.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pamqp import commands, frame

from leveret.perf.board import Board, RunPhase
from leveret.perf.crew import Crew
from leveret.perf.histogram import LatencyHistogram
from leveret.perf.options import Mode
from leveret.perf.plan import UNLIMITED
from leveret.perf.session import BrokerError, decode
from leveret.perf.wire import WorkerCounters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.perf.consumer import LoadConsumer
    from leveret.perf.plan import Share
    from leveret.perf.publisher import LoadPublisher
    from leveret.perf.station import Station

__all__ = ["Worker", "WorkerResult"]

PHASE_POLL_S = 0.02  # delay with which a worker may notice a new phase
GET_AGAIN_S = 0.001  # pause after basic.get-empty
SETUP_TIMEOUT_S = 60
CLOSE_TIMEOUT_S = 5
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class WorkerResult:
    """Results of a worker beside its counters: histograms, and sequences for verification."""

    latency: bytes
    confirm_latency: bytes
    sent: dict[int, dict[int, int]]
    received: dict[int, list[tuple[int, int]]]
    duplicates: int
    foreign: int


class Worker:
    """Runs one share of a plan."""

    def __init__(self, share: Share, board: Board, index: int) -> None:
        self._plan = share.plan
        self._board = board
        self._index = index
        self._counters = WorkerCounters(board.row(index))
        self._poll = select.epoll()  # made first, so that its number suits select()
        crew = Crew(share, self._counters, self._poll)
        self._stations, self._verifier = crew.stations, crew.verifier
        self._publishers, self._consumers = crew.publishers, crew.consumers
        self._hungry: set[Station] = set()
        self._measured = 0
        self._consume_oks = 0
        self._rate_share = len(share.publishers) / max(1, share.plan.publisher_count)

    def subscribe(self) -> None:
        """Start to consume, and return when the broker has confirmed all subscriptions."""
        wanted = self._consume_oks + sum(len(each.consumes) for each in self._stations.values())
        for station in self._stations.values():
            station.subscribe()
        deadline = time.monotonic() + SETUP_TIMEOUT_S
        while self._consume_oks < wanted:
            self._turn()
            if time.monotonic() > deadline:
                raise BrokerError(f"no basic.consume-ok within {SETUP_TIMEOUT_S} seconds")

    # Running

    def run(self) -> None:
        """Follow the board's phases until STOP."""
        while self._board.phase is RunPhase.SETUP:
            self._turn()
        if self._plan.mode is Mode.DRAIN:
            self.subscribe()
        self._hungry = {station for station in self._stations.values() if station.publishers}
        while self._board.phase is not RunPhase.STOP:
            self._turn()

    def _turn(self) -> None:
        """Serve every ready socket, then publish what the rate and windows allow."""
        phase = self._board.phase
        for fd, mask in self._wait(phase):
            station = self._stations[fd]
            station.serve(mask)
            if station.link.methods:
                self._handle_methods(station)
            if station.publishers and phase is RunPhase.RUN:
                self._hungry.add(station)
        if self._measured != self._board.measure:
            self._measured = self._board.measure
            for publisher in self._publishers:
                publisher.latency.clear()
            for consumer in self._consumers:
                consumer.latency.clear()
        if phase is RunPhase.RUN:
            self._publish()
        if self._plan.get and phase in (RunPhase.RUN, RunPhase.DRAIN):
            for consumer in self._consumers:
                consumer.ask()

    def _wait(self, phase: RunPhase) -> list[tuple[int, int]]:
        """Return socket events, waiting until there are some or something else is due."""
        pause_s = self._pause_s() if phase is RunPhase.RUN else PHASE_POLL_S
        if pause_s > 0 and not self._plan.spin:
            if self._plan.get:
                pause_s = min(pause_s, GET_AGAIN_S)
            # epoll waits whole milliseconds, select microseconds; both see the same sockets.
            select.select([self._poll], (), (), pause_s)
        return self._poll.poll(0)

    def _pause_s(self) -> float:
        if not self._publishers:
            return PHASE_POLL_S
        if not self._plan.rate:
            return 0 if self._hungry else PHASE_POLL_S
        published = sum(publisher.published for publisher in self._publishers)
        due_ns = self._board.start_ns + (published + 1) * SECOND_NS / self._rate
        return min(PHASE_POLL_S, max(0, (due_ns - time.monotonic_ns()) / SECOND_NS))

    @property
    def _rate(self) -> float:
        return self._plan.rate * self._rate_share

    def _publish(self) -> None:
        if self._plan.rate:
            self._publish_paced()
            return
        self._hungry = {station for station in self._hungry if station.publish(UNLIMITED)}

    def _publish_paced(self) -> None:
        """Publish what is due at the given rate, spread over the publishers."""
        published = sum(publisher.published for publisher in self._publishers)
        elapsed_ns = time.monotonic_ns() - self._board.start_ns
        due = int(elapsed_ns * self._rate / SECOND_NS) - published
        if due <= 0:
            return
        count = len(self._publishers)
        # The starting publisher rotates with every message, so that all get the same share.
        for turn in range(min(count, due)):
            publisher = self._publishers[(published + turn) % count]
            publisher.pump(due // count + (turn < due % count))
        for station in self._stations.values():
            station.watch()

    def _handle_methods(self, station: Station) -> None:
        for data in station.link.methods:
            _used, _channel, method = decode(data)
            if isinstance(method, commands.Basic.ConsumeOk):
                self._consume_oks += 1
            elif isinstance(method, commands.Connection.CloseOk):
                self._stations.pop(station.link.fd).close()
            elif isinstance(method, commands.Connection.Blocked):
                self._board.count_blocked(self._index)
            elif isinstance(method, commands.Basic.Cancel):
                raise BrokerError(f"the broker cancelled consumer {method.consumer_tag}")
        station.link.methods.clear()

    # Ending

    def close(self) -> None:
        """Acknowledge unsettled deliveries and close every connection in order."""
        for consumer in self._consumers:
            consumer.settle()
        closing = frame.marshal(commands.Connection.Close(200, "done", 0, 0), 0)
        for station in self._stations.values():
            station.link.send(closing)
            station.watch()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            while self._stations and time.monotonic() < deadline:
                self._turn()
        except OSError:
            pass  # a broker may close its end at once; all that counts has been counted
        for station in self._stations.values():
            station.close()
        self._poll.close()

    def result(self) -> WorkerResult:
        """Return the results that are not on the board."""
        verifier = self._verifier
        return WorkerResult(
            latency=_merged(self._consumers),
            confirm_latency=_merged(self._publishers),
            sent={each.identity: each.sent() for each in self._publishers} if verifier else {},
            received=verifier.received() if verifier else {},
            duplicates=verifier.duplicates if verifier else 0,
            foreign=verifier.foreign if verifier else 0,
        )


def _merged(endpoints: Sequence[LoadPublisher | LoadConsumer]) -> bytes:
    whole = LatencyHistogram()
    for endpoint in endpoints:
        whole.merge(endpoint.latency)
    return whole.to_bytes()
