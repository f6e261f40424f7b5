"""Facts of the node on the overview, rates and files on pages, and who may see them."""

from types import SimpleNamespace

import pytest

from leveret.core.alarms import Resource
from leveret.features.alerts.rules import Alert, AlertRule
from leveret.mgmt_ui.operations import node_health
from leveret.mgmt_ui.operations.runtime import Runtime
from tests.support.browser import Browser
from tests.support.client import Client

HOSTILE = "<script>alert(1)</script>"
RULE = {"condition": "backlog", "above": 1}


@pytest.fixture
def running(site, tmp_path):
    """A site that knows the process it runs in."""
    configuration = site.stage.configuration.model_copy(update={"data_dir": tmp_path})
    site.equip(runtime=Runtime(configuration, 0, site.broker.timers.wall_ms))
    return site


@pytest.fixture
async def administrator(running):
    browser = Browser(running)
    await browser.sign_in()
    return browser


async def test_node_facts(administrator):
    text = await administrator.text("/overview")
    for fact in ("Memory", "Free disk", "Open files", "Uptime", "Version", "Durability"):
        assert f"<dt>{fact}</dt>" in text
    assert 'hx-get="/findings"' in text


async def test_findings_name_what_to_do(running, administrator):
    running.broker.alarms.set(Resource.DISK, low=True)
    text = await administrator.text("/findings")
    assert "the node runs low on disk" in text
    assert "Remedy: free space" in text


async def test_alarms_say_whose_they_are(running, administrator):
    running.broker.alarms.set(Resource.MEMORY, low=True)
    running.broker.alarms.set_elsewhere("leveret<2>", frozenset([Resource.DISK]))
    text = await administrator.text("/overview")
    assert "The node is low on memory: publishers are blocked until the alarm clears." in text
    assert "leveret&lt;2&gt; is low on disk: publishers are blocked on all nodes" in text
    assert "that node runs low on disk" in await administrator.text("/findings")


async def test_findings_are_no_markup(running, administrator, monkeypatch):
    monkeypatch.setattr(node_health, "BACKLOG_MIN", 1)
    await administrator.submit("/queues", vhost="/", name=HOSTILE)
    running.stage.run()
    Client(running.stage).open().publish(HOSTILE, b"1")
    text = await administrator.text("/findings")
    assert "no consumer" in text
    assert HOSTILE not in text


async def test_alerts_that_fire(running):
    running.administration.add_vhost("hidden")
    rules = [AlertRule.parse(vhost, HOSTILE, RULE) for vhost in ("/", "hidden")]
    alerts = [Alert(rule, HOSTILE, 7, 0, is_firing=True) for rule in rules]
    running.equip(alerting=SimpleNamespace(firing=alerts))
    running.add_user("u", "management")
    running.permit("u", "/")
    browser = Browser(running)
    await browser.sign_in("u")
    text = await browser.text("/overview")
    assert "Firing alerts" in text
    assert "hidden" not in text.partition("Firing alerts")[2].partition("Messages in queues")[0]
    assert HOSTILE not in text


async def test_who_is_no_monitor_sees_nothing_of_the_node(running):
    running.add_user("u", "management")
    browser = Browser(running)
    await browser.sign_in("u")
    text = await browser.text("/overview")
    assert "Free disk" not in text
    assert "/findings" not in text
    assert (await browser.get("/findings")).status_code == 403


async def test_strangers_are_shown_no_findings(browser):
    assert (await browser.get("/findings")).status_code in {303, 401}


async def test_files_of_a_log(site, guest):
    client = Client(site.stage).open()
    client.declare("q")
    client.publish("q", b"1", b"2")
    text = await guest.text("/queues/%2F/q")
    assert "Segments of the log: 1" in text
    assert "active" in text
    assert "<dt>Replicas</dt><dd>this node</dd>" in text


async def test_rates_of_exchanges_and_channels(site, guest):
    client = Client(site.stage).open()
    client.declare("q")
    text = await guest.text("/exchanges/%2F/amq.topic?period=hour")
    assert "Routed from it" in text
    assert 'data-live="/live/exchanges/%2F/amq.topic"' in text
    assert "Published" in await guest.text("/channels?sort=publish_rate")
