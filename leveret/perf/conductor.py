"""Starts the workers, sets the phases of the run, and reads the counters off the board."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.errors import LeveretError
from leveret.perf.board import Board, RunPhase, Totals
from leveret.perf.client import Worker, WorkerResult
from leveret.perf.histogram import LatencyHistogram
from leveret.perf.options import Mode
from leveret.perf.process import ProcessTree, ProcessUsage
from leveret.perf.result import Latency, Result, Verification
from leveret.perf.session import BrokerError
from leveret.perf.topology import declare, delete, messages_ready
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from leveret.perf.plan import LoadPlan, Share

__all__ = ["Conductor", "Moment"]

TICK_S = 0.005  # delay with which the end of a run may be noticed
SAMPLE_S = 0.1  # interval of memory samples and progress lines
SETUP_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Moment:
    """Counters, and resource usage of broker and client, at one time."""

    at_ns: int
    totals: Totals
    usage: ProcessUsage | None
    client: ProcessUsage


class Conductor:
    """One run of a plan against a running broker."""

    def __init__(
        self, plan: LoadPlan, pids: Sequence[int], on_progress: Callable[[Moment, RunPhase], None]
    ) -> None:
        """`pids` are the broker's processes, whose usage is measured; none: it is not."""
        self._plan = plan
        self._broker = ProcessTree(*pids) if pids else None
        self._client = ProcessTree(os.getpid())
        self._on_progress = on_progress
        self._shares = plan.shares()
        context = multiprocessing.get_context("spawn")
        self._memory: Any = context.RawArray(ctypes.c_uint64, Board.words(len(self._shares)))
        self._board = Board(self._memory)
        self._context = context
        self._pipes: list[Connection] = []
        self._workers: list[Any] = []
        self._resident_bytes_peak = 0
        self._backlog = 0

    def run(self) -> Result:
        """Run the plan. Raises LeveretError when broker or plan do not allow it."""
        resident_before = self._usage()
        declare(self._plan)
        if self._plan.mode is Mode.DRAIN:
            ready = messages_ready(self._plan)
            self._backlog = min(self._plan.messages or ready, ready) * self._plan.readings
        try:
            return self._measure(resident_before)
        finally:
            self._end_workers()
            plan = self._plan
            if not (plan.keep or plan.existing) and plan.mode is Mode.FLOW:
                delete(plan)

    def _measure(self, before: ProcessUsage | None) -> Result:
        self._start_workers()
        self._client.refresh()
        start_ns = self._board.start_ns = time.monotonic_ns()
        self._board.phase = RunPhase.RUN
        self._wait_until(start_ns + int(self._plan.warm_up * SECOND_NS), self._never)
        self._board.measure += 1
        first = self._moment()
        end_ns = first.at_ns + int((self._plan.duration or float(1 << 30)) * SECOND_NS)
        self._wait_until(end_ns, self._all_done)
        last = self._moment()
        self._board.phase = RunPhase.DRAIN
        complete = self._wait_while_moving()
        drained = self._moment()
        self._board.phase = RunPhase.STOP
        results = [self._answer(pipe, STOP_TIMEOUT_S) for pipe in self._pipes]
        return self._result((first, last, drained), results, before, complete=complete)

    # Workers

    def _start_workers(self) -> None:
        for index, share in enumerate(self._shares):
            ours, theirs = self._context.Pipe()
            worker = self._context.Process(
                target=_work, args=(share, self._memory, index, theirs), daemon=True
            )
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)
        for pipe in self._pipes:
            self._answer(pipe, SETUP_TIMEOUT_S)

    def _answer(self, pipe: Connection, timeout_s: float) -> Any:
        """Return a worker's next message; raise its failure."""
        if not pipe.poll(timeout_s):
            raise BrokerError(f"a worker has not answered for {timeout_s} seconds")
        try:
            kind, value = pipe.recv()
        except EOFError as error:
            raise BrokerError("a worker has died") from error
        if kind == "error":
            raise BrokerError(value)
        return value

    def _end_workers(self) -> None:
        self._board.phase = RunPhase.STOP
        for worker in self._workers:
            worker.join(STOP_TIMEOUT_S)
            if worker.is_alive():
                worker.kill()
                worker.join()

    # Waiting

    def _wait_until(self, end_ns: int, done: Callable[[Totals], bool]) -> None:
        """Wait until `end_ns`, or until `done` is true of the counters, or nothing moves."""
        sampled_ns = moved_ns = time.monotonic_ns()
        latest = Totals().progress
        timeout_ns = int(self._plan.drain_timeout * SECOND_NS)
        while (now_ns := time.monotonic_ns()) < end_ns:
            totals = self._totals()
            if totals.progress != latest:
                latest, moved_ns = totals.progress, now_ns
            if done(totals) or (now_ns - moved_ns > timeout_ns and not self._plan.duration):
                return
            self._raise_failures()
            if now_ns - sampled_ns > SAMPLE_S * SECOND_NS:
                sampled_ns = now_ns
                self._on_progress(self._moment(), self._board.phase)
            time.sleep(min(TICK_S, max(0, (end_ns - now_ns) / SECOND_NS)))

    def _wait_while_moving(self) -> bool:
        """Wait until all is confirmed and consumed; return False if nothing moves any more."""
        moved_ns, latest = time.monotonic_ns(), Totals().progress
        while not self._settled(totals := self._totals()):
            now_ns = time.monotonic_ns()
            if totals.progress != latest:
                latest, moved_ns = totals.progress, now_ns
            if now_ns - moved_ns > self._plan.drain_timeout * SECOND_NS:
                return False
            self._wait_until(now_ns + int(SAMPLE_S * SECOND_NS), self._settled)
        return True

    def _never(self, _totals: Totals) -> bool:
        return False

    def _all_done(self, totals: Totals) -> bool:
        plan = self._plan
        if plan.mode is Mode.DRAIN:
            return totals.consumed >= self._backlog
        return bool(plan.messages) and totals.published >= plan.messages and self._settled(totals)

    def _settled(self, totals: Totals) -> bool:
        """Whether no confirm and no delivery is outstanding."""
        plan = self._plan
        if plan.mode is Mode.DRAIN:
            return bool(plan.duration) or self._all_done(totals)
        if plan.confirms and totals.settled < totals.published:
            return False
        arriving = (totals.published - totals.refused) * plan.copies
        return not plan.consumer_count or totals.consumed >= arriving

    def _raise_failures(self) -> None:
        for pipe in self._pipes:
            if pipe.poll():
                self._answer(pipe, 0)
                raise BrokerError("a worker has stopped before it was told to")

    # Figures

    def _totals(self) -> Totals:
        return self._board.totals(len(self._shares))

    def _usage(self) -> ProcessUsage | None:
        if self._broker is None:
            return None
        used = self._broker.usage()
        self._resident_bytes_peak = max(self._resident_bytes_peak, used.resident_bytes)
        return used

    def _moment(self) -> Moment:
        return Moment(time.monotonic_ns(), self._totals(), self._usage(), self._client.usage())

    def _result(
        self,
        moments: tuple[Moment, Moment, Moment],
        results: list[WorkerResult],
        before: ProcessUsage | None,
        *,
        complete: bool,
    ) -> Result:
        first, last, drained = moments
        total = drained.totals
        cpu = _cpu(first, drained, of_consumed=bool(self._plan.consumer_count))
        return Result(
            seconds=(last.at_ns - first.at_ns) / SECOND_NS,
            published_per_s=_rate(first, last, "published"),
            confirmed_per_s=_rate(first, last, "confirmed"),
            consumed_per_s=_rate(first, last, "consumed"),
            published_total=total.published,
            confirmed_total=total.confirmed,
            refused_total=total.refused,
            returned_total=total.returned,
            consumed_total=total.consumed,
            redelivered_total=total.redelivered,
            empty_total=total.empty,
            blocked_total=total.blocked,
            complete=complete,
            latency=_latency(each.latency for each in results),
            confirm_latency=_latency(each.confirm_latency for each in results),
            broker_cpu_us_per_message=cpu,
            broker_cpu_share=_cpu_share(first.usage, drained.usage, drained.at_ns - first.at_ns),
            client_cpu_share=_cpu_share(first.client, last.client, last.at_ns - first.at_ns),
            broker_resident_bytes_before=before.resident_bytes if before else None,
            broker_resident_bytes_peak=self._resident_bytes_peak if before else None,
            broker_resident_bytes_after=drained.usage.resident_bytes if drained.usage else None,
            verification=_verification(self._plan, results) if self._plan.verify else None,
        )


