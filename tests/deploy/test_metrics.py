"""Dashboards and alert rules ask for nothing that a node does not tell, and say what to do."""

import json
import re
from pathlib import Path

import pytest
import yaml

from leveret.mgmt_ui.metrics.own import MEMBERS, PREFIX
from tests.support.http import http_text
from tests.support.node import node_in_thread

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
METRIC = re.compile(r"\b(?:rabbitmq|leveret)_[a-z0-9_]+\b")
# Labels and names of ours that are no metrics.
LABELS = {"rabbitmq_endpoint", "rabbitmq_cluster", "rabbitmq_node"}
SCRAPED = [
    "/metrics",
    *(
        f"{config.get('metrics_path', '/metrics')}?"
        + "&".join(f"family={name}" for name in config.get("params", {}).get("family", []))
        for config in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())[
            "scrape_configs"
        ]
    ),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """All names of samples that the deployed Prometheus gets."""
    names = {
        PREFIX + column.family.name for column in MEMBERS.columns
    }  # of nodes of a cluster only
    with node_in_thread(tmp_path_factory.mktemp("metrics"), prometheus_port=0) as node:
        for path in SCRAPED:
            url = f"http://{node.addresses['http/prometheus']}{path}"
            for line in http_text(url).splitlines():
                if line.startswith("# TYPE "):
                    _, _, name, kind = line.split()
                    suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
                    names |= {name + suffix for suffix in suffixes}
    return names


def metrics_of(text):
    return set(METRIC.findall(text)) - LABELS


def expressions(value):
    """Every query anywhere in a dashboard."""
    if isinstance(value, dict):
        yield from (value[key] for key in ("expr", "definition") if isinstance(value.get(key), str))
        for inner in value.values():
            yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_asks_for_what_is_told(path, told):
    asked = [metrics_of(text) for text in expressions(json.loads(path.read_text()))]
    assert len(asked) > 5
    assert set().union(*asked) <= told


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_can_be_imported(path):
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    for text in expressions(dashboard):
        used = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval"}
        assert used <= variables, text
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"].endswith((".", "?")), panel["title"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_asks_for_what_is_told_and_says_what_to_do(rule, told):
    assert metrics_of(rule["expr"]) <= told
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert len(rule["annotations"]["summary"]) > 20
    assert len(rule["annotations"]["description"]) > 60
