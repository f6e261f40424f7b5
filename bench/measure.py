"""Takes one reading of a row from one broker; every figure comes out of `leveret perf --json`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.processes import BenchError, client_core, pinned
from bench.rows import Kind
from bench.seeking import seek_times_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.processes import Broker, LoadedProcess
    from bench.rows import Row

__all__ = ["Reading", "Timing", "measure", "perf", "perf_arguments"]

PERF_TIMEOUT_S = 900
MEGABYTE = 1_000_000
STREAM_NAME = "leveret-perf.00000000"
FILES_BESIDE_CONNECTIONS = 500
HOUR_MS = 3_600_000
DELAY_S, DELAY_WARM_UP_S = 20, 8  # the first are due after five seconds


@dataclass(frozen=True)
class Timing:
    """Seconds for each flow, and how much of the counted messages is enough (quick: a part)."""

    seconds: float
    warm_up: float
    messages_share: float
    files_max: int


@dataclass(frozen=True)
class Reading:
    """Figures by name, or why there are none; `incomplete` when messages were left behind.

    `others_cores` is how many cores processes that are none of ours kept busy meanwhile.
    """

    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    incomplete: bool = False
    others_cores: float = 0.0


def measure(row: Row, broker: Broker, timing: Timing) -> Reading:
    """One reading; what goes wrong is part of the result and ends nothing else."""
    kinds: dict[Kind, Callable[[Row, Broker, Timing], Reading]] = {
        Kind.FLOW: _flow,
        Kind.GET: _get,
        Kind.BACKLOG: _backlog,
        Kind.IDLE: _idle,
        Kind.START: _start,
        Kind.DELAY: _delay,
        Kind.PARTITIONS: _partitions,
        Kind.STREAM: _stream,
    }
    try:
        return kinds[row.kind](row, broker, timing)
    except (BenchError, OSError, subprocess.TimeoutExpired) as error:
        return Reading(failure=str(error).strip()[-500:])


def perf_arguments(row: Row, timing: Timing) -> list[str]:
    """The options of a flow, as people can type them."""
    options = ["--duration", f"{timing.seconds:g}", "--warm-up", f"{timing.warm_up:g}"]
    return [*row.options, "--queue-type", row.queue_type, *options]


def perf(broker: LoadedProcess, *options: str) -> dict[str, Any]:
    """Return the figures of `leveret perf` with these options for a broker."""
    command = [sys.executable, "-m", "leveret", "perf", "--json", "--uri", broker.uri]
    command += ["--pid", str(broker.pid), *options]
    with pinned(None if broker.core is None else client_core()):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            output, errors = process.communicate(timeout=PERF_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if not output.strip():
        raise BenchError(errors.decode(errors="replace"))
    result: dict[str, Any] = json.loads(output)
    return result


def _flow(row: Row, broker: Broker, timing: Timing) -> Reading:
    result = perf(broker, *perf_arguments(row, timing))
    latency = result["latency"]["milliseconds"]
    figures = {
        "published_per_s": result["published_per_s"],
        "consumed_per_s": result["consumed_per_s"],
        "per_cpu_s": _per_cpu_s(result),
        "client_cores": result["client_cpu_share"],
        "p50_ms": latency.get("p50", 0.0),
        "p99_ms": latency.get("p99", 0.0),
    }
    return Reading(figures, incomplete=not result["ok"])


def _count(row: Row, broker: Broker, timing: Timing) -> int:
    whole = row.messages if broker.name == "Leveret" else row.messages_theirs
    return int(whole * timing.messages_share)


def _fill(row: Row, broker: Broker, count: int) -> dict[str, Any]:
    size = row.options[row.options.index("--size") + 1] if "--size" in row.options else "16"
    return perf(
        broker,
        *("--mode", "fill", "--messages", str(count), "--size", size),
        *("--persistent", "--confirms", "2000", "--queue-type", row.queue_type),
    )


def _get(row: Row, broker: Broker, timing: Timing) -> Reading:
    count = _count(row, broker, timing)
    _fill(row, broker, count)
    result = perf(broker, "--mode", "drain", "--messages", str(count), *row.options)
    figures = {"consumed_per_s": result["consumed_per_s"], "per_cpu_s": _per_cpu_s(result)}
    return Reading(figures, incomplete=not result["ok"])


def _per_cpu_s(result: dict[str, Any]) -> float:
    """Messages for each second of the broker's processor time; 0 when it was too short to see."""
    cpu_us = result["broker_cpu_us_per_message"]
    return 1_000_000 / cpu_us if cpu_us else 0.0


