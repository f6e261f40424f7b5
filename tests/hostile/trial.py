"""One attack on one node: what it sent, what the second client waited, what memory it took."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.harness.broker import MIB, BrokerProcess
from tests.harness.wire import ClosedError
from tests.hostile.budget import Budget, SpentError
from tests.hostile.witness import Report, Witness

if TYPE_CHECKING:
    from tests.hostile.attacker import Attack

INTERNAL_ERROR = 541
ATTACKER = "mallory"
SETTLE_SECONDS_MAX = 20.0
RETURN_SECONDS_MAX = 10.0
# What the allocator may keep when all is gone: CPython gives a megabyte back once nothing in it is
# used, so what was made in between and lives on holds a part of the peak. Objects that were held
# would be nearly all of it.
LEFT_BYTES_MAX, LEFT_SHARE_MAX = 100 * MIB, 1 / 2


@dataclass(frozen=True, slots=True)
class Scale:
    """How large an attack is."""

    bytes_max: int
    seconds_max: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one attack."""

    attack: str
    seed: int
    sent_bytes: int
    strikes: int
    refused: int
    witness: Report
    grown_bytes: int
    left_bytes: int

    @property
    def left_bytes_max(self) -> int:
        """How much memory may be left."""
        return may_be_left(self.grown_bytes)

    @property
    def p999_publishes(self) -> float:
        """The 99.9th percentile of the second client's waits, as that many times its own work."""
        return self.witness.own.p999 / self.witness.work_ms

    @property
    def worst_publishes(self) -> float:
        """The longest of the second client's waits, as that many times its own work."""
        return self.witness.own.worst / self.witness.work_ms


class Node:
    """A broker with a witness beside it."""

    def __init__(self, data: Path) -> None:
        self.broker = BrokerProcess(data, http=True)

    def __enter__(self) -> Self:
        self.broker.start()
        http = self.broker.addresses["http"].rpartition(":")[2]
        self.ports = (self.broker.port, int(http))
        self._process = Path(f"/proc/{self.broker.popen.pid}")
        self.ask("PUT", f"users/{ATTACKER}", {"password": "guest", "tags": "policymaker"})
        self.witness = Witness(self.broker.port, self.broker.popen.pid)
        self.rest()
        return self

    def __exit__(self, *_: object) -> None:
        self.witness.close()
        self.broker.kill()

    def ask(self, method: str, path: str, value: object = None) -> None:
        """Ask the HTTP API as the administrator. Raises HTTPStatusError for what is refused."""
        with self.broker.http_client("/api/") as client:
            client.request(method, path, json=value).raise_for_status()

    def open_vhost(self, name: str) -> None:
        """A place for one attacker, which goes with all that he leaves."""
        self.ask("PUT", f"vhosts/{name}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.ask("PUT", f"permissions/{name}/{ATTACKER}", everything)

    def close_vhost(self, name: str) -> None:
        self.ask("DELETE", f"vhosts/{name}")

    def begin_peak(self) -> None:
        """Forget the highest memory so far."""
        (self._process / "clear_refs").write_text("5")

    @property
    def peak_bytes(self) -> int:
        status = (self._process / "status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def rest(self) -> None:
        """Wait until the node is busy with the witness only."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            before = self._busy_seconds()
            time.sleep(0.1)
            if self._busy_seconds() - before < 0.05:
                return

    def _busy_seconds(self) -> float:
        return int((self._process / "schedstat").read_text().split()[0]) / 1e9

    def check(self) -> None:
        """Check that the node serves, and that nothing happened that it calls a bug."""
        assert self.broker.is_alive
        self.witness.report()
        self.broker.check_untroubled()


def try_attack(node: Node, kind: type[Attack], seed: int, scale: Scale) -> Outcome:
    """Attack until the budget or the time is spent, and see what is left of it."""
    vhost = f"{kind.__name__}-{seed}"
    node.open_vhost(vhost)
    budget = Budget(scale.bytes_max)
    rng = random.Random(f"{kind.__name__} {seed}")
    attack = kind(rng, budget, node.ports, (ATTACKER, vhost))
    node.witness.report()
    node.begin_peak()
    quiet_bytes = node.broker.rss_bytes
    try:
        strikes, refused = _strike(attack, scale.seconds_max)
        attack.finish()
    finally:
        attack.hang_up()
    node.rest()
    report = node.witness.report()
    grown = node.peak_bytes - quiet_bytes
    node.close_vhost(vhost)
    left = _left(node, quiet_bytes, may_be_left(grown))
    outcome = (kind.__name__, seed, budget.spent, strikes, refused)
    return Outcome(*outcome, report, grown, left)


def _strike(attack: Attack, seconds_max: float) -> tuple[int, int]:
    """Prepare, and strike as often as may be. Returns how often, and how often it was refused."""
    strikes = refused = 0
    deadline = time.monotonic() + seconds_max
    attack.prepare()
    with suppress(SpentError):
        while time.monotonic() < deadline or not strikes:
            strikes += 1
            try:
                attack.strike()
            except (ConnectionError, TimeoutError) as error:
                check_expected(error)
                attack.failed()
                refused += 1
    return strikes, refused


def check_expected(error: OSError) -> None:
    """A refusal is what an attacker should get; an internal error is a bug."""
    if isinstance(error, ClosedError) and error.code == INTERNAL_ERROR:
        raise AssertionError(error.text)


def may_be_left(grown_bytes: int) -> int:
    """Return how much of the memory by which a node has grown may be left when all is gone."""
    return max(LEFT_BYTES_MAX, int(grown_bytes * LEFT_SHARE_MAX))


def _left(node: Node, quiet_bytes: int, bytes_max: int) -> int:
    deadline = time.monotonic() + RETURN_SECONDS_MAX
    while True:
        left = node.broker.rss_bytes - quiet_bytes
        if left <= bytes_max or time.monotonic() > deadline:
            return left
        time.sleep(0.1)
