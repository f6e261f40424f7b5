"""Alerts are posted, signed, sent again when nobody answers, and given up in the end."""

import asyncio
import hashlib
import hmac
import json
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from leveret.features.alerts.rules import Alert, AlertRule
from leveret.mgmt_ui import webhooks
from leveret.mgmt_ui.webhooks import (
    ADDRESSES_MAX,
    ATTEMPTS_MAX,
    UNSENT_MAX,
    VHOST_ADDRESSES_MAX,
    VHOST_ATTEMPTS_MAX,
    Webhooks,
)


class Receiver:
    """An HTTP server that notes what is posted, and answers with the statuses it is given."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.got = []

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

    @property
    def values(self):
        return [json.loads(body)["value"] for _, body in self.got]


def address_of(server):
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def alert_for(url, vhost="/"):
    rule = AlertRule.parse(vhost, "r", {"condition": "backlog", "above": 1, "webhook": url})
    return Alert(rule, "q", 2.0, 5, is_firing=True)


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
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
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
    assert not sender.unsent_count


async def test_of_too_many_the_newest_are_kept(caplog):
    async with receiving() as (receiver, alert):
        sender = Webhooks("n")
        for number in range(2 * UNSENT_MAX):
            sender.tell(replace(alert, value=float(number)))
        assert sender.unsent_count == UNSENT_MAX
        assert len(caplog.records) == 1
        await send(sender, replace(alert, value=-1.0), lambda: receiver.values[-1:] == [-1.0])
    assert receiver.values == [*range(UNSENT_MAX + 1, 2 * UNSENT_MAX), -1.0]


async def test_addresses_are_not_without_number(caplog):
    sender = Webhooks("n")
    for number in range(ADDRESSES_MAX + 10):
        sender.tell(alert_for(f"http://127.0.0.1:1/{number}", str(number % 20)))
    assert sender.unsent_count == ADDRESSES_MAX
    assert len(caplog.records) == 10


async def test_addresses_of_one_virtual_host_are_few(caplog):
    sender = Webhooks("n")
    for number in range(VHOST_ADDRESSES_MAX + 10):
        sender.tell(alert_for(f"http://127.0.0.1:1/{number}", "greedy"))
    assert sender.unsent_count == VHOST_ADDRESSES_MAX
    assert len(caplog.records) == 10
    assert "of vhost 'greedy' is not sent: 32 other webhooks of its" in caplog.text
    sender.tell(alert_for("http://127.0.0.1:1/0", "other"))
    assert sender.unsent_count == VHOST_ADDRESSES_MAX + 1


async def test_what_was_told_leaves_nothing_behind():
    async with receiving() as (receiver, alert):
        sender = Webhooks("n")
        await send(sender, alert, lambda: receiver.got and not sender._vhosts)


async def test_one_virtual_host_silences_no_other():
    """All of its addresses take what they are sent and never answer."""
    silent: list[asyncio.StreamWriter] = []

    async def never(_, writer):
        silent.append(writer)

    async with (
        await asyncio.start_server(never, "127.0.0.1", 0) as quiet,
        receiving() as (receiver, alert),
    ):
        sender = Webhooks("n")
        for number in range(ADDRESSES_MAX):
            sender.tell(alert_for(f"{address_of(quiet)}{number}", "greedy"))
        async with asyncio.timeout(5):
            await send(sender, alert, lambda: receiver.got and len(silent) >= VHOST_ATTEMPTS_MAX)
        assert len(silent) == VHOST_ATTEMPTS_MAX
        for writer in silent:
            writer.close()


async def test_what_begins_and_what_ends_comes_in_order_whatever_fails():
    async with receiving(500, 302, 200, 500, 500) as (receiver, alert):
        sender = Webhooks("n", pauses_seconds=(0.05, 0.1))
        for number in range(6):
            sender.tell(replace(alert, value=float(number), is_firing=number % 2 == 0))
        await send(sender, replace(alert, value=6.0), lambda: receiver.values[-1:] == [6.0])
    assert receiver.values == [0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6]


async def test_the_dead_hold_up_nobody_else():
    """Those that never answer, close, or are not there: many more than attempts at a time."""
    silent: list[asyncio.StreamWriter] = []

    async def never(_, writer):
        silent.append(writer)

    async def close(_, writer):
        writer.close()

    async with (
        await asyncio.start_server(never, "127.0.0.1", 0) as quiet,
        await asyncio.start_server(close, "127.0.0.1", 0) as closing,
        receiving() as (receiver, alert),
    ):
        sender = Webhooks("n")
        for number in range(ATTEMPTS_MAX - 1):
            sender.tell(alert_for(f"{address_of(quiet)}{number}", f"quiet {number % 5}"))
        for number in range(40):
            for dead in (address_of(closing), "http://127.0.0.1:1/"):
                sender.tell(alert_for(f"{dead}{number}", f"dead {number % 3}"))
        await send(sender, alert, lambda: receiver.got)
        for writer in silent:
            writer.close()


async def test_who_does_not_answer_is_asked_seldom():
    async with receiving(*[500] * 100) as (receiver, alert):
        sender = Webhooks("n", pauses_seconds=(0, 0, 0.3))
        for number in range(10):
            sender.tell(replace(alert, value=float(number)))
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(sender.run())
            while len(receiver.got) < 3:  # noqa: ASYNC110  # what it is sent
                await asyncio.sleep(0.01)
            before = time.monotonic()
            while len(receiver.got) < 6:  # noqa: ASYNC110  # what it is sent
                await asyncio.sleep(0.01)
            assert time.monotonic() - before > 0.5
            sending.cancel()
    assert receiver.values == [0, 0, 0, 0, 1, 2]


async def test_nobody_there(caplog):
    url = "http://127.0.0.1:1/"
    rule = AlertRule.parse("/", "r", {"condition": "backlog", "above": 1, "webhook": url})
    alert = Alert(rule, "q", 2.0, 5, is_firing=True)
    await send(Webhooks("n", pauses_seconds=()), alert, lambda: "ConnectError" in caplog.text)
