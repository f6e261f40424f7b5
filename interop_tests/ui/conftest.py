"""A node that has something to show, and a browser that complains of whatever is not right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pika
import pytest

from interop_tests.brokers import LeveretBroker
from interop_tests.ui.window import ARGUMENTS, CHROMIUM, DESK, PHONE, View

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "<script>alert(1)</script>"


class Site:
    """A node's web UI, and what is in the node."""

    def __init__(self, broker: LeveretBroker) -> None:
        assert broker.process is not None
        found = re.search(r"\bhttp=([^\s]+)", broker.process.log.read_text())
        assert found
        self.address = f"http://{found[1]}"
        parameters = pika.URLParameters(broker.address.url())
        parameters.client_properties = {"connection_name": "order service"}
        self.connection = pika.BlockingConnection(parameters)
        self.channel = self.connection.channel()
        self._fill()

    def _fill(self) -> None:
        channel = self.channel
        channel.exchange_declare("orders", "topic", durable=True)
        channel.exchange_declare("audit", "fanout", durable=True)
        channel.exchange_bind("audit", "orders", "#")
        for name, key, arguments in (
            ("orders.created", "order.created.#", {}),
            ("orders.paid", "order.paid.*", {"x-max-length": 100_000}),
            ("orders.shipped", "order.shipped", {"x-queue-type": "quorum"}),
            ("mail.confirmation", "order.paid.*", {"x-message-ttl": 3_600_000}),
        ):
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.queue_bind(name, "orders", key)
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind("events", "audit")
        for number in range(60):
            channel.queue_declare(f"worker.{number:02}", durable=True)
        channel.queue_bind("worker.00", "orders", HOSTILE)
        for number in range(300):
            key = ("order.created.eu", "order.paid.card", "order.shipped")[number % 3]
            channel.basic_publish("orders", key, b"x" * 200)
        channel.basic_qos(prefetch_count=20)
        channel.basic_consume("mail.confirmation", lambda *_: None, consumer_tag="mailer")
        self.connection.process_data_events(0)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all: tests change things of their own."""
    broker = LeveretBroker(tmp_path_factory.mktemp("ui"))
    broker.start()
    try:
        started = Site(broker)
        yield started
        started.connection.close()
    finally:
        broker.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, without a profile."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing (make interop)")
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed (make interop)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(
    params=[("light", DESK), ("dark", DESK), ("light", PHONE)], ids=["light", "dark", "phone"]
)
def view(request: pytest.FixtureRequest, chromium: Any, site: Site) -> Iterator[View]:
    """A window of each kind; at the end nothing is to be complained of."""
    scheme, viewport = request.param
    opened = View(chromium, site.address, scheme, viewport)
    yield opened
    opened.context.close()
    assert opened.complaints == []


@pytest.fixture
def desk(chromium: Any, site: Site) -> Iterator[View]:
    """A window on a desk, signed in."""
    opened = View(chromium, site.address, "light", DESK)
    opened.sign_in()
    yield opened
    opened.context.close()
    assert opened.complaints == []
