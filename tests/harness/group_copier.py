"""Members of a group that copy what they get into another queue, each portion in a transaction."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aio_pika
import pika

from tests.harness.group_members import QUEUE, STAY_SECONDS, Party
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    import random

    from tests.harness.group_account import Account

TARGET = "copies"
GROUP = "copiers"
PREFETCH = 40
PORTION_MAX = 12
QUIET_SECONDS = 1.0  # until a copier that was stopped believes that nothing comes any more


class Copier(Party):
    """Leaves now and then with a portion that is published and not committed."""

    def __init__(self, account: Account, rng: random.Random) -> None:
        super().__init__(account, rng)
        self.is_steady = False
        self.committed = 0  # transactions whose commit was answered
        self.abandoned = 0

    def _arguments(self) -> dict[str, Any]:
        return {"x-consumer-group": GROUP, "x-stream-offset": "first"}

    def _stays(self, until: float, last: float) -> bool:
        if self.is_steady:
            return not self._stopping.is_set() or time.monotonic() - last < QUIET_SECONDS
        return not self._stopping.is_set() and time.monotonic() < until

    def _committed(self) -> None:
        self.committed += 1
        self.account.events()

    def _abandons(self) -> bool:
        abandons = not self.is_steady and self.rng.random() < 0.05
        self.abandoned += abandons
        return abandons


class PikaCopier(Copier):
    def work(self) -> None:
        while not self._stopping.is_set():
            connection = pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)
            )
            with connection:
                self._stay(connection)

    def _stay(self, connection: Any) -> None:
        until, last = time.monotonic() + self.rng.uniform(*STAY_SECONDS), time.monotonic()
        held: list[tuple[int, bytes]] = []
        channel = connection.channel()
        channel.tx_select()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(
            QUEUE,
            lambda _channel, method, _properties, body: held.append((method.delivery_tag, body)),
            arguments=self._arguments(),
        )
        while self._stays(until, last):
            connection.process_data_events(0.02)
            portion = held[: self.rng.randint(1, PORTION_MAX)]
            if not portion:
                continue
            del held[: len(portion)]
            last = time.monotonic()
            for _, body in portion:
                channel.basic_publish("", TARGET, body, pika.BasicProperties(delivery_mode=2))
            channel.basic_ack(portion[-1][0], multiple=True)
            if self._abandons():
                return
            channel.tx_commit()
            self._committed()


class AioPikaCopier(Copier):
    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        while not self._stopping.is_set():
            async with asyncio.timeout(2 * LIMIT_SECONDS):
                connection = await aio_pika.connect(
                    f"amqp://guest:guest@127.0.0.1:{self.port}/?heartbeat=0",
                    timeout=LIMIT_SECONDS,
                )
                async with connection:
                    await self._stay(connection)

    async def _stay(self, connection: Any) -> None:
        until, last = time.monotonic() + self.rng.uniform(*STAY_SECONDS), time.monotonic()
        held: list[Any] = []
        channel = await connection.channel(publisher_confirms=False)
        await channel.set_qos(PREFETCH)
        transaction = channel.transaction()
        await transaction.select()
        queue = await channel.get_queue(QUEUE, ensure=False)

        async def came(message: Any) -> None:
            held.append(message)

        await queue.consume(came, arguments=self._arguments())
        while self._stays(until, last):
            await asyncio.sleep(0.02)
            portion = held[: self.rng.randint(1, PORTION_MAX)]
            if not portion:
                continue
            del held[: len(portion)]
            last = time.monotonic()
            for message in portion:
                copy = aio_pika.Message(
                    message.body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
                )
                await channel.default_exchange.publish(copy, TARGET)
                await message.ack()
            if self._abandons():
                return
            await transaction.commit()
            self._committed()
