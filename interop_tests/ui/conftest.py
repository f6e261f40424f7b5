"""A node that has something to show, and a browser that complains of whatever is not right."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pika
import pytest

from interop_tests.brokers import REPOSITORY, LeveretBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 800}
SCREENSHOTS = os.environ.get("LEVERET_SCREENSHOTS")  # where to put pictures; none without it
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
        broker.stop()


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


class View:
    """One window; `complaints` are errors on its console and requests to other hosts."""

    def __init__(self, chromium: Any, site: Site, scheme: str, viewport: dict[str, int]) -> None:
        self.context = chromium.new_context(color_scheme=scheme, viewport=viewport)
        self.context.set_default_timeout(15_000)
        self.site = site
        self.scheme = scheme
        self.is_phone = viewport is PHONE
        self.complaints: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._watch)
        self.page.on("dialog", lambda dialog: dialog.accept())

    def _listen(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def _watch(self, request: Any) -> None:
        asked = urlsplit(request.url)
        if asked.scheme != "data" and asked.netloc != urlsplit(self.site.address).netloc:
            self.complaints.append(f"asked another host: {request.url}")

    def go(self, path: str) -> None:
        """Open a page and see that it is there."""
        answer = self.page.goto(self.site.address + path)
        assert answer is not None
        assert answer.status == 200, (path, answer.status)

    def sign_in(self) -> None:
        self.go("/login")
        self.page.get_by_label("User").fill("guest")
        self.page.get_by_label("Password").fill("guest")
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/overview")

    def picture(self, name: str) -> None:
        """Keep a picture of the page, if pictures are asked for."""
        if SCREENSHOTS:
            suffix = "phone" if self.is_phone else self.scheme
            directory = REPOSITORY / SCREENSHOTS
            directory.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=directory / f"{name}-{suffix}.png")


@pytest.fixture(
    params=[("light", DESK), ("dark", DESK), ("light", PHONE)], ids=["light", "dark", "phone"]
)
def view(request: pytest.FixtureRequest, chromium: Any, site: Site) -> Iterator[View]:
    """A window of each kind; at the end nothing is to be complained of."""
    scheme, viewport = request.param
    opened = View(chromium, site, scheme, viewport)
    yield opened
    opened.context.close()
    assert opened.complaints == []


@pytest.fixture
def desk(chromium: Any, site: Site) -> Iterator[View]:
    """A window on a desk, signed in."""
    opened = View(chromium, site, "light", DESK)
    opened.sign_in()
    yield opened
    opened.context.close()
    assert opened.complaints == []
