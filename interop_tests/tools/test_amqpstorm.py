"""amqpstorm's management client, the part of it that speaks HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from interop_tests.brokers import LeveretBroker

management = pytest.importorskip("amqpstorm.management")


@pytest.mark.covers("B-445")
def test_a_day_with_amqpstorm(leveret_http: LeveretBroker) -> None:
    url = f"http://127.0.0.1:{leveret_http.http_port}"
    with management.ManagementApi(url, "guest", "guest") as api:
        assert api.whoami()["name"] == "guest"
        assert api.overview()["product_name"] == "RabbitMQ"
        assert api.aliveness_test("/")["status"] == "ok"
        assert api.healthchecks.get()["status"] == "ok"
        assert api.cluster_name()["name"]
        [node] = api.nodes()
        assert api.node(node["name"])["running"]
        api.virtual_host.create("storm")
        assert "storm" in {each["name"] for each in api.virtual_host.list()}
        api.user.create("storm", "secret", tags="management")
        api.user.set_permission("storm", "storm")
        assert api.user.get_permission("storm", "storm")["read"] == ".*"
        assert api.virtual_host.get_permissions("storm")
        assert "storm" in {each["name"] for each in api.user.list()}
        api.exchange.declare("x", "topic", "storm", durable=True)
        api.queue.declare("q", "storm", durable=True, arguments={"x-max-length": 5})
        api.queue.bind("q", "x", "k.#", "storm")
        assert {each["routing_key"] for each in api.queue.bindings("q", "storm")} == {"q", "k.#"}
        assert len(api.exchange.bindings("x", "storm")) == 1
        properties = {"headers": {"n": 1}, "delivery_mode": 2}
        published = api.basic.publish(
            "hello", "k.a", "x", virtual_host="storm", properties=properties
        )
        assert published == {"routed": True}
        assert api.queue.get("q", "storm")["messages"] == 1
        [message] = api.basic.get("q", "storm", requeue=True)
        assert (message.body, message.properties["headers"]) == ("hello", {"n": 1})
        api.queue.purge("q", "storm")
        assert api.basic.get("q", "storm") == []
        assert [each["name"] for each in api.queue.list("storm")] == ["q"]
        assert "x" in {each["name"] for each in api.exchange.list("storm")}
        assert api.connection.list() == []
        assert api.channel.list() == []
        api.queue.unbind("q", "x", "k.#", "storm", "k.%23")
        api.queue.delete("q", "storm")
        api.exchange.delete("x", "storm")
        api.user.delete("storm")
        api.virtual_host.delete("storm")
