"""Alerts are posted, signed, sent again when nobody answers, and given up in the end."""

import asyncio
import hashlib
import hmac
import json
from contextlib import asynccontextmanager

import pytest

from leveret.features.alerts import Alert, AlertRule
from leveret.mgmt_ui import webhooks
from leveret.mgmt_ui.webhooks import UNSENT_MAX, Webhooks


class Receiver:
    """An HTTP server that notes what is posted, and answers with the statuses it is given."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.got = []
        self.came = asyncio.Event()

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value for name, value in lines}
        body = await reader.readexactly(int(headers["content-length"]))
        self.got.append((headers, body))
        status = self.statuses.pop(0) if self.statuses else 200
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        self.came.set()


@asynccontextmanager
async def receiving(*statuses, **fields):
    """A receiver, and an alert of a rule that says so."""
    receiver = Receiver(*statuses)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?token=hush"
    rule = AlertRule.parse("/", "r", {"condition": "backlog", "above": 1, "webhook": url, **fields})
    async with server:
        yield receiver, Alert(rule, "q", 2.0, 5, is_firing=True)


async def send(sender, alert, until):
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(sender.run())
        sender.tell(alert)
        while not until():  # noqa: ASYNC110  # whatever is waited for
            await asyncio.sleep(0.01)
        sending.cancel()


async def test_an_alert_is_posted_and_signed():
    async with receiving(secret="key", summary="too much") as (receiver, alert):
        await send(Webhooks("leveret@h"), alert, lambda: receiver.got)
    [(headers, body)] = receiver.got
    told = json.loads(body)
    assert told["alert"] == "r"
    assert (told["status"], told["queue"], told["value"]) == ("firing", "q", 2.0)
    assert (told["node"], told["summary"]) == ("leveret@h", "too much")
    digest = hmac.new(b"key", body, hashlib.sha256).hexdigest()
    assert headers["x-leveret-signature"] == f"sha256={digest}"


async def test_what_fails_is_sent_again():
    async with receiving(500, 302, 200) as (receiver, alert):
        sender = Webhooks("n", pauses_seconds=(0, 0, 0))
        await send(sender, alert, lambda: len(receiver.got) == 3)
        assert "x-leveret-signature" not in receiver.got[0][0]


async def test_what_never_answers_is_given_up_without_telling_secrets(caplog):
    async with receiving(*[500] * 9) as (_, alert):
        await send(Webhooks("n", pauses_seconds=(0,)), alert, lambda: "could not" in caplog.text)
    assert "could not be sent to 127.0.0.1: status 500" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    "fields", [{"webhook": "http://xn--a.com"}, {"webhook": "http://h", "secret": "\ud800"}]
)
async def test_what_cannot_even_be_asked_stops_no_sender(fields, caplog):
    rule = AlertRule.parse("/", "r", {"condition": "backlog", "above": 1, **fields})
    alert = Alert(rule, "q", 2.0, 5, is_firing=True)
    await send(Webhooks("n", pauses_seconds=()), alert, lambda: "could not" in caplog.text)


async def test_an_answer_that_never_ends_is_given_up(caplog, monkeypatch):
    monkeypatch.setattr(webhooks, "ATTEMPT_SECONDS_MAX", 0.1)

    gone = asyncio.Event()

    async def drip(_, writer):
        for line in (b"HTTP/1.1 200 x\r\n", *[b"x: y\r\n"] * 20):
            writer.write(line)
            await asyncio.sleep(0.02)
        writer.close()
        gone.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    rule = AlertRule.parse("/", "r", {"condition": "backlog", "above": 1, "webhook": url})
    alert = Alert(rule, "q", 2.0, 5, is_firing=True)
    async with server:
        await send(Webhooks("n", pauses_seconds=()), alert, lambda: "TimeoutError" in caplog.text)
        await gone.wait()


async def test_a_rule_without_webhook_sends_nothing():
    sender = Webhooks("n")
    rule = AlertRule.parse("/", "r", {"condition": "backlog", "above": 1})
    sender.tell(Alert(rule, "q", 2.0, 5, is_firing=True))
    assert sender._unsent.empty()


async def test_too_many_are_not_kept(caplog):
    async with receiving() as (_, alert):
        webhooks = Webhooks("n")
        for _ in range(UNSENT_MAX + 1):
            webhooks.tell(alert)
    assert "is not sent" in caplog.text


async def test_nobody_there(caplog):
    url = "http://127.0.0.1:1/"
    rule = AlertRule.parse("/", "r", {"condition": "backlog", "above": 1, "webhook": url})
    alert = Alert(rule, "q", 2.0, 5, is_firing=True)
    await send(Webhooks("n", pauses_seconds=()), alert, lambda: "ConnectError" in caplog.text)
