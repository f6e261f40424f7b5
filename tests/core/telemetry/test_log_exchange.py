import pytest

from leveret.core.telemetry.log_exchange import LogExchange
from leveret.core.topology.predeclared import LOG_EXCHANGE
from leveret.core.vhost import Vhost
from leveret.ports.definitions import VhostDefinition
from tests.core.vhost_fakes import make_vhost
from tests.support.messages import heard, listen
from tests.support.stage import Stage


@pytest.fixture
def stage():
    return Stage(log_exchange=True)


@pytest.fixture
def exchange(stage):
    broker = stage.broker
    return LogExchange(broker.vhosts, broker.publisher, broker.node_name)


@pytest.mark.covers("B-180")
def test_a_line_is_a_message_with_its_level_as_the_key(stage, exchange):
    listen(stage, LOG_EXCHANGE, "warning")
    exchange.publish([("info", "not asked for", 1, None), ("warning", "hot \ud800", 2, None)])
    [line] = heard(stage)
    assert (line.exchange, line.key, line.body) == (LOG_EXCHANGE, "warning", b"hot ?")
    assert line.headers == {"node": "leveret@test"}
    assert line.properties.content_type == "text/plain"
    assert line.properties.timestamp == 2
    assert line.properties.delivery_mode is None


def test_lines_about_queues_that_take_lines_are_left_out(stage, exchange):
    listen(stage, LOG_EXCHANGE)
    queue = stage.queue("listener")
    exchange.publish([("error", "first", 1, queue)])
    exchange.publish([("error", "its own", 2, queue), ("info", "another's", 2, object())])
    exchange.publish([("error", "its own", 3, queue)])
    exchange.publish([("error", "its own", 4, queue)])
    assert [line.body for line in heard(stage)] == [b"first", b"another's"]


def test_without_a_listener_or_its_virtual_host_lines_are_forgotten(stage, exchange):
    exchange.publish([("info", "x", 1, None)])
    listen(stage, LOG_EXCHANGE)
    stage.run()
    assert heard(stage) == []
    stage.broker.remove_vhost("/")
    exchange.publish([("info", "x", 1, None)])
    stage.run()
    assert stage.reported == []


def test_the_exchange_is_there_where_it_is_wanted(stage):
    stage.broker.add_vhost(VhostDefinition("v"))
    assert LOG_EXCHANGE in stage.broker.vhosts["/"].exchanges
    assert LOG_EXCHANGE not in stage.broker.vhosts["v"].exchanges
    vhost: Vhost = make_vhost()
    assert LOG_EXCHANGE not in vhost.exchanges
