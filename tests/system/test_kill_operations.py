"""Kills while an operator works: each message is in one place, each queue has one name."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import httpx
import pytest

from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, durability_of, kill_after
from tests.support.http import HttpClient

pytestmark = pytest.mark.usefixtures("processes")

LEVERET = "/leveret/queues/%2F"
RENAMED = ["renamed 1", "renamed 2", "renamed 3"]
LETTERS = 40


class KilledError(Exception):
    """The node is gone, or goes."""


class Operator:
    """The HTTP API, as several threads use it, and what is known of the node over all lives.

    Of what was asked and not answered, both outcomes are right.
    """

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.numbers = 0
        self.confirmed: set[str] = set()
        self.scheduled: set[str] = set()
        self.cancelled: set[str] = set()
        self.gone: set[str] = set()  # cancelled, and not found after a kill
        self.doubtful: set[str] = set()  # schedules whose cancellation was not answered
        self.name = self.wanted_name = RENAMED[0]
        self.length = self.wanted_length = 1000
        self.done: Counter[str] = Counter()
        self.events = Events()

    # -- asking

    def client(self) -> HttpClient:
        return self.broker.http_client("/api")

    def ask(self, client: HttpClient, method: str, path: str, **asked: object) -> object:
        try:
            answer = client.request(method, path, json=asked if method != "GET" else None)
        except httpx.TransportError as error:
            raise KilledError(f"{method} {path}: {error!r}") from None
        assert answer.status_code < 300, (method, path, asked, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def publish(self, client: HttpClient, queue: str, body: str, **headers: object) -> None:
        self.ask(
            client,
            "POST",
            "/exchanges/%2F/amq.default/publish",
            properties={"delivery_mode": 2, "headers": headers},
            routing_key=queue,
            payload=body,
            payload_encoding="string",
        )

    def number(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind} {self.numbers}"

    # -- what it does, each in a thread

    def publishes(self, client: HttpClient) -> None:
        body = self.number("message")
        self.publish(client, "left", body)
        self.confirmed.add(body)

    def moves(self, client: HttpClient) -> None:
        here, there = self.rng.sample(["left", "right"], 2)
        limit = self.rng.choice([1, 7, 300])
        path = f"{LEVERET}/{here}/messages/move"
        self.ask(client, "POST", path, select={}, limit=limit, to_queue=there)

    def copies(self, client: HttpClient) -> None:
        path = f"{LEVERET}/left/messages/copy"
        self.ask(client, "POST", path, select={}, limit=5, exchange="copies", routing_key="k")

    def renames(self, client: HttpClient) -> None:
        self.wanted_name = self.rng.choice([name for name in RENAMED if name != self.name])
        self.ask(client, "PATCH", f"{LEVERET}/{self.name}", name=self.wanted_name)
        self.name = self.wanted_name

    def changes(self, client: HttpClient) -> None:
        self.wanted_length = self.rng.randrange(1000, 2000)
        arguments = {"x-max-length": self.wanted_length}
        self.ask(client, "PATCH", f"{LEVERET}/changed", arguments=arguments)
        self.length = self.wanted_length

    def redrives(self, client: HttpClient) -> None:
        target = {"exchange": "", "routing_key": "letters", "rate": 500}
        path = "/leveret/dead-letters/%2F/letters.dlq/redrive"
        self.ask(client, "POST", path, **target)
        while self.ask(client, "GET", path)["phase"] == "running":
            time.sleep(0.01)
        path = f"{LEVERET}/letters/messages/move"
        self.ask(client, "POST", path, select={}, limit=1000, to_queue="letters.dlq")

    def schedules(self, client: HttpClient) -> None:
        name = self.number("schedule")
        self.publish(client, "left", name, **{"x-delay": 3_600_000, "x-schedule-id": name})
        self.scheduled.add(name)
        if self.rng.random() < 0.5:
            chosen = self.rng.choice(sorted(self.scheduled))
            self.doubtful.add(chosen)
            self.scheduled.discard(chosen)
            self.ask(client, "POST", "/leveret/schedules/%2F/cancel", id=chosen)
            self.doubtful.discard(chosen)
            self.cancelled.add(chosen)

    # -- lives

    def prepare(self) -> None:
        with self.client() as client:
            arguments = {"x-max-length": self.length}
            declared = {"left": {}, "right": {}, "changed": arguments, "letters": {}}
            for name in (*declared, "letters.dlq", "copy 1", "copy 2", self.name):
                asked = {"durable": True, "arguments": declared.get(name, {})}
                self.ask(client, "PUT", f"/queues/%2F/{name}", **asked)
            self.ask(client, "PUT", "/exchanges/%2F/copies", type="fanout", durable=True)
            for queue in ("copy 1", "copy 2"):
                self.ask(client, "POST", f"/bindings/%2F/e/copies/q/{queue}", routing_key="")
            path = f"/bindings/%2F/e/amq.topic/q/{self.name}"
            self.ask(client, "POST", path, routing_key="key", arguments={"x": 1})
            policy = {"pattern": "^renamed", "definition": {"max-length": 77}, "apply-to": "queues"}
            self.ask(client, "PUT", "/policies/%2F/policy", **policy)
            for number in range(LETTERS):
                self.publish(client, "letters.dlq", f"letter {number}")

    def live(self, answers: int) -> None:
        """Work on all at the same time until so much is done, and kill the node."""
        works = (
            *(self.publishes, self.moves, self.copies, self.renames, self.changes),
            *(self.redrives, self.schedules),
        )
        failures: list[Exception] = []

        def go_on(work) -> None:
            try:
                with self.client() as client:
                    while True:
                        work(client)
                        self.done[work.__name__] += 1
                        self.events()
            except KilledError:
                pass
            except Exception as error:  # noqa: BLE001  # the test's thread raises it
                failures.append(error)

        threads = [threading.Thread(target=go_on, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        kill_after(self.broker, self.events, answers, is_over=lambda: bool(failures))
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    # -- what must be so

    def bodies(self, client: HttpClient, queue: str) -> Counter[str]:
        found: Counter[str] = Counter()
        after = ""
        while after is not None:
            path = f"{LEVERET}/{queue}/messages?limit=1000" + (f"&after={after}" if after else "")
            page = self.ask(client, "GET", path)
            found.update(message["payload"] for message in page["messages"])
            after = page["after"]
        return found

    def check(self) -> None:
        with self.client() as client:
            both = self.bodies(client, "left") + self.bodies(client, "right")
            assert self.confirmed <= both.keys(), "confirmed and lost"
            assert not [body for body, count in both.items() if count > 1], "in two places"
            letters = self.bodies(client, "letters") + self.bodies(client, "letters.dlq")
            assert letters == Counter(f"letter {number}" for number in range(LETTERS))
            assert self.bodies(client, "copy 1") == self.bodies(client, "copy 2")
            for queue in ("copy 1", "copy 2"):
                self.ask(client, "DELETE", f"/queues/%2F/{queue}/contents")
            self.check_name(client)
            changed = self.ask(client, "GET", "/queues/%2F/changed")["arguments"]
            assert changed["x-max-length"] in {self.length, self.wanted_length}
            self.length = self.wanted_length = changed["x-max-length"]
            self.check_schedules(client)

    def check_name(self, client: HttpClient) -> None:
        rows = self.ask(client, "GET", "/queues/%2F?columns=name")
        names = [row["name"] for row in rows if row["name"].startswith("renamed")]
        assert len(names) == 1
        assert names[0] in {self.name, self.wanted_name}
        self.name = self.wanted_name = names[0]
        queue = self.ask(client, "GET", f"/queues/%2F/{self.name}")
        assert queue["policy"] == "policy"
        bindings = self.ask(client, "GET", "/bindings/%2F/")
        bound = [each for each in bindings if each["source"] == "amq.topic"]
        assert [(each["destination"], each["arguments"]) for each in bound] == [
            (self.name, {"x": 1})
        ]

    def check_schedules(self, client: HttpClient) -> None:
        found: Counter[str] = Counter()
        after = ""
        while after is not None:
            path = "/leveret/schedules/%2F?limit=1000" + (f"&after={after}" if after else "")
            page = self.ask(client, "GET", path)
            found.update(row["id"] for row in page["rows"])
            after = page["after"]
        assert self.scheduled <= found.keys(), "a schedule was lost"
        assert not self.gone & found.keys(), "cancelled, gone, and back"
        # Settlements are written behind (docs/decisions/0022).
        self.scheduled |= self.cancelled & found.keys()
        self.gone |= self.cancelled - found.keys()
        self.cancelled.clear()
        assert not [name for name, count in found.items() if count > 1]
        self.scheduled |= self.doubtful & found.keys()
        self.gone |= self.doubtful - found.keys()
        self.doubtful.clear()


def lives(tmp_path, seed: int, count: int) -> Operator:
    rng = random.Random(seed)
    broker = BrokerProcess(tmp_path / "data", durability=durability_of(seed), http=True)
    operator = Operator(broker, rng)
    try:
        broker.start()
        operator.prepare()
        for _ in range(count):
            operator.live(rng.randint(1, 150))
            broker.start()
            operator.check()
        broker.check_untroubled()
    finally:
        broker.kill()
    print(operator.done, len(operator.confirmed), len(operator.gone))
    return operator


@pytest.mark.covers("C-206")
@pytest.mark.kills
def test_kills_while_an_operator_works(tmp_path, seed):
    lives(tmp_path, seed, 2)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [0, 1])  # another durability each
def test_many_kills_while_an_operator_works(tmp_path, seed, more):
    operator = lives(tmp_path, seed + more, 20)
    assert {"publishes", "moves", "renames", "changes", "redrives"} <= operator.done.keys()
    assert operator.gone
