"""Half messages, numbers and windows as an application meets them, over kills."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from hashlib import sha256

import pika
import pika.exceptions
import pytest

from tests.harness.broker import BrokerProcess
from tests.system.test_encryption import leveret

SALT = b"salt"
SECRET_HASH = b64encode(SALT + sha256(SALT + b"secret").digest()).decode()


def connected(broker):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.confirm_delivery()
    return connection, channel


def prepare(channel, id_, body=b"x", queue="q", **headers):
    properties = pika.BasicProperties(
        delivery_mode=2, message_id=id_, headers={"x-prepare": True, "mine": id_, **headers}
    )
    channel.basic_publish("", queue, body, properties)


def decide(channel, command, id_, **options):
    """The outcome, as the reply says."""
    reply = channel.queue_declare("", exclusive=True).method.queue
    properties = pika.BasicProperties(headers={"x-prepare-id": id_}, reply_to=reply)
    channel.basic_publish("leveret.prepare", command, b"", properties, **options)
    _, answered, body = channel.basic_get(reply, auto_ack=True)
    assert answered.content_type == "application/json"
    told = json.loads(body)
    assert told["id"] == id_
    return told["outcome"]


def drained(channel, queue="q"):
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


@pytest.mark.covers("C-208")
@pytest.mark.usefixtures("processes")
def test_who_does_not_decide_is_asked(tmp_path):
    with BrokerProcess(tmp_path / "data", prepared_checks_max=3) as broker:
        connection, channel = connected(broker)
        for queue in ("q", "checks"):
            channel.queue_declare(queue, durable=True)
        prepare(channel, "a", **{"x-check-queue": "checks", "x-check-after": 300})
        prepare(channel, "b", **{"x-check-queue": "checks", "x-check-after": 3_600_000})
        time.sleep(0.5)
        connection.close()
        broker.kill()
        broker.start()
        connection, channel = connected(broker)
        time.sleep(2.0)
        asked = []
        while (got := channel.basic_get("checks", auto_ack=True))[0] is not None:
            headers = got[1].headers
            assert headers["x-prepare-id"] == headers["mine"] == "a"
            assert headers["x-prepare-routing-key"] == "q"
            asked.append(headers["x-check-attempt"])
        assert asked == [1, 2, 3]
        assert decide(channel, "commit", "a") == "committed"
        assert decide(channel, "rollback", "b") == "rolled back"
        assert drained(channel) == [b"x"]
        connection.close()


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x-prepare": "yes"}, "'x-prepare' is neither true nor false"),
        ({"x-prepare": True}, "neither 'x-prepare-id' nor a message-id"),
        ({"x-prepare": True, "x-prepare-id": 1}, "'x-prepare-id' is not a text"),
        (
            {"x-prepare": True, "x-prepare-id": "a", "x-check-after": 5},
            "there is no queue to send checks to",
        ),
        ({"x-prepare": True, "x-prepare-id": "a", "x-check-queue": "none"}, "no queue 'none'"),
        ({"x-prepare": True, "x-prepare-id": "a", "x-delay": 5}, "cannot be delayed"),
        ({"x-producer-id": "p", "x-producer-epoch": 0}, "'x-producer-seq' is not a number"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_stored(shared, headers, text):
    connection, channel = connected(shared)
    properties = pika.BasicProperties(headers=headers)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=text):
        channel.basic_publish("", "q", b"x", properties)
    connection.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory, processes):
    with BrokerProcess(tmp_path_factory.mktemp("once") / "data") as broker:
        connection, channel = connected(broker)
        channel.queue_declare("q", durable=True)
        connection.close()
        yield broker


def number(channel, sequence, epoch=0, producer="p", body=None, **options):
    headers = {"x-producer-id": producer, "x-producer-epoch": epoch, "x-producer-seq": sequence}
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    body = f"{epoch}.{sequence}".encode() if body is None else body
    channel.basic_publish("", "q", body, properties, **options)


def test_numbers(shared):
    connection, channel = connected(shared)
    number(channel, 0)
    number(channel, 1)
    number(channel, 1)
    number(channel, 0)
    with pytest.raises(pika.exceptions.NackError):
        number(channel, 3)
    number(channel, 2)
    number(channel, 0, epoch=1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="has begun epoch 1"):
        number(channel, 3)
    channel = connection.channel()
    assert drained(channel) == [b"0.0", b"0.1", b"0.2", b"1.0"]
    number(channel, 5, epoch=1)  # without confirms
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="expected sequence 1, got 5"):
        channel.queue_declare("q", passive=True)
    connection.close()


def test_a_number_that_comes_back_is_expected_again(shared):
    connection, channel = connected(shared)
    headers = {"x-producer-id": "u", "x-producer-epoch": 0, "x-producer-seq": 0}
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(
            "", "nowhere", b"x", pika.BasicProperties(headers=headers), mandatory=True
        )
    with pytest.raises(pika.exceptions.NackError):
        number(channel, 1, producer="u")
    number(channel, 0, producer="u")
    number(channel, 1, producer="u")
    assert drained(channel) == [b"0.0", b"0.1"]
    connection.close()


def test_a_full_queue_refuses_one_message_and_not_its_neighbours(shared):
    connection, channel = connected(shared)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, arguments=arguments)
    channel.exchange_declare("w", "direct", durable=True, arguments={"x-dedup-window": 60_000})
    for queue in ("full", "q"):
        channel.queue_bind(queue, "w", queue)

    def publish(queue, id_):
        channel.basic_publish("w", queue, b"x", pika.BasicProperties(message_id=id_))

    publish("full", "1")
    with pytest.raises(pika.exceptions.NackError):
        publish("full", "2")
    publish("q", "3")
    publish("full", "1")
    assert drained(channel, "full") == [b"x"]
    publish("full", "2")
    assert drained(channel, "full") == [b"x"]
    assert drained(channel) == [b"x"]
    connection.close()


def test_exchanges_have_windows_of_their_own(shared):
    connection, channel = connected(shared)
    channel.exchange_declare("v", "fanout", durable=True, arguments={"x-dedup-window": True})
    channel.queue_bind("q", "v")
    channel.exchange_declare("plain", "fanout", durable=True)
    channel.queue_bind("q", "plain")
    for exchange in ("v", "v", "plain", "plain"):
        channel.basic_publish(exchange, "", b"x", pika.BasicProperties(message_id="same"))
    channel.basic_publish("v", "", b"no key")
    channel.basic_publish("v", "", b"no key")
    assert drained(channel) == [b"x", b"x", b"x", b"no key", b"no key"]
    for wrong in (0, -1, 86_400_001, "5m", False):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="invalid arg"):
            channel.exchange_declare("bad", "fanout", arguments={"x-dedup-window": wrong})
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="invalid arg"):
            channel.queue_declare("bad", arguments={"x-dedup-window": wrong})
        channel = connection.channel()
    connection.close()


@pytest.mark.usefixtures("processes")
def test_a_question_is_a_publish_of_the_publishers_own(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection, channel = connected(broker)
        for queue in ("a.x", "b.q"):
            channel.queue_declare(queue, durable=True)
        channel.exchange_declare("a.x", "fanout")
        for command in (
            ("user", "add", "alice", "--password-hash", SECRET_HASH),
            ("permission", "set", "alice", "^a", r"^a\.", "^a"),
        ):
            leveret(broker.data, *command)
        hers = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", broker.port, credentials=pika.PlainCredentials("alice", "secret")
            )
        )
        half = {"x-prepare": True, "x-check-queue": "b.q", "x-check-after": 50}
        properties = pika.BasicProperties(message_id="h", headers=half)
        her_channel = hers.channel()
        her_channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            her_channel.basic_publish("a.x", "", b"x", properties)
        assert refused.value.reply_text == (
            "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' "
            "refused for user 'alice'"
        )
        hers.close()
        connection.close()


@pytest.mark.usefixtures("processes")
def test_an_id_that_another_message_waits_under_is_refused(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        connection, channel = connected(broker)
        for queue in ("q", "other"):
            channel.queue_declare(queue, durable=True)
        prepare(channel, "a")
        prepare(channel, "a")  # sent again
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="prepared message 'a'"):
            prepare(channel, "a", queue="other")
        connection.close()
