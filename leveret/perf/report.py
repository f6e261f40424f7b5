"""Report of a run: progress lines and a final table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from leveret.perf.board import RunPhase
    from leveret.perf.conductor import Moment
    from leveret.perf.result import Latency, Result

__all__ = ["ProgressLine", "rows", "table"]

SECOND_NS = 1_000_000_000
MEGABYTE = 1_000_000


class ProgressLine:
    """Formats moments of a run as progress lines with current rates."""

    def __init__(self) -> None:
        self._latest: Moment | None = None

    def line(self, moment: Moment, phase: RunPhase) -> str:
        """Return the line for `moment`; rates are since the previous moment."""
        latest, self._latest = self._latest, moment
        if latest is None or moment.at_ns == latest.at_ns:
            return phase.name.lower()
        seconds = (moment.at_ns - latest.at_ns) / SECOND_NS
        now, then = moment.totals, latest.totals
        parts = [
            f"{(getattr(now, name) - getattr(then, name)) / seconds:,.0f}/s {name}"
            for name in ("published", "confirmed", "consumed")
            if getattr(now, name)
        ]
        if moment.usage and latest.usage:
            cpu = (moment.usage.cpu_us - latest.usage.cpu_us) / seconds / 10_000
            parts.append(f"broker {cpu:.0f} %, {moment.usage.resident_bytes / MEGABYTE:,.0f} MB")
        return f"{phase.name.lower()}  " + "   ".join(parts)


def table(result: Result) -> Table:
    """Return the result as a table; what was not measured is left out."""
    shown = Table(title=f"{result.seconds:.1f} s", show_header=False, title_justify="left")
    for name, value in rows(result):
        shown.add_row(name, value)
    return shown


def rows(result: Result) -> list[tuple[str, str]]:
    """Return the measured values as (name, text)."""
    shown = []
    for name in ("published", "confirmed", "consumed"):
        total = getattr(result, f"{name}_total")
        if total:
            rate = getattr(result, f"{name}_per_s")
            shown.append((name, f"{rate:,.0f} messages/s, {total:,} in all"))
    for name in ("refused", "returned", "redelivered", "empty", "blocked"):
        total = getattr(result, f"{name}_total")
        if total:
            shown.append((name, f"{total:,}"))
    shown += _latency_rows("publish to consume", result.latency)
    shown += _latency_rows("publish to confirm", result.confirm_latency)
    shown += _broker_rows(result)
    if result.connections:
        shown.append(("connections", f"{result.connections:,} in {result.connect_seconds:.1f} s"))
    if result.verification:
        seen = result.verification
        shown.append(
            (
                "verification",
                f"{seen.missing:,} missing, {seen.duplicates:,} twice, {seen.foreign:,} foreign",
            )
        )
    if not result.complete:
        shown.append(("incomplete", "the broker stopped before everything had come"))
    return shown


def _latency_rows(name: str, latency: Latency) -> list[tuple[str, str]]:
    if not latency.samples:
        return []
    values = "  ".join(f"{label} {value:.3f}" for label, value in latency.milliseconds.items())
    return [(f"{name}, ms", values)]


def _broker_rows(result: Result) -> list[tuple[str, str]]:
    rows = []
    if result.broker_cpu_us_per_message is not None:
        share = (
            f", {result.broker_cpu_share * 100:.0f} % of a core" if result.broker_cpu_share else ""
        )
        rows.append(("broker CPU", f"{result.broker_cpu_us_per_message:.3f} µs a message{share}"))
    if result.broker_resident_bytes_before is not None:
        memory = [
            result.broker_resident_bytes_before,
            result.broker_resident_bytes_peak or 0,
            result.broker_resident_bytes_after or 0,
        ]
        text = ", ".join(
            f"{name} {value / MEGABYTE:,.1f} MB"
            for name, value in zip(("before", "peak", "after"), memory, strict=True)
        )
        rows.append(("broker memory", text))
    if result.client_cpu_share is not None:
        rows.append(("client CPU", f"{result.client_cpu_share * 100:.0f} % of a core"))
    return rows
