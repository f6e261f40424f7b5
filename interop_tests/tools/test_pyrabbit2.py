"""pyrabbit2, a client of the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from interop_tests.brokers import LeveretBroker

api = pytest.importorskip("pyrabbit2.api")


@pytest.mark.covers("B-445")
@pytest.mark.filterwarnings("ignore")
def test_a_day_with_pyrabbit2(leveret_http: LeveretBroker) -> None:
    client = api.Client(f"127.0.0.1:{leveret_http.http_port}", "guest", "guest")
    assert client.is_alive()
    assert client.get_whoami()["name"] == "guest"
    assert client.get_overview()["product_name"] == "RabbitMQ"
    assert client.get_nodes()[0]["running"]
    client.create_vhost("pyr")
    assert "pyr" in client.get_vhost_names()
    client.create_user("pyr", "secret", "management")
    client.set_vhost_permissions("pyr", "pyr", ".*", ".*", ".*")
    assert client.get_vhost_permissions("pyr")
    client.create_exchange("pyr", "x", "direct")
    client.create_queue("pyr", "q", durable=True)
    client.create_binding("pyr", "x", "q", "k")
    assert "k" in {each["routing_key"] for each in client.get_bindings()}
    assert client.publish("pyr", "x", "k", "hello")
    assert client.get_queue_depth("pyr", "q") == 1
    assert client.get_messages("pyr", "q")[0]["payload"] == "hello"
    client.purge_queue("pyr", "q")
    client.create_policy("pyr", "p", pattern="^q", definition={"max-length": 5})
    assert client.get_policy("pyr", "p")["pattern"] == "^q"
    assert client.get_definitions()["queues"]
    assert client.get_channels() == []
    client.delete_policy("pyr", "p")
    client.delete_queue("pyr", "q")
    client.delete_exchange("pyr", "x")
    client.delete_user("pyr")
    client.delete_vhost("pyr")
