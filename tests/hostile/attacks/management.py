"""With a tag for the HTTP API: searches, policies, lists and bodies."""

from __future__ import annotations

import json
import urllib.parse

from pamqp import commands

from tests.hostile.attacker import Attack
from tests.hostile.mutation import NUMBERS, like_condition, size, word


class BrowsingWithConditions(Attack):
    finding = "B"
    needs = "management, configure, write, read"

    def prepare(self) -> None:
        self.names = [word(self.rng, 2) + "x" for _ in range(5)]
        self.client.declare("q")
        for _ in self.until(0.6):
            text = word(self.rng, size(self.rng, 8000), "ab")
            self.client.put("", "q", headers={self.rng.choice(self.names): text})

    def strike(self) -> None:
        condition = like_condition(self.rng, self.names, self.rng.choice((500, 3500)))
        query = urllib.parse.urlencode({"sql": condition})
        self.http("GET", f"/api/leveret/queues/{self.vhost}/q/messages?{query}")


class PoliciesOverQueues(Attack):
    """Policies that come and go over thousands of queues, with every number."""

    finding = "B"
    needs = "policymaker, configure"

    def prepare(self) -> None:
        for number in self.until(0.7):
            self.client.send(1, commands.Queue.Declare(queue=f"q{number}", nowait=True))
        self.client.call(1, commands.Basic.Qos())

    def strike(self) -> None:
        key = self.rng.choice(("message-ttl", "max-length", "expires", "dedup-window"))
        value = self.rng.choice((1, 1000, 10**30, *NUMBERS))
        pattern = self.rng.choice((".*", "^q1", "(q.*)+$", word(self.rng, 3)))
        path = f"/api/policies/{self.vhost}/{word(self.rng, 1)}"
        if self.rng.random() < 0.3:
            self.http("DELETE", path)
        else:
            self.http_json("PUT", path, {"pattern": pattern, "definition": {key: value}})


class HttpBodies(Attack):
    """JSON that is deep, wide, long or none, to what reads it."""

    finding = "H"
    needs = "management, configure, write"

    def strike(self) -> None:
        length = size(self.rng, 200_000)
        body = self.rng.choice(
            (
                b"[" * length,
                b'{"a":' * (length // 5),
                json.dumps(
                    {"arguments": {word(self.rng): 1 for _ in range(length // 16)}}
                ).encode(),
                json.dumps({"arguments": {"a": [[]] * (length // 4)}}).encode(),
                b'{"a":' + b"9" * length + b"}",
                json.dumps({"payload": "x" * length}).encode(),
                self.rng.randbytes(length),
            )
        )
        path = self.rng.choice(
            (
                f"/api/queues/{self.vhost}/{word(self.rng)}",
                f"/api/exchanges/{self.vhost}/amq.topic/publish",
                f"/api/bindings/{self.vhost}/e/amq.topic/q/q",
                f"/api/definitions/{self.vhost}",
            )
        )
        self.http(self.rng.choice(("PUT", "POST")), path, body)


class ListsInLoops(Attack):
    """Every list there is, sorted and searched, over thousands of queues."""

    finding = "B"
    needs = "management, configure"

    def prepare(self) -> None:
        for number in self.until(0.8):
            self.client.send(1, commands.Queue.Declare(queue=f"{number}", nowait=True))
        self.client.call(1, commands.Basic.Qos())

    def strike(self) -> None:
        query = self.rng.choice(
            (
                "",
                "?page=1&page_size=500&name=(.*)*1&use_regex=true",
                "?page=1&page_size=100&sort=messages",
                "?sort=name&sort_reverse=true",
                f"?page={self.rng.choice((1, 2, 10**9))}&page_size=500",
            )
        )
        thing = self.rng.choice(("queues", "queues", "bindings", "exchanges", "connections"))
        self.http("GET", f"/api/{thing}{query}")
