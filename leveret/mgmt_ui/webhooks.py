"""Webhooks of alerts: one POST for each alert that begins or ends.

    {"alert": "backlog of orders", "vhost": "/", "status": "firing" | "resolved", "queue": "orders",
     "group": "", "condition": "backlog", "value": 20000, "threshold": 10000,
     "severity": "critical", "summary": "…", "since": 1700000000000, "node": "leveret@host"}

A rule with a secret has its requests signed: `X-Leveret-Signature: sha256=` and the HMAC of the
body. Requests without a success status are retried with growing pauses; what a restart finds unsent
is sent when the alert fires again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx

    from leveret.features.alerts.rules import Alert

__all__ = ["Webhooks"]

logger = logging.getLogger(__name__)

ADDRESSES_MAX: Final = 256  # with alerts to send at the same time: a task each
VHOST_ADDRESSES_MAX: Final = 32  # of one virtual host: its dead ones affect no other
UNSENT_MAX: Final = 200  # of one address; how things stand counts more than how they stood
ATTEMPTS_MAX: Final = 16  # at a time, one of each address
VHOST_ATTEMPTS_MAX: Final = 4  # of one virtual host: they may take half a minute each
TIMEOUT_SECONDS: Final = 10.0  # for each step of an attempt
ATTEMPT_SECONDS_MAX: Final = 30.0  # for all of it: an answer may come a byte at a time
PAUSES_SECONDS: Final = (1.0, 5.0, 30.0, 120.0)  # before the second attempt, the third …


class _Outbox:
    """Unsent alerts for one address by the rules of one virtual host."""

    def __init__(self) -> None:
        self.unsent: deque[Alert] = deque()
        self.is_full = False  # and the log says so


class _Vhost:
    """Addresses and share of one virtual host."""

    def __init__(self) -> None:
        self.outboxes: dict[str, _Outbox] = {}  # by address, while there is something for it
        self.attempts = asyncio.Semaphore(VHOST_ATTEMPTS_MAX)


class Webhooks:
    """Sends the alerts given to `tell`, in order for each address. `run` is a task of the node.

    Each address has a task while there are alerts for it, so that a slow or dead one delays no
    other; and each virtual host has a share, because its users choose the addresses.
    """

    def __init__(self, node_name: str, pauses_seconds: tuple[float, ...] = PAUSES_SECONDS) -> None:
        self._node_name = node_name
        self._pauses_seconds = pauses_seconds
        self._vhosts: dict[str, _Vhost] = {}  # while there is something of theirs
        # Virtual hosts and their addresses without a task yet.
        self._begun: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._attempts = asyncio.Semaphore(ATTEMPTS_MAX)

    @property
    def unsent_count(self) -> int:
        """Number of unsent alerts."""
        outboxes = (outbox for vhost in self._vhosts.values() for outbox in vhost.outboxes.values())
        return sum(len(outbox.unsent) for outbox in outboxes)

    def tell(self, alert: Alert) -> None:
        """Queue an alert, if its rule has a webhook."""
        address = alert.rule.webhook
        if not address:
            return
        name = alert.rule.vhost
        vhost = self._vhosts.get(name) or _Vhost()
        outbox = vhost.outboxes.get(address)
        if outbox is None:
            reason = self._no_room(vhost)
            if reason:
                logger.error(
                    "alert '%s' of vhost '%s' is not sent: %s", alert.rule.name, name, reason
                )
                return
            self._vhosts[name] = vhost
            outbox = vhost.outboxes[address] = _Outbox()
            self._begun.put_nowait((name, address))
        if len(outbox.unsent) >= UNSENT_MAX:
            outbox.unsent.popleft()
            if not outbox.is_full:
                outbox.is_full = True
                logger.error(
                    "the oldest alerts for %s are not sent: more than %d wait for an answer",
                    _host(alert),
                    UNSENT_MAX,
                )
        outbox.unsent.append(alert)

    def _no_room(self, vhost: _Vhost) -> str:
        """Return why a virtual host cannot have one more address; empty if it can."""
        if len(vhost.outboxes) >= VHOST_ADDRESSES_MAX:
            return f"{VHOST_ADDRESSES_MAX} other webhooks of its do not answer"
        if sum(len(held.outboxes) for held in self._vhosts.values()) >= ADDRESSES_MAX:
            return f"{ADDRESSES_MAX} other webhooks do not answer"
        return ""

    async def run(self) -> None:
        """Send until cancelled."""
        name, address = await self._begun.get()
        async with await asyncio.to_thread(_make_client) as client, asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._send_all(client, name, address))
                name, address = await self._begun.get()

    async def _send_all(self, client: httpx.AsyncClient, name: str, address: str) -> None:
        """Send the alerts of a virtual host for an address, and those that come meanwhile.

        An alert is dropped after the last pause. While requests fail, each later alert has one
        attempt, after a pause as long.
        """
        vhost = self._vhosts[name]
        outbox, failures = vhost.outboxes[address], 0
        pauses = self._pauses_seconds
        while outbox.unsent:
            alert = outbox.unsent.popleft()
            while reason := await self._attempt(client, vhost, alert):
                failures += 1
                if failures > len(pauses):
                    logger.error(
                        "alert %r could not be sent to %s: %s; see the rule's webhook",
                        alert.rule.name,
                        _host(alert),
                        reason,
                    )
                await asyncio.sleep(pauses[min(failures, len(pauses)) - 1] if pauses else 0)
                if failures > len(pauses):
                    break
            else:
                failures = 0
        del vhost.outboxes[address]
        if not vhost.outboxes:
            del self._vhosts[name]

    async def _attempt(self, client: httpx.AsyncClient, vhost: _Vhost, alert: Alert) -> str:
        # The virtual host's own first, so that waiting for it takes nothing of the shared ones.
        async with vhost.attempts, self._attempts:
            return await self._send(client, alert)

    async def _send(self, client: httpx.AsyncClient, alert: Alert) -> str:
        """Send an alert once; return the error, empty on success."""
        import httpx  # noqa: PLC0415  # _make_client has imported it

        body = json.dumps(self._told(alert)).encode()
        headers = {"content-type": "application/json", "user-agent": "Leveret"}
        try:
            if alert.rule.secret:
                digest = hmac.new(alert.rule.secret.encode(), body, hashlib.sha256).hexdigest()
                headers["x-leveret-signature"] = f"sha256={digest}"
            # The body of the answer is not read: it has no use and may be endless.
            async with (
                asyncio.timeout(ATTEMPT_SECONDS_MAX),
                client.stream("POST", alert.rule.webhook, content=body, headers=headers) as answer,
            ):
                return "" if answer.is_success else f"status {answer.status_code}"
        # ValueError: host names and secrets that cannot be encoded.
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            return type(error).__name__

    def _told(self, alert: Alert) -> dict[str, object]:
        rule = alert.rule
        return {
            "alert": rule.name,
            "vhost": rule.vhost,
            "status": "firing" if alert.is_firing else "resolved",
            "queue": alert.subject,
            "group": alert.group,
            "condition": rule.condition.value,
            "value": alert.value,
            "threshold": rule.threshold,
            "unit": rule.condition.unit,
            "severity": rule.severity.value,
            "summary": rule.summary,
            "since": alert.since_ms,
            "node": self._node_name,
        }


def _make_client() -> httpx.AsyncClient:
    """Import httpx and read the certificates that it trusts: 0.1 s of CPU that few nodes need.

    Its client follows no redirects and asks no proxies: it goes where the rule says.
    """
    import httpx  # noqa: PLC0415

    return httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False)


def _host(alert: Alert) -> str | None:
    """Return the host of an alert's webhook; the rest of the address may hold a secret."""
    return urlsplit(alert.rule.webhook).hostname
