"""A shop at work on a node, for pictures of the web UI: its applications, its troubles, its people.

Everything that is to be seen comes about as it would in use: applications publish and consume, at
rates that rise and fall, one of them rejects some messages, another one is too slow; Celery sends
tasks with an ETA; administrators change things by the command line and by HTTP. All of it ends
when the shop is closed, or after `OPEN_SECONDS_MAX`.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pika
import pika.exceptions
from celery import Celery  # type: ignore[import-untyped]

from tests.support.http import HttpClient

if TYPE_CHECKING:
    from interop_tests.brokers import LeveretBroker

OPEN_SECONDS_MAX = 900
TICK_SECONDS = 0.1
WAVE_SECONDS = 37  # of the rates; no multiple of the sampling's five seconds
ORDERS_PER_SECOND = 80
WORKERS = {"webshop": "web shop", "payments": "payment service", "mailer": "mailer"}
WORKERS |= {"warehouse": "warehouse", "analytics": "analytics"}
TAGS = {"anna": "administrator", "tom": "monitoring", "lea": "management,policymaker"}
CITIES = ("eu.berlin", "eu.paris", "us.boston", "asia.osaka")
QUEUES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "orders.created": (["order.created.#"], {"x-queue-type": "quorum"}),
    "orders.paid": (["order.paid.#"], {"x-max-length": 100_000}),
    "orders.shipped": (["order.shipped.#"], {}),
    "payments": (
        ["order.created.#"],
        {"x-dead-letter-topic": True, "x-retry-delays": [600_000, 3_600_000]},
    ),
    "payments.refunds": (["order.returned.#"], {"x-dead-letter-topic": True}),
    "mail.confirmation": (["order.paid.#"], {"x-message-ttl": 3_600_000}),
    "mail.newsletter": ([], {"x-max-priority": 5}),
    "invoices": (["order.paid.eu.#"], {}),
    "stock.changes": (["order.paid.#", "order.returned.#"], {}),
    "celery": ([], {"x-celery-eta": True}),
    "reports.daily": ([], {}),
    "images.resize": ([], {}),
}
RULES = {
    "invoices-wait": {
        "condition": "backlog",
        "queues": "^invoices$",
        "above": 500,
        "for_seconds": 0,
        "severity": "critical",
        "summary": "Invoices are not written: is the accounting service up?",
    },
    "nobody-consumes": {"condition": "no_consumers", "queues": "^reports", "for_seconds": 5},
    "payments-fail": {"condition": "dead_letters", "queues": "^payments", "above": 100},
    "mail-slow": {"condition": "age_seconds", "queues": "^mail", "above": 300, "for_seconds": 60},
}


class Shop:
    """The shop at a broker; `client` asks its HTTP API as an administrator."""

    def __init__(self, broker: LeveretBroker) -> None:
        self._broker = broker
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._random = random.Random(7)
        self._closes_at = time.monotonic() + OPEN_SECONDS_MAX
        self.client = HttpClient(f"127.0.0.1:{broker.http_port}/api")
        self.client.headers["content-type"] = "application/json"
        self._hire()
        self._furnish()
        self._plan()

    def open(self) -> None:
        """Let everybody work."""
        for work in (self._sell, self._charge, self._mail, self._ship, self._analyse):
            thread = threading.Thread(target=self._until_closed, args=(work,))
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Send everybody home."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self.client.close()

    # -- before it opens

    def _hire(self) -> None:
        self._put("/vhosts/staging", {"description": "What is tried out before it is sold"})
        for name in WORKERS:
            self._put(f"/users/{name}", {"password": name, "tags": ""})
            self._permit(name, "/")
        for name, tags in TAGS.items():
            self._put(f"/users/{name}", {"password": name, "tags": tags})
            self._permit(name, "/")
        self._permit("lea", "staging")
        self._put("/user-limits/webshop/max-connections", {"value": 50})
        self._put("/vhost-limits/staging/max-queues", {"value": 100})
        policy = {"pattern": "^orders\\.", "definition": {"max-length": 1_000_000}}
        self._put("/policies/%2F/orders", {**policy, "apply-to": "queues", "priority": 1})
        policy = {"pattern": "^(invoices|reports)", "definition": {"message-ttl": 604_800_000}}
        self._put("/policies/%2F/a-week", {**policy, "apply-to": "queues", "priority": 0})
        self._put("/users/guest-of-old", {"password": "x", "tags": "monitoring"})
        self._done(self.client.delete("/users/guest-of-old"))

    def _permit(self, user: str, vhost: str) -> None:
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        path = f"/permissions/{vhost.replace('/', '%2F')}/{user}"
        self._put(path, everything)

    def _furnish(self) -> None:
        with self._connected("guest", "setup") as channel:
            channel.exchange_declare("shop", "topic", durable=True)
            channel.exchange_declare("audit", "fanout", durable=True)
            channel.exchange_declare("images", "x-consistent-hash", durable=True)
            channel.exchange_bind("audit", "shop", "order.#")
            for name, (keys, arguments) in QUEUES.items():
                channel.queue_declare(name, durable=True, arguments=arguments)
                for key in keys:
                    channel.queue_bind(name, "shop", key)
            stream = {"x-queue-type": "stream", "x-max-age": "7D"}
            channel.queue_declare("events", durable=True, arguments=stream)
            channel.queue_bind("events", "audit")
            channel.queue_bind("images.resize", "images", "1")
            for number in range(1, 9):
                channel.queue_declare(f"search.index.{number}", durable=True)
            for number in range(300):
                channel.basic_publish("", "mail.newsletter", json.dumps({"to": number}).encode())
            for number in range(40):
                body = json.dumps({"report": f"sales of day {number + 1}"}).encode()
                channel.basic_publish("", "reports.daily", body)
        for name, rule in RULES.items():
            self._put(f"/leveret/alert-rules/%2F/{name}", rule)
        self._done(self.client.put("/leveret/queues/%2F/images.resize/pause"))

    def _plan(self) -> None:
        """Schedule messages: reminders at all times of the next day, some again and again."""
        with self._connected("webshop", "planner") as channel:
            for number in range(180):
                hours = self._random.choice((2, 5, 9, 9, 20)) + self._random.gauss(0, 0.8)
                delay_ms = int(max(hours, 0.2) * 3_600_000)
                headers = {"x-delay": delay_ms, "x-schedule-id": f"reminder {number + 1}"}
                body = json.dumps({"remind": f"customer {number * 37 % 900}"}).encode()
                properties = pika.BasicProperties(headers=headers, delivery_mode=2)
                channel.basic_publish("shop", "mail.reminder", body, properties)
            for name, repetition in (
                ("nightly report", {"x-cron": "30 2 * * *"}),
                ("stock check", {"x-repeat-every": 900_000, "x-delay": 900_000}),
            ):
                headers = {**repetition, "x-schedule-id": name}
                channel.basic_publish(
                    "", "reports.daily", b"{}", pika.BasicProperties(headers=headers)
                )
        app = Celery("shop", broker=self._broker.address.url(), set_as_current=False)
        queue = {"routing_key": "celery", "queue_arguments": QUEUES["celery"][1]}
        app.conf.update(task_default_queue="celery", task_queues={"celery": queue})
        with app.connection_for_write() as connection:
            for number in range(24):
                kwargs = {"template": ("winter", "birthday", "thanks")[number % 3]}
                app.send_task(
                    "mail.send_offer",
                    args=(1000 + 37 * number,),
                    kwargs=kwargs,
                    countdown=0 if number < 4 else 900 * number,
                    connection=connection,
                )

    # -- those who work there

    def _until_closed(self, work: Callable[[], None]) -> None:
        """A node that stops, or a connection that an administrator closes, ends the work."""
        with contextlib.suppress(pika.exceptions.AMQPError):
            work()

    def _sell(self) -> None:
        with self._connected("webshop", "web shop") as channel:
            channel.confirm_delivery()
            number = 0
            for orders in self._ticks(channel, ORDERS_PER_SECOND):
                for _ in range(orders):
                    number += 1
                    self._publish(channel, "order.created", number)
                    if number % 60 == 0:
                        self._publish(channel, "order.returned", number)

    def _charge(self) -> None:
        """Takes money; one card in fifty is refused."""
        with self._connected("payments", "payment service") as channel:
            channel.basic_qos(prefetch_count=50)

            def charge(_: Any, method: Any, properties: Any, body: bytes) -> None:
                number = json.loads(body)["order"]
                if number % 50 == 0:
                    channel.basic_reject(method.delivery_tag, requeue=False)
                    return
                channel.basic_ack(method.delivery_tag)
                self._publish(channel, "order.paid", number)

            channel.basic_consume("payments", charge, consumer_tag="charge")
            with self._connected("payments", "refunds") as refunds:
                for _ in self._ticks(channel, 0):
                    method, _, _ = refunds.basic_get("payments.refunds")
                    if method is not None:  # no refund without a receipt
                        refunds.basic_reject(method.delivery_tag, requeue=False)

    def _mail(self) -> None:
        """Is slower than the others, and catches up between the waves."""
        with self._connected("mailer", "mailer") as channel:
            taken: deque[int] = deque()

            def take(_: Any, method: Any, _properties: Any, _body: bytes) -> None:
                taken.append(method.delivery_tag)

            channel.basic_qos(prefetch_count=100)
            channel.basic_consume("mail.confirmation", take, consumer_tag="confirm")
            channel.basic_qos(prefetch_count=20)  # one letter to all, which takes its time
            channel.basic_consume("mail.newsletter", lambda *_: None, consumer_tag="newsletter")
            for most in self._ticks(channel, 0.96 * ORDERS_PER_SECOND, shift=0.4):
                for _ in range(min(most, len(taken))):
                    channel.basic_ack(taken.popleft())

    def _ship(self) -> None:
        with self._connected("warehouse", "warehouse") as channel:
            channel.basic_qos(prefetch_count=200)
            for name in ("orders.paid", "orders.created", "stock.changes"):
                channel.basic_consume(name, _acknowledge, consumer_tag=f"{name} reader")
            for _ in self._ticks(channel, 0):
                pass

    def _analyse(self) -> None:
        with self._connected("analytics", "analytics") as channel:
            channel.basic_qos(prefetch_count=500)
            arguments = {"x-stream-offset": "first"}
            channel.basic_consume("events", _acknowledge, consumer_tag="sums", arguments=arguments)
            for _ in self._ticks(channel, 0):
                pass

    def _publish(self, channel: Any, key: str, number: int) -> None:
        city = CITIES[number % len(CITIES)]
        body = {"order": number, "customer": number * 37 % 900, "city": city.partition(".")[2]}
        properties = pika.BasicProperties(
            message_id=f"{key.rpartition('.')[2]}-{number}",
            content_type="application/json",
            headers={"shop": city.partition(".")[0], "items": 1 + number % 5},
            delivery_mode=2,
        )
        channel.basic_publish("shop", f"{key}.{city}", json.dumps(body).encode(), properties)

    def _ticks(self, channel: Any, per_second: float, shift: float = 0.0) -> Any:
        """Ten times a second, while the shop is open: how much there is to do, in waves."""
        owed, before = 0.0, time.monotonic()
        while not self._closing.is_set() and time.monotonic() < self._closes_at:
            now = time.monotonic()
            turn, passed, before = now / WAVE_SECONDS + shift, now - before, now
            wave = 1 + 0.6 * math.sin(2 * math.pi * turn) + 0.2 * math.sin(11 * turn)
            owed += max(wave, 0.1) * per_second * passed
            due, owed = int(owed), owed - int(owed)
            yield due
            channel.connection.process_data_events(TICK_SECONDS)

    @contextlib.contextmanager
    def _connected(self, user: str, name: str) -> Any:
        """A channel of a user's own connection."""
        parameters = pika.ConnectionParameters(
            self._broker.address.host,
            self._broker.address.port,
            credentials=pika.PlainCredentials(user, user),
            client_properties={"connection_name": name},
        )
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    # -- what administrators do

    def _put(self, path: str, body: dict[str, Any]) -> None:
        self._done(self.client.put(path, json=body))

    @staticmethod
    def _done(answer: httpx.Response) -> None:
        assert answer.is_success, (answer.request.url, answer.text)


def _acknowledge(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
    channel.basic_ack(method.delivery_tag)
