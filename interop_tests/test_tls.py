"""AMQP over TLS with aio-pika and pika, against certificates that `leveret certs` makes."""

from __future__ import annotations

import re
import ssl
import subprocess
from typing import TYPE_CHECKING

import aio_pika
import pika
import pytest

from interop_tests.brokers import LEVERET_COMMAND, LeveretBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGE_BODY = bytes(range(256)) * 8192  # 2 MiB
PATIENCE_SECONDS = 30


class TlsBroker(LeveretBroker):
    """Leveret with a TLS listener that knows users by their certificates."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.certificates = directory / "certificates"
        command = [*LEVERET_COMMAND, "certs", str(self.certificates)]
        subprocess.run(command, env=self.environment(), check=True, capture_output=True)

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "LEVERET_TLS_CERTIFICATE_FILE": str(self.certificates / "server.pem"),
            "LEVERET_TLS_KEY_FILE": str(self.certificates / "server-key.pem"),
            "LEVERET_TLS_CA_FILE": str(self.certificates / "ca.pem"),
            "LEVERET_TLS_PORT": "0",
            "LEVERET_TLS_VERIFY_PEER": "optional",
            "LEVERET_SSL_CERT_LOGIN_FROM": "common_name",
        }

    @property
    def tls_port(self) -> int:
        found = re.search(r"\bamqps=[^\s:]+:(\d+)", self.process.log.read_text())
        return int(found[1])

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        context.load_cert_chain(
            self.certificates / "client.pem", self.certificates / "client-key.pem"
        )
        return context


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    broker = TlsBroker(tmp_path_factory.mktemp("tls"))
    broker.start()
    yield broker
    broker.close()


async def test_aio_pika_over_amqps(broker: TlsBroker) -> None:
    connection = await aio_pika.connect_robust(
        f"amqps://guest:guest@localhost:{broker.tls_port}/", ssl_context=broker.context()
    )
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        bodies = [b"", b"small", LARGE_BODY, *(str(number).encode() for number in range(500))]
        for body in bodies:
            await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
        got = [await queue.get(no_ack=True, timeout=PATIENCE_SECONDS) for _ in bodies]
        assert [message.body for message in got] == bodies


async def test_aio_pika_does_not_trust_a_stranger(broker: TlsBroker) -> None:
    with pytest.raises(OSError, match=r"(?i)certificate verify failed"):
        await aio_pika.connect(
            f"amqps://guest:guest@localhost:{broker.tls_port}/",
            ssl_context=ssl.create_default_context(),
        )


def test_pika_is_known_by_its_certificate(broker: TlsBroker) -> None:
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            "localhost",
            broker.tls_port,
            ssl_options=pika.SSLOptions(broker.context(), "localhost"),
            credentials=pika.credentials.ExternalCredentials(),
        )
    )
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, LARGE_BODY)
    assert channel.basic_get(queue, auto_ack=True)[2] == LARGE_BODY
    connection.close()
