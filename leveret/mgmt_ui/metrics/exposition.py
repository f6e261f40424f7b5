"""Text formats of metrics: Prometheus' 0.0.4, or OpenMetrics 1.0 if requested.

    # HELP rabbitmq_queue_messages_ready Messages ready to be delivered to consumers
    # TYPE rabbitmq_queue_messages_ready gauge
    rabbitmq_queue_messages_ready{vhost="/",queue="orders"} 5

The two differ in the name of a counter's family (OpenMetrics leaves `_total` to the samples), in
the word for values of no known type, and in that OpenMetrics has an end marker.

Pure: values in, text out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "OPENMETRICS",
    "TEXT",
    "Exposition",
    "MetricFamily",
    "MetricType",
    "labels_text",
    "negotiated",
]

# Characters that queue names may have and labels may not. The format has few escapes, so other
# control characters are shown as in Python: `\x00`, its backslash escaped.
_LABEL_ESCAPES = {
    **{code: f"\\\\x{code:02x}" for code in (*range(32), 127)},
    ord("\\"): "\\\\",
    ord('"'): '\\"',
    ord("\n"): "\\n",
}
_HELP_ESCAPES = {ord("\\"): "\\\\", ord("\n"): "\\n"}


class MetricType(Enum):
    """Type of a family; the value is Prometheus' word."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    UNTYPED = "untyped"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """Metric family: samples of one name. A counter's name ends in `_total`."""

    name: str
    kind: MetricType
    help: str


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as text to follow a name; empty without any."""
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    if not value.isascii():  # a name may hold bytes that are no UTF-8
        value = value.encode(errors="backslashreplace").decode()
    return value.translate(_LABEL_ESCAPES)


@dataclass(frozen=True, slots=True)
class Exposition:
    """One of the text formats."""

    media_type: str
    is_open: bool  # OpenMetrics

    def head(self, family: MetricFamily) -> str:
        """Return the HELP and TYPE lines of a family."""
        name, kind = family.name, family.kind.value
        if self.is_open:
            name = name.removesuffix("_total") if family.kind is MetricType.COUNTER else name
            kind = "unknown" if family.kind is MetricType.UNTYPED else kind
        explanation = family.help.translate(_HELP_ESCAPES)
        return f"# HELP {name} {explanation}\n# TYPE {name} {kind}\n"

    def samples(self, family: MetricFamily, values: Iterable[tuple[str, float]]) -> str:
        """Return the sample lines of a family, from (labels, value); see `labels_text`."""
        name = family.name
        return "".join([f"{name}{labels} {_number(value)}\n" for labels, value in values])

    def histogram(
        self,
        family: MetricFamily,
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
        labels: Mapping[str, str],
    ) -> str:
        """Return a histogram's lines. `counts` are per bucket, not cumulative, and one for +Inf."""
        lines = []
        seen = 0
        for bound, count in zip((*map(_number, bounds), "+Inf"), counts, strict=True):
            seen += count
            lines.append(f"{family.name}_bucket{labels_text({**labels, 'le': bound})} {seen}\n")
        own = labels_text(labels)
        lines.append(f"{family.name}_count{own} {seen}\n{family.name}_sum{own} {_number(total)}\n")
        return "".join(lines)

    def end(self) -> str:
        """Return the end marker, if the format has one."""
        return "# EOF\n" if self.is_open else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"


TEXT = Exposition("text/plain; version=0.0.4; charset=utf-8", is_open=False)
OPENMETRICS = Exposition("application/openmetrics-text; version=1.0.0; charset=utf-8", is_open=True)


def negotiated(accept: str) -> Exposition:
    """Return the format that an Accept header prefers; plain text if it names neither."""
    best, found = 0.0, TEXT
    for media_type, weight in _offers(accept):
        if weight > best and media_type == "application/openmetrics-text":
            best, found = weight, OPENMETRICS
        elif weight > best and media_type in {"text/plain", "text/*", "*/*"}:
            best, found = weight, TEXT
    return found


def _offers(accept: str) -> Iterator[tuple[str, float]]:
    """Yield media types with their weights, without OpenMetrics of other versions."""
    for offer in accept.split(","):
        media_type, *parameters = (part.strip().lower() for part in offer.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media_type == "application/openmetrics-text" and not _is_ours(values.get("version")):
            continue
        try:
            yield media_type, float(values.get("q", "1"))
        except ValueError:
            continue


def _is_ours(version: str | None) -> bool:
    return version in {None, "1.0.0"}
