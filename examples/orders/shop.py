"""The application: customers place orders, a worker takes payments, and reminders come later.

                                 ┌─► orders.placed     stream: everything, for Spark
    publisher ──► exchange ──────┤
                  `orders`       └─► orders.payments   work: retried, then orders.payments.dlq
    publisher ──► orders.reminders   delayed: delivered some seconds later

Nothing here is special to Leveret but arguments and headers: any AMQP client can do it.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pika

if TYPE_CHECKING:
    from threading import Event

    from pika.adapters.blocking_connection import BlockingChannel

__all__ = ["Shop"]

EXCHANGE = "orders"
PLACED = "orders.placed"
PAYMENTS = "orders.payments"
REMINDERS = "orders.reminders"
QUEUES = {
    PLACED: {"x-queue-type": "stream", "x-partitions": 2},
    # A failed payment is tried again after 0.2 s and after 1 s; then it is a dead letter.
    PAYMENTS: {"x-retry-delays": [200, 1000], "x-dead-letter-topic": True},
    REMINDERS: {},
}
COUNTRIES = {"de": 5, "fr": 3, "it": 2, "at": 1}  # with their weights
EXPRESS_SHARE = 0.2
ORDERS_PER_SECOND = 40
REMINDER_MS = 3000
BROKEN_SHARE = 0.03  # of cards that never work
BUSY_SHARE = 0.1  # of payments whose first attempt fails


class Shop:
    """One shop on a broker. `counts` says what it has done so far."""

    def __init__(self, parameters: pika.ConnectionParameters, seed: int = 1) -> None:
        self.parameters = parameters
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)

    def declare(self) -> None:
        """Declare the exchange and the queues."""
        with pika.BlockingConnection(self.parameters) as connection:
            channel = connection.channel()
            channel.exchange_declare(EXCHANGE, "topic", durable=True)
            for name, arguments in QUEUES.items():
                channel.queue_declare(name, durable=True, arguments=arguments)
            for name in (PLACED, PAYMENTS):
                channel.queue_bind(name, EXCHANGE, "order.#")

    def sell(self, seconds: float) -> None:
        """Place orders for some seconds, each confirmed by the broker."""
        until = time.monotonic() + seconds
        with pika.BlockingConnection(self.parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while time.monotonic() < until:
                self._place_order(channel)
                connection.sleep(self._random.expovariate(ORDERS_PER_SECOND))

    def _place_order(self, channel: BlockingChannel) -> None:
        chance, number = self._random, self.counts["placed"]
        country = chance.choices(list(COUNTRIES), list(COUNTRIES.values()))[0]
        is_express = chance.random() < EXPRESS_SHARE
        order = {
            "order": number,
            "country": country,
            "amount": round(chance.lognormvariate(3, 0.8), 2),
            "card": chance.choices(
                ("broken", "busy", "good"),
                (BROKEN_SHARE, BUSY_SHARE, 1 - BROKEN_SHARE - BUSY_SHARE),
            )[0],
        }
        headers = {
            "x-tags": ["express" if is_express else "standard", country],
            "x-partition-key": f"customer-{chance.randrange(1000)}",  # his orders stay in order
        }
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            headers=headers,
            message_id=f"order-{number}",
        )
        channel.basic_publish(EXCHANGE, f"order.{country}", json.dumps(order).encode(), properties)
        self.counts["placed"] += 1
        if is_express:
            later = pika.BasicProperties(delivery_mode=2, headers={"x-delay": REMINDER_MS})
            channel.basic_publish("", REMINDERS, b"has order %d arrived?" % number, later)
            self.counts["reminders"] += 1

    def work(self, stopping: Event) -> None:
        """Take payments until told to stop. What fails is rejected; the broker does the rest."""
        with pika.BlockingConnection(self.parameters) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=50)
            for method, properties, body in channel.consume(PAYMENTS, inactivity_timeout=0.2):
                if stopping.is_set():
                    return
                if method is None:
                    continue
                retries = (properties.headers or {}).get("x-retry-count", 0)
                card = json.loads(body)["card"]
                if card == "broken" or (card == "busy" and not retries):
                    channel.basic_reject(method.delivery_tag, requeue=False)
                    self.counts["failed attempts"] += 1
                else:
                    channel.basic_ack(method.delivery_tag)
                    self.counts["paid"] += 1
