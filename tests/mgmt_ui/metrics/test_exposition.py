"""The exposition formats, read back by Prometheus' own parsers for Python."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from leveret.mgmt_ui.metrics.exposition import (
    OPENMETRICS,
    TEXT,
    MetricFamily,
    MetricType,
    labels_text,
    negotiated,
)

READY = MetricFamily("ready", MetricType.GAUGE, 'How "many"\nare\\ready')
SENT = MetricFamily("sent_total", MetricType.COUNTER, "How many were sent")
LATENCY = MetricFamily("latency_seconds", MetricType.HISTOGRAM, "How long it took")
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PREFERS_TEXT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=1.0.0;q=0.6,*/*;q=0.2"
)
INFO = MetricFamily("info", MetricType.UNTYPED, "Who")


def told(exposition):
    """One family of each kind."""
    pieces = []
    for family, value in ((READY, 1.5), (SENT, 2**63), (INFO, 1)):
        labels = labels_text({"queue": "q"})
        pieces += [exposition.head(family), exposition.samples(family, [(labels, value)])]
    pieces += [
        exposition.head(LATENCY),
        exposition.histogram(LATENCY, (0.001, 0.25, 10), (1, 2, 0, 3), 12.75, {"node": "n"}),
        exposition.end(),
    ]
    return "".join(pieces)


@pytest.mark.parametrize(("exposition", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_open)])
def test_each_kind_is_understood(exposition, parse):
    families = {family.name: family for family in parse(told(exposition))}
    assert {name: family.type for name, family in families.items()} == {
        "ready": "gauge",
        "sent": "counter",
        "info": "unknown",
        "latency_seconds": "histogram",
    }
    assert families["ready"].samples[0][:3] == ("ready", {"queue": "q"}, 1.5)
    assert families["sent"].samples[0][:3] == ("sent_total", {"queue": "q"}, 2**63)
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in families["latency_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert buckets == {0.001: 1, 0.25: 3, 10: 3, float("inf"): 6}
    rest = [sample[:3] for sample in families["latency_seconds"].samples[-2:]]
    assert rest == [
        ("latency_seconds_count", {"node": "n"}, 6),
        ("latency_seconds_sum", {"node": "n"}, 12.75),
    ]


@given(st.text(st.characters()))  # surrogates, too: names may hold bytes that are no UTF-8
def test_no_name_breaks_out_of_its_label(name):
    line = TEXT.samples(READY, [(labels_text({"queue": name}), 1)])
    assert line.count("\n") == 1
    assert "\0" not in line
    ((sample,),) = [family.samples for family in parse_text(line)]
    assert set(sample.labels) == {"queue"}
    assert sample.value == 1
    if name.isprintable():
        assert sample.labels["queue"] == name


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        (PROMETHEUS_2, OPENMETRICS),
        (PREFERS_TEXT, TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text;q=none, text/plain", TEXT),
    ],
)
def test_format_is_what_the_scraper_prefers(accept, expected):
    assert negotiated(accept) is expected