def _work(share: Share, memory: Any, index: int, pipe: Connection) -> None:
    """Run a worker process from beginning to end."""
    try:
        worker = Worker(share, Board(memory), index)
        if share.plan.mode is Mode.FLOW:
            worker.subscribe()
        pipe.send(("ready", None))
        worker.run()
        worker.close()
        pipe.send(("result", worker.result()))
    except (LeveretError, OSError) as error:
        pipe.send(("error", f"{error}"))
    except KeyboardInterrupt:
        pass  # the conductor reports it


def _rate(first: Moment, last: Moment, name: str) -> float:
    """Return messages per second until the last of them, which may be before `last`."""
    count: int = getattr(last.totals, name) - getattr(first.totals, name)
    until_ns: int = min(getattr(last.totals, f"{name}_at_ns"), last.at_ns)
    if count <= 0 or until_ns <= first.at_ns:
        return 0.0
    return count * SECOND_NS / (until_ns - first.at_ns)


def _cpu(first: Moment, last: Moment, *, of_consumed: bool) -> float | None:
    """Return the broker's microseconds per message consumed, or published if none consumes."""
    name = "consumed" if of_consumed else "published"
    count: int = getattr(last.totals, name) - getattr(first.totals, name)
    if first.usage is None or last.usage is None or count <= 0:
        return None
    return (last.usage.cpu_us - first.usage.cpu_us) / count


def _cpu_share(
    first: ProcessUsage | None, last: ProcessUsage | None, elapsed_ns: int
) -> float | None:
    """Return the number of processors kept busy in between."""
    if first is None or last is None:
        return None
    return (last.cpu_us - first.cpu_us) * 1000 / elapsed_ns


def _latency(histograms: Any) -> Latency:
    whole = LatencyHistogram()
    for data in histograms:
        whole.merge(LatencyHistogram.from_bytes(data))
    return Latency.of(whole)


def _verification(plan: LoadPlan, results: list[WorkerResult]) -> Verification:
    """Compare each publisher's messages with those that all consumers received."""
    duplicates = sum(result.duplicates for result in results)
    received: dict[int, RangeSet] = {}
    for result in results:
        for stream, ranges in result.received.items():
            held = received.setdefault(stream, RangeSet())
            for first, stop in ranges:
                duplicates += stop - first - held.add(first, stop)
    missing = 0
    for result in results:
        for publisher, numbers in result.sent.items():
            for number, count in numbers.items():
                for slot in range(plan.copies):
                    stream = (slot * plan.publishers + publisher) * plan.numbers + number
                    missing += count - received.get(stream, RangeSet()).overlap(0, count)
    return Verification(missing, duplicates, sum(result.foreign for result in results))
