"""Alerts to other people's systems: one POST for each that begins or ends.

    {"alert": "backlog of orders", "vhost": "/", "status": "firing" | "resolved", "queue": "orders",
     "condition": "backlog", "value": 20000, "threshold": 10000, "severity": "critical",
     "summary": "…", "since": 1700000000000, "node": "leveret@host"}

A rule with a secret has its requests signed: `X-Leveret-Signature: sha256=` and the HMAC of the
body. What is not answered with success is sent again, later and later; what a restart finds unsent
is sent by the alert that fires again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx

if TYPE_CHECKING:
    from leveret.features.alerts import Alert

__all__ = ["Webhooks"]

logger = logging.getLogger(__name__)

UNSENT_MAX: Final = 1000
SENDERS: Final = 4  # at a time: one that is slow must not hold up all others
TIMEOUT_SECONDS: Final = 10.0  # for each step of an attempt
ATTEMPT_SECONDS_MAX: Final = 30.0  # for all of it: an answer may come a byte at a time
PAUSES_SECONDS: Final = (1.0, 5.0, 30.0, 120.0)  # before the second attempt, the third …


class Webhooks:
    """Sends what `tell` is told. `run` is a task of the node's."""

    def __init__(self, node_name: str, pauses_seconds: tuple[float, ...] = PAUSES_SECONDS) -> None:
        self._node_name = node_name
        self._pauses_seconds = pauses_seconds
        self._unsent: asyncio.Queue[Alert] = asyncio.Queue(UNSENT_MAX)

    def tell(self, alert: Alert) -> None:
        """Send an alert, if its rule says where."""
        if not alert.rule.webhook:
            return
        try:
            self._unsent.put_nowait(alert)
        except asyncio.QueueFull:
            logger.error(  # noqa: TRY400  # says it all
                "alert %r is not sent: %d others wait for webhooks that do not answer",
                alert.rule.name,
                UNSENT_MAX,
            )

    async def run(self) -> None:
        """Send until cancelled."""
        # Redirects are not followed and proxies not asked: it goes where the rule says.
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(SENDERS):
                tasks.create_task(self._send_all(client))

    async def _send_all(self, client: httpx.AsyncClient) -> None:
        while True:
            alert = await self._unsent.get()
            reason = ""
            for pause_seconds in (0.0, *self._pauses_seconds):
                await asyncio.sleep(pause_seconds)
                reason = await self._send(client, alert)
                if not reason:
                    break
            else:
                logger.error(
                    "alert %r could not be sent to %s: %s; see the rule's webhook",
                    alert.rule.name,
                    urlsplit(alert.rule.webhook).hostname,  # the rest may hold a secret
                    reason,
                )

    async def _send(self, client: httpx.AsyncClient, alert: Alert) -> str:
        """One attempt; why it failed, empty where it did not."""
        body = json.dumps(self._told(alert)).encode()
        headers = {"content-type": "application/json", "user-agent": "Leveret"}
        try:
            if alert.rule.secret:
                digest = hmac.new(alert.rule.secret.encode(), body, hashlib.sha256).hexdigest()
                headers["x-leveret-signature"] = f"sha256={digest}"
            # What it answers is nobody's business here, and may be endless.
            async with (
                asyncio.timeout(ATTEMPT_SECONDS_MAX),
                client.stream("POST", alert.rule.webhook, content=body, headers=headers) as answer,
            ):
                return "" if answer.is_success else f"status {answer.status_code}"
        # ValueError: names of hosts and secrets that nobody can encode.
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            return type(error).__name__

    def _told(self, alert: Alert) -> dict[str, object]:
        rule = alert.rule
        return {
            "alert": rule.name,
            "vhost": rule.vhost,
            "status": "firing" if alert.is_firing else "resolved",
            "queue": alert.subject,
            "condition": rule.condition.value,
            "value": alert.value,
            "threshold": rule.threshold,
            "severity": rule.severity.value,
            "summary": rule.summary,
            "since": alert.since_ms,
            "node": self._node_name,
        }