def _backlog(row: Row, broker: Broker, timing: Timing) -> Reading:
    count = _count(row, broker, timing)
    filled = _fill(row, broker, count)
    growth = filled["broker_resident_bytes_after"] - filled["broker_resident_bytes_before"]
    broker.stop()
    broker.start()
    drained = perf(
        broker,
        *("--mode", "drain", "--messages", str(count)),
        *("--ack-every", "100", "--prefetch", "2000"),
    )
    figures = {
        "growth_mb": growth / MEGABYTE,
        "restart_s": broker.start_seconds,
        "fill_per_s": filled["confirmed_per_s"],
        "drain_per_s": drained["consumed_per_s"],
    }
    return Reading(figures, incomplete=not (filled["ok"] and drained["ok"]))


def _delay(row: Row, broker: Broker, timing: Timing) -> Reading:
    if broker.name != "Leveret":
        return Reading()
    count = _count(row, broker, timing)
    filled = perf(
        broker,
        *("--mode", "fill", "--messages", str(count), "--size", "100", "--delay", str(HOUR_MS)),
        *("--persistent", "--confirms", "2000", "--name", "pending"),
    )
    growth = filled["broker_resident_bytes_after"] - filled["broker_resident_bytes_before"]
    flow = _flow(row, broker, replace(timing, seconds=DELAY_S, warm_up=DELAY_WARM_UP_S))
    wanted = {name: flow.figures[name] for name in ("p50_ms", "p99_ms", "consumed_per_s")}
    figures = {
        "growth_mb": growth / MEGABYTE,
        "fill_per_s": filled["confirmed_per_s"],
        **wanted,
    }
    return Reading(figures, incomplete=flow.incomplete)


def _partitions(row: Row, broker: Broker, timing: Timing) -> Reading:
    if broker.name != "Leveret":
        return Reading()
    plain = _flow(row, broker, timing)
    options = (*row.options, "--queue-argument", "x-partitions=4")
    parted = _flow(replace(row, options=options), broker, timing)
    share = plain.figures["per_cpu_s"] / parted.figures["per_cpu_s"]
    figures = {"per_cpu_s": parted.figures["per_cpu_s"], "cpu_share": share}
    return Reading(figures, incomplete=plain.incomplete or parted.incomplete)


def _stream(row: Row, broker: Broker, timing: Timing) -> Reading:
    count = _count(row, broker, timing)
    begun = time.time()
    filled = _fill(row, broker, count)
    written = begun, time.time()
    read = {consumers: _read_stream(broker, count, consumers) for consumers in (1, 10)}
    memory = max(each["broker_resident_bytes_peak"] for each in (filled, *read.values()))
    figures = {
        "published_per_s": filled["confirmed_per_s"],
        "one_per_s": read[1]["consumed_per_s"],
        "ten_per_s": read[10]["consumed_per_s"],
        "ten_cpu_share": (
            read[10]["broker_cpu_us_per_message"] / read[1]["broker_cpu_us_per_message"]
        ),
        "resident_mb": memory / MEGABYTE,
    }
    if broker.name == "Leveret":
        figures["seek_ms"] = max(seek_times_ms(broker.uri, STREAM_NAME, count, written))
    return Reading(figures, incomplete=not all(each["ok"] for each in (filled, *read.values())))


def _read_stream(broker: Broker, count: int, consumers: int) -> dict[str, Any]:
    return perf(
        broker,
        *("--mode", "drain", "--messages", str(count), "--queue-type", "stream"),
        *("--consumers", str(consumers), "--consumer-argument", "x-stream-offset=first"),
        *("--ack-every", "100", "--prefetch", "2000"),
    )


def _idle(row: Row, broker: Broker, timing: Timing) -> Reading:
    count = min(_count(row, broker, timing), timing.files_max - FILES_BESIDE_CONNECTIONS)
    result = perf(broker, "--mode", "idle", "--connections", str(count), "--duration", "1")
    growth = result["broker_resident_bytes_after"] - result["broker_resident_bytes_before"]
    return Reading({"kb_each": growth / 1000 / result["connections"]})


def _start(_row: Row, broker: Broker, _timing: Timing) -> Reading:
    """The broker has just been started on an empty directory: that is the reading."""
    return Reading({"start_s": broker.start_seconds})
