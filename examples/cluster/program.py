"""Publishes to a cluster, whatever happens to a node, and counts what is there at the end.

    python examples/cluster/program.py [--port 5672]

Sixty numbers, two a second: time enough to kill the node that leads. A number counts as published
when it was confirmed; one that was not is published again, and may then be there twice.
"""

from __future__ import annotations

import argparse
import time

import pika
from pika.exceptions import AMQPError

QUEUE = "numbers"
COUNT = 60
PAUSE_SECONDS = 0.5
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(nodes: list[pika.ConnectionParameters], number: int) -> int:
    """Publish numbers from one on over one connection; return the first that is not confirmed."""
    try:
        with pika.BlockingConnection(nodes) as connection:
            channel = connection.channel()
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
            channel.confirm_delivery()
            while number < COUNT:
                channel.basic_publish("", QUEUE, str(number).encode(), PERSISTENT)
                print(f"{number} is confirmed", flush=True)
                number += 1
                time.sleep(PAUSE_SECONDS)
    except AMQPError as error:
        print(f"connecting again, because of {error!r}", flush=True)
    return number


def read_all(nodes: list[pika.ConnectionParameters]) -> set[int]:
    """Take all numbers out of the queue, and return them."""
    found = set()
    with pika.BlockingConnection(nodes) as connection:
        channel = connection.channel()
        while True:
            method, _, body = channel.basic_get(QUEUE, auto_ack=True)
            if method is None:
                return found
            found.add(int(body))


def main() -> None:
    """Publish all numbers, and say how many of them are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=5672, help="AMQP port of the first node")
    port = parser.parse_args().port
    # pika tries the addresses one after the other, and then all of them again.
    nodes = [
        pika.ConnectionParameters("localhost", port + node, connection_attempts=10, retry_delay=1)
        for node in range(3)
    ]
    number = 0
    while number < COUNT:
        number = publish(nodes, number)
    print(f"{len(read_all(nodes))} of {COUNT} confirmed numbers are there")


if __name__ == "__main__":
    main()
