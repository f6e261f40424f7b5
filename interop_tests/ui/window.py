"""A window of a browser that looks at a node's web UI, and complains of whatever is not right."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["ARGUMENTS", "CHROMIUM", "DESK", "PHONE", "View"]

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


class View:
    """One window; `complaints` are errors on its console and requests to other hosts."""

    def __init__(self, browser: Any, address: str, scheme: str, viewport: dict[str, int]) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport=viewport)
        self.context.set_default_timeout(15_000)
        self.address = address
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
        if asked.scheme != "data" and asked.netloc != urlsplit(self.address).netloc:
            self.complaints.append(f"asked another host: {request.url}")

    def go(self, path: str) -> None:
        """Open a page and see that it is there."""
        answer = self.page.goto(self.address + path)
        assert answer is not None
        assert answer.status == 200, (path, answer.status)

    def sign_in(self) -> None:
        self.go("/login")
        self.page.get_by_label("User").fill("guest")
        self.page.get_by_label("Password").fill("guest")
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/overview")
