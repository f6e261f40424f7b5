"""aio-pika's robust clients, each on a node that it keeps to.

`python -m … DIRECTORY PORT,PORT,… CLIENT…`
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aio_pika

from tests.harness.cluster_load.journal import (
    ACKED,
    CONFIRMED,
    CONNECTED,
    GOT,
    REFUSED,
    REJECTED,
    SENT,
    STRANGE,
    Journal,
)
from tests.harness.cluster_load.topology import (
    CONNECTING_SECONDS,
    GROUP,
    HEARTBEAT_SECONDS,
    LATE,
    MAILS,
    PLAIN,
    VIEWS,
    body_of,
    parse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection

log = logging.getLogger(__name__)

BATCH = 20
PAUSE_SECONDS = 0.25
CONFIRM_SECONDS = 15.0
RECONNECT_SECONDS = 0.5
PREFETCH = 30
END_SECONDS = 20.0

Work = Coroutine[Any, Any, None] if TYPE_CHECKING else Any


async def connect(port: int) -> AbstractRobustConnection:
    url = f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat={HEARTBEAT_SECONDS}"
    return await aio_pika.connect_robust(
        f"{url}&reconnect_interval={RECONNECT_SECONDS}&fail_fast=0", timeout=CONNECTING_SECONDS
    )


async def publish(name: str, journal: Journal, port: int, stopping: asyncio.Event) -> None:
    """Publish batches, and wait for all confirms of one."""
    connection = await connect(port)
    channel = await connection.channel()
    number = 0

    async def one(number: int) -> None:
        journal.write(SENT, name, number, 0)
        message = aio_pika.Message(body_of(name, number), delivery_mode=2)
        try:
            await channel.default_exchange.publish(message, PLAIN, timeout=CONFIRM_SECONDS)
        except aio_pika.exceptions.DeliveryError as error:
            journal.write(REFUSED, name, number, type(error).__name__)
        except Exception as error:  # noqa: BLE001  # not confirmed, whatever it is
            journal.error(error)
        else:
            journal.write(CONFIRMED, name, number)

    while not stopping.is_set():
        await asyncio.gather(*(one(number + more) for more in range(1, BATCH + 1)))
        number += BATCH
        await asyncio.sleep(PAUSE_SECONDS)
    await connection.close()


async def consume(
    queues: tuple[str, ...],
    arguments: dict[str, Any],
    _name: str,
    journal: Journal,
    port: int,
    stopping: asyncio.Event,
) -> None:
    """Acknowledge what comes, or reject it once, as is agreed for mails."""
    connection = await connect(port)

    async def take(queue: str, message: AbstractIncomingMessage) -> None:
        found = parse(message.body)
        retries = message.headers.get("x-retry-count", 0)
        place = message.headers.get("x-offset", -1)
        more = queue, found.more, int(bool(message.redelivered)), place, retries
        journal.write(GOT, *found[:2], *more)
        try:
            if queue == MAILS and is_rejected_first(found.number) and not retries:
                await message.reject(requeue=False)
                journal.write(REJECTED, *found[:2], queue, found.more)
            else:
                await message.ack()
                journal.write(ACKED, *found[:2], queue, found.more)
        except Exception as error:  # noqa: BLE001  # it comes again
            journal.error(error)

    for queue in queues:
        channel = await connection.channel()
        await channel.set_qos(PREFETCH)
        declared = await channel.get_queue(queue)
        await declared.consume(partial(take, queue), arguments=arguments)
    journal.write(CONNECTED, "-", port)
    await stopping.wait()
    await connection.close()


def is_rejected_first(number: int) -> bool:
    """Whether the consumer rejects a mail the first time."""
    return number % 3 == 0


CLIENTS: dict[str, Callable[..., Work]] = {
    "aio-pika": publish,
    "aio-pika-consumer": partial(consume, (LATE, MAILS), {}),
    "aio-pika-reader": partial(
        consume, (VIEWS,), {"x-consumer-group": GROUP, "x-stream-offset": "first"}
    ),
}


async def run(directory: Path, ports: list[int], names: list[str]) -> bool:
    """Run clients, each on another node, until the input ends; return whether they ended, too."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    works = []
    for place, name in enumerate(names):
        journal = Journal(directory, name)

        async def work(name: str = name, journal: Journal = journal, place: int = place) -> None:
            try:
                await CLIENTS[name](name, journal, ports[place % len(ports)], stopping)
            except Exception as error:
                log.exception("%s has ended", name)
                journal.error(error, kind=STRANGE)

        works.append(loop.create_task(work()))
    await loop.run_in_executor(None, sys.stdin.read)
    stopping.set()
    _, hung = await asyncio.wait(works, timeout=END_SECONDS)
    for task in hung:
        task.print_stack(file=sys.stdout)
    return not hung


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    directory, ports, *names = sys.argv[1:]
    good = asyncio.run(run(Path(directory), [int(port) for port in ports.split(",")], names))
    sys.stdout.flush()
    os._exit(not good)


if __name__ == "__main__":
    main()
