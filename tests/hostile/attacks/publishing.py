"""With write: messages whose headers, ids or unfinished bodies are the attack."""

from __future__ import annotations

import struct

from pamqp import commands

from tests.harness.wire import frame_bytes, publish_bytes
from tests.hostile.attacker import Attack
from tests.hostile.mutation import NUMBERS, any_table, size, wide_table, word

MIB = 1 << 20


class DedupKeys(Attack):
    """Ids that are alike, numbered, long or repeated, in a window."""

    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q", **{"x-dedup-window": 60_000, "x-max-length": 10})

    def strike(self) -> None:
        shape = self.rng.randrange(4)
        stem = word(self.rng, (1, 8, 100, 200)[shape])
        ids = [f"{stem}{self.rng.randrange(1 << (8 * shape + 4))}" for _ in range(50)]
        data = [
            publish_bytes("q", b"", properties=commands.Basic.Properties(message_id=one).marshal())
            for one in ids
        ]
        self.client.send_bytes(b"".join(data))


class UnfinishedMessages(Attack):
    """Messages that are announced as large as they may be, on many channels and connections."""

    finding = "F"
    needs = "write"

    def strike(self) -> None:
        client = self.connect()
        announced = self.rng.choice((MIB, 16 * MIB - 1, 16 * MIB, 16 * MIB + 1, 2**63))
        for number in range(2, self.rng.randrange(3, 300)):
            client.send(number, commands.Channel.Open())
            method = b"\x00\x3c\x00\x28\x00\x00\x00\x01q\x00"
            header = struct.pack(">HHQ", 60, 0, announced) + b"\0\0"
            body = self.rng.randbytes(size(self.rng, 1000))
            client.send_bytes(
                frame_bytes(1, number, method)
                + frame_bytes(2, number, header)
                + frame_bytes(3, number, body)
            )


class Transactions(Attack):
    """Transactions of many publishes, left, rolled back or committed, on many channels."""

    finding = "F"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.exchange("e", "fanout")
        for number in range(100):
            self.client.declare(f"q{number}")
            self.client.bind(f"q{number}", "e")
        self.client.call(1, commands.Tx.Select())

    def strike(self) -> None:
        body = self.rng.randbytes(self.rng.choice((0, 100, 5000)))
        self.client.put("e", "k", body, count=self.rng.randrange(1, 20))
        if self.rng.random() < 0.7:
            self.client.call(1, self.rng.choice((commands.Tx.Commit(), commands.Tx.Rollback())))
        else:
            self.failed()
            self.client.call(1, commands.Tx.Select())


class HeaderTables(Attack):
    """Headers of as many values as a frame holds, where they are looked at."""

    finding = "H"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q")
        self.client.bind("q", "amq.headers", "", a=1)
        self.client.exchange("recent", "x-recent-history")

    def strike(self) -> None:
        exchange = self.rng.choice(("amq.headers", "recent"))
        table = wide_table(self.rng, size(self.rng, 120_000))
        self.client.put_table(exchange, "k", table)


class DelayedMessages(Attack):
    """Delays of every size, and repetitions."""

    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q")

    def strike(self) -> None:
        asked = self.rng.choice(
            (
                {"x-delay": self.rng.choice((1, 50, 86_400_000, *NUMBERS))},
                {"x-deliver-at": self.rng.choice((1, 2**40, *NUMBERS))},
                {"x-delay-level": self.rng.randrange(20)},
                {"x-repeat-every": 1, "x-repeat-count": 1000},
                {"x-cron": "* * * * *"},
            )
        )
        self.client.put("", "q", count=self.rng.choice((1, 20)), headers=asked)


class PreparedMessages(Attack):
    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q")

    def strike(self) -> None:
        asked = {"x-prepare": True, "x-check-after": self.rng.choice((1, 1000, *NUMBERS))}
        numbered = {
            "x-producer-id": word(self.rng, 2),
            "x-producer-epoch": self.rng.choice((0, 1, *NUMBERS)),
            "x-producer-seq": self.rng.choice((0, 1, 2, *NUMBERS)),
        }
        headers = self.rng.choice((asked, numbered))
        self.client.put("", "q", count=5, headers=headers, message_id=word(self.rng))


class Expirations(Attack):
    """Deadlines and priorities of every order."""

    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q", **{"x-max-priority": 255, "x-dead-letter-exchange": "amq.fanout"})
        self.client.declare("dead", **{"x-max-length": 10})
        self.client.bind("dead", "amq.fanout")

    def strike(self) -> None:
        data = []
        for _ in range(50):
            properties = commands.Basic.Properties(
                expiration=str(self.rng.choice((0, 1, 50, 10**6))),
                priority=self.rng.randrange(256),
            )
            data.append(publish_bytes("q", b"", properties=properties.marshal()))
        self.client.send_bytes(b"".join(data))


class MandatoryReturns(Attack):
    """Messages that come back, to who does not read."""

    finding = "B"
    needs = "write"

    def prepare(self) -> None:
        self.client.call(1, commands.Confirm.Select())

    def strike(self) -> None:
        method = b"\x00\x3c\x00\x28\x00\x00\x00\x04none\x01"
        header = struct.pack(">HHQ", 60, 0, 0) + b"\x20\x00" + any_table(self.rng, 300)
        self.client.send_bytes((frame_bytes(1, 1, method) + frame_bytes(2, 1, header)) * 50)


class DeadLetterRing(Attack):
    """Queues that hand expired messages on to one another."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        count = self.rng.randrange(2, 60)
        for number in range(count):
            arguments = {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": f"q{(number + 1) % count}",
                "x-message-ttl": self.rng.choice((0, 1, 10)),
            }
            self.client.declare(f"q{number}", **arguments)

    def strike(self) -> None:
        self.client.put("", "q0", b"x" * self.rng.choice((0, 1000)), count=20)
