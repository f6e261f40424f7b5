"""A real client's messages are counted exactly, and the week's samples survive a restart."""

from __future__ import annotations

import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")


def ask(process: BrokerProcess, path: str) -> dict:
    with process.http_client("/api/") as client:
        return client.get(path).raise_for_status().json()


def wait_for(process: BrokerProcess, path: str, is_so) -> dict:
    wait_until(lambda: is_so(ask(process, path)), path)
    return ask(process, path)


def use(channel) -> None:
    """40 published with confirms, one of them dropped and one returned; 38 are taken."""
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for _ in range(38):
        channel.basic_publish("", "q", b"x" * 50, pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "nowhere", b"x" * 500)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"x" * 5000, mandatory=True)
    got, _, _ = channel.basic_get("q")
    channel.basic_ack(got.delivery_tag)
    channel.basic_get("q", auto_ack=True)
    got, _, _ = channel.basic_get("q")
    channel.basic_nack(got.delivery_tag, requeue=True)
    taken = 0
    for method, _, _ in channel.consume("q", inactivity_timeout=1):
        if method is None:
            break
        taken += 1
        channel.basic_ack(method.delivery_tag)
    assert taken == 36
    channel.cancel()
    assert channel.basic_get("q") == (None, None, None)


@pytest.mark.smoke
def test_a_session_is_counted_exactly(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True, statistics_interval_ms=1000) as process:
        parameters = pika.ConnectionParameters("127.0.0.1", process.port)
        connection = pika.BlockingConnection(parameters)
        use(connection.channel())
        handed_out = {
            "get": 2,
            "get_no_ack": 1,
            "get_empty": 1,
            "deliver": 36,
            "deliver_no_ack": 0,
            "deliver_get": 39,
            "redeliver": 1,
            "ack": 37,
        }
        published = {
            "publish": 40,
            "confirm": 40,
            "return_unroutable": 1,
            "drop_unroutable": 1,
        }
        overview = wait_for(process, "overview", lambda o: o["message_stats"]["ack"] == 37)
        for stats in (overview["message_stats"], ask(process, "vhosts/%2F")["message_stats"]):
            assert {name: stats[name] for name in (published | handed_out)} == (
                published | handed_out
            )
        queue = ask(process, "queues/%2F/q")["message_stats"]
        assert queue["publish"] == 38
        assert {name: queue[name] for name in handed_out} == handed_out
        exchange = ask(process, "exchanges/%2F/amq.default")["message_stats"]
        assert (exchange["publish_in"], exchange["publish_out"]) == (40, 38)
        (row,) = ask(process, "connections")
        assert row["recv_oct"] > 38 * 50
        connection.close()
        query = "overview?msg_rates_age=7200&msg_rates_incr=3600"
        wait_for(
            process,
            query,
            lambda o: o["message_stats"]["publish_details"]["samples"][0]["sample"] == 40,
        )
        process.stop()
        process.start()
        before = wait_for(
            process,
            query,
            lambda o: (
                "samples" in o["message_stats"]["publish_details"]
                and o["message_stats"]["publish_details"]["samples"][0]["sample"] == 40
            ),
        )
        assert before["message_stats"]["publish"] == 0
        process.check_untroubled()


@pytest.mark.covers("B-444")
def test_what_a_queue_holds_and_who_used_it_is_told(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True, statistics_interval_ms=1000) as process:
        parameters = pika.ConnectionParameters("127.0.0.1", process.port)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("x", "fanout")
        channel.queue_bind("q", "x")
        for seconds in (1_700_000_000, 1_700_000_060, 1_700_000_120):
            made = pika.BasicProperties(delivery_mode=2, timestamp=seconds)
            channel.basic_publish("x", "", b"x" * 1000, made)
        channel.basic_get("q", auto_ack=True)
        (row,) = ask(process, "queues?page=1")["items"]
        queue = ask(process, "queues/%2F/q")
        assert row["head_message_timestamp"] == 1_700_000_060
        assert queue["head_message_timestamp"] == 1_700_000_060
        assert queue["memory"] > 2000
        (delivered,) = queue["deliveries"]
        assert delivered["stats"]["get_no_ack"] == 1
        (published,) = ask(process, "exchanges/%2F/x")["incoming"]
        assert published["stats"]["publish"] == 3
        assert published["channel_details"] == delivered["channel_details"]
        node = wait_for(
            process,
            "nodes?node_stats_age=2&node_stats_incr=1",
            lambda nodes: len(nodes[0]["mem_used_details"].get("samples", ())) == 3,
        )[0]
        assert node["mem_used_details"]["samples"][0]["sample"] > 10_000_000
        assert node["disk_free_details"]["samples"][0]["sample"] > 0
        assert node["sockets_used"] == 1
        connection.close()
        process.stop()
        process.start()  # nothing is in memory: a page and one queue are read, a list is not
        (listed,) = ask(process, "queues")
        assert "head_message_timestamp" not in listed
        (row,) = ask(process, "queues?page=1")["items"]
        assert row["head_message_timestamp"] == 1_700_000_060
        (listed,) = ask(process, "queues")
        assert listed["head_message_timestamp"] == 1_700_000_060
        process.check_untroubled()
