"""Pictures of the web UI for the documentation: `python -m interop_tests.ui.pictures DIRECTORY`.

They are taken of a node on which a shop works (interop_tests/ui/shop.py): light, dark, and as on a
phone. Where pngquant is installed, they become small.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from interop_tests.brokers import LeveretBroker
from interop_tests.ui.shop import Shop
from interop_tests.ui.window import ARGUMENTS, CHROMIUM, DESK, PHONE, View

WARM_UP_SECONDS = 75  # charts of the last minute are full then
LATENCY_SECONDS = 32  # which the overview's third chart draws from its opening on
DRAWN_MS = 500  # until charts are drawn, and findings are loaded
COLOURS = "256"

PAGES = {
    "overview": "/overview?period=minute",
    "connections": "/connections?sort=publish_rate&sort_reverse=true",
    "channels": "/channels?sort=deliver_rate&sort_reverse=true",
    "exchanges": "/exchanges?sort=outgoing&sort_reverse=true",
    "exchange": "/exchanges/%2F/shop?period=minute",
    "queues": "/queues?sort=messages&sort_reverse=true",
    "queue": "/queues/%2F/mail.confirmation?period=minute",
    "stream": "/queues/%2F/events?period=minute",
    "messages": "/queues/%2F/invoices/messages",
    "vhosts": "/vhosts",
    "vhost": "/vhosts/%2F",
    "schedules": "/schedules",
    "celery": "/schedules?queue=celery",
    "retries": "/retries",
    "retry": "/retries/%2F/payments",
    "dead-letters": "/dead-letters",
    "dead-letter": "/dead-letters/%2F/payments.refunds.dlq",
    "once": "/once",
    "alerts": "/alerts",
    "usage": "/usage",
    "audit": "/audit",
    "users": "/users",
    "user": "/users/webshop",
    "policies": "/policies",
    "limits": "/limits",
    "definitions": "/definitions",
    "encryption": "/encryption",
}


class Album:
    """The pictures of one kind of window."""

    def __init__(self, view: View, shop: Shop, directory: Path) -> None:
        self._view = view
        self._shop = shop
        self._directory = directory
        self._suffix = "phone" if view.is_phone else view.scheme

    def fill(self) -> None:
        """Take all of them."""
        self._view.go("/login")
        self._take("sign-in")
        self._view.sign_in()
        for name, address in {**PAGES, **self._by_name()}.items():
            self._view.go(address)
            is_long = name == "overview" and not self._view.is_phone
            self._view.page.wait_for_timeout(LATENCY_SECONDS * 1000 if is_long else DRAWN_MS)
            self._take(name)
        if self._view.is_phone:
            self._view.page.get_by_role("button", name="Menu").click()
            self._take("menu")

    def _by_name(self) -> dict[str, str]:
        """Pages whose addresses are not known before."""
        get = self._shop.client.get
        connections = get("/connections?columns=name,client_properties").json()
        named = {each["client_properties"].get("connection_name"): each for each in connections}
        [message] = get("/leveret/queues/%2F/invoices/messages?limit=1").json()["messages"]
        address = f"/queues/%2F/invoices/messages/{message['offset']}"
        [task] = get("/leveret/queues/%2F/celery/messages?limit=1").json()["messages"]
        connection = f"/connections/{quote(named['payment service']['name'], safe='')}"
        return {
            "connection": connection,
            "channel": f"{connection}/channels/1",
            "message": address,
            "edit": f"{address}/edit",
            "task": f"/queues/%2F/celery/messages/{task['offset']}",
        }

    def _take(self, name: str) -> None:
        page = self._view.page
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= page.viewport_size["width"], f"{name} is {width} wide"
        self._view.page.screenshot(path=self._directory / f"{name}-{self._suffix}.png")


def take(directory: Path) -> None:
    """Take all pictures anew; those in the directory go."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.png"):
        old.unlink()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        broker = LeveretBroker(Path(place), {"LEVERET_CLUSTER_NAME": "shop"})
        broker.start()
        try:
            _visit(playwright, broker, directory)
        finally:
            broker.close()
    _shrink(directory)


def _visit(playwright: Any, broker: LeveretBroker, directory: Path) -> None:
    shop = Shop(broker)
    try:
        shop.open()
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        time.sleep(WARM_UP_SECONDS)
        for scheme, viewport in (("light", DESK), ("dark", DESK), ("light", PHONE)):
            _fill(browser, broker, shop, (scheme, viewport), directory)
        browser.close()
    finally:
        shop.close()


def _fill(
    browser: Any,
    broker: LeveretBroker,
    shop: Shop,
    window: tuple[str, dict[str, int]],
    directory: Path,
) -> None:
    view = View(browser, f"http://127.0.0.1:{broker.http_port}", *window)
    Album(view, shop, directory).fill()
    view.context.close()
    assert view.complaints == [], view.complaints


def _shrink(directory: Path) -> None:
    command = shutil.which("pngquant")
    if command is not None:
        options = ["--strip", "--force", "--skip-if-larger", "--ext", ".png", COLOURS]
        pictures = sorted(map(str, directory.glob("*.png")))
        # Its status says also that a picture was small already.
        subprocess.run([command, *options, "--", *pictures], check=False)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
