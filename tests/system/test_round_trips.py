"""A message there and back, by each feature, on a real node: what `make test` asks of processes."""

import time

import aio_pika
import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.support.waiting import LIMIT_SECONDS, wait_until

PERSISTENT = {"delivery_mode": 2}
pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def broker(processes, tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("node") / "data", http=True) as broker:
        yield broker
        broker.stop()
        broker.check_untroubled()


@pytest.fixture
def channel(broker):
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.fixture
def queue(channel, request):
    """Declare a queue with a test's name and its arguments."""
    name = request.node.name
    channel.queue_declare(name, durable=True, arguments=getattr(request, "param", None))
    return name


def publish(channel, queue, *bodies, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    properties = pika.BasicProperties(headers=named, **PERSISTENT)
    for body in bodies:
        channel.basic_publish("", queue, body, properties, mandatory=True)


def wait_for_one(channel, queue):
    """Return what `basic.get` does as soon as there is a message."""
    found = []

    def get():
        found[:] = channel.basic_get(queue)
        return found[0]

    wait_until(get, f"a message in {queue}")
    return found


def test_pika(channel, queue):
    bodies = [b"%d" % number for number in range(20)]
    publish(channel, queue, *bodies)
    channel.basic_qos(prefetch_count=3)
    taken = []
    for method, _, body in channel.consume(queue, inactivity_timeout=LIMIT_SECONDS):
        taken.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(taken) == len(bodies):
            break
    channel.cancel()
    assert taken == bodies
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


async def test_aio_pika(broker):
    connection = await aio_pika.connect_robust(port=broker.port, timeout=LIMIT_SECONDS)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("test_aio_pika", durable=True)
        message = aio_pika.Message(b"hello", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, queue.name, timeout=LIMIT_SECONDS)
        async with queue.iterator(timeout=LIMIT_SECONDS) as messages:
            taken = await anext(messages)
            assert taken.body == b"hello"
            await taken.ack()


def test_http(broker, channel, queue):
    with broker.http_client("/api") as api:
        body = {
            "properties": {},
            "routing_key": queue,
            "payload": "hello",
            "payload_encoding": "string",
        }
        sent = api.post("/exchanges/%2F/amq.default/publish", json=body)
        assert sent.json() == {"routed": True}
        assert channel.basic_get(queue, auto_ack=True)[2] == b"hello"
        assert queue in [each["name"] for each in api.get("/queues/%2F").json()]


def test_delayed_message(channel, queue):
    began = time.monotonic()
    publish(channel, queue, b"later", x_delay=300)
    publish(channel, queue, b"now")
    assert wait_for_one(channel, queue)[2] == b"now"
    assert wait_for_one(channel, queue)[2] == b"later"
    assert time.monotonic() - began >= 0.3  # never early


@pytest.mark.parametrize(
    "queue",
    [{"x-retry-delays": [50], "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}],
    indirect=True,
    ids=[""],
)
def test_retry_and_dead_letter(channel, queue):
    channel.queue_declare("dead", durable=True)
    publish(channel, queue, b"poison")
    for attempt in range(2):
        method, properties, _ = wait_for_one(channel, queue)
        assert (properties.headers or {}).get("x-retry-count", 0) == attempt
        channel.basic_reject(method.delivery_tag, requeue=False)
    _, properties, body = wait_for_one(channel, "dead")
    assert body == b"poison"
    assert properties.headers["x-death"][0]["queue"] == queue


@pytest.mark.parametrize("queue", [{"x-queue-type": "stream"}], indirect=True, ids=[""])
def test_consumer_groups(channel, queue):
    bodies = [b"0", b"1", b"2", b"3"]
    publish(channel, queue, *bodies)

    def read(group, count):
        arguments = {"x-consumer-group": group, "x-stream-offset": "first"}
        channel.basic_qos(prefetch_count=count)
        taken = []
        for method, _, body in channel.consume(
            queue, arguments=arguments, inactivity_timeout=LIMIT_SECONDS
        ):
            taken.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(taken) == count:
                break
        channel.cancel()
        return taken

    assert read("one", 2) == bodies[:2]
    assert read("other", 4) == bodies
    assert read("one", 2) == bodies[2:]


@pytest.mark.parametrize("queue", [{"x-max-priority": 5}], indirect=True, ids=[""])
def test_priorities(channel, queue):
    for priority in (1, 5, 3):
        properties = pika.BasicProperties(priority=priority, **PERSISTENT)
        channel.basic_publish("", queue, b"%d" % priority, properties)
    taken = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(3)]
    assert taken == [b"5", b"3", b"1"]


def test_transactions(broker, channel, queue):
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        transaction = connection.channel()
        transaction.tx_select()
        publish(transaction, queue, b"taken back")
        transaction.tx_rollback()
        publish(transaction, queue, b"kept")
        assert channel.basic_get(queue)[0] is None
        transaction.tx_commit()
    assert wait_for_one(channel, queue)[2] == b"kept"
    assert channel.basic_get(queue)[0] is None
