"""Whose password is checked next."""

import asyncio
from functools import partial

import pytest

from leveret.auth.passwords import ATTEMPTS_MAX, WAITING_MAX, PasswordChecks
from leveret.ports.authentication import attempt_source


class Threads:
    """Checks that end when a test says so; the password `good` is right.

    What is to be done later is done by `pass_time`.
    """

    def __init__(self, *, parallel=2, failed_seconds=0.0):
        self.started = []
        self.ends = []
        self.later = []
        self.create_future = asyncio.get_running_loop().create_future
        self.checks = PasswordChecks(
            self.run, self, parallel=parallel, failed_seconds=failed_seconds
        )
        self.results = {}
        self.tasks = []

    async def run(self, phc, password):
        self.started.append(phc)
        end = asyncio.get_running_loop().create_future()
        self.ends.append(end)
        await end
        return password == "good"

    def call_later(self, seconds, call, *arguments):
        assert seconds
        self.later.append(partial(call, *arguments))

    async def pass_time(self):
        later, self.later = self.later, []
        for call in later:
            call()
        await self.settle()

    async def ask(self, host, *users, password="bad"):
        for user in users:
            self.tasks.append(
                asyncio.get_running_loop().create_task(self._ask(host, user, password))
            )
        await self.settle()

    async def _ask(self, host, user, password):
        self.results[user] = await self.checks.check(host, user, password)

    async def finish(self, count=1):
        for _ in range(count):
            self.ends.pop(0).set_result(None)
            await self.settle()

    @staticmethod
    async def settle():
        for _ in range(10):
            await asyncio.sleep(0)


async def test_addresses_take_turns():
    threads = Threads()
    await threads.ask("192.0.2.1", *(f"guess{number}" for number in range(100)))
    await threads.ask("192.0.2.2", "honest", password="good")
    assert threads.started == ["guess0", "guess1"]
    await threads.finish(2)
    assert "honest" in threads.started[:4]
    await threads.finish(2)
    assert threads.results["honest"] is True
    assert threads.results["guess0"] is False
    while threads.ends:
        await threads.finish()
    assert len(threads.results) == 101
    assert threads.checks.sources == 0


async def test_failed_attempts_count_until_their_answer_was_delayed():
    threads = Threads(failed_seconds=0.2)
    await threads.ask("192.0.2.1", *(f"guess{number}" for number in range(ATTEMPTS_MAX + 5)))
    while threads.ends:
        await threads.finish()
    assert len(threads.started) == ATTEMPTS_MAX
    await threads.ask("192.0.2.2", "honest", password="good")
    await threads.finish()
    assert threads.results["honest"] is True
    assert len(threads.started) == ATTEMPTS_MAX + 1
    await threads.pass_time()
    while threads.ends:
        await threads.finish()
    assert len(threads.started) == ATTEMPTS_MAX + 6
    await threads.pass_time()
    assert threads.checks.sources == 0


async def test_one_check_serves_all_that_ask_the_same():
    threads = Threads()
    for host in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        await threads.ask(host, "fleet", password="good")
    assert threads.started == ["fleet"]
    await threads.finish()
    assert [task.done() for task in threads.tasks] == [True] * 3
    assert threads.results == {"fleet": True}


async def test_who_waits_for_too_many_is_refused_at_once():
    threads = Threads(parallel=1)
    await threads.ask("192.0.2.1", *(f"guess{number}" for number in range(WAITING_MAX + 2)))
    assert threads.results == {f"guess{WAITING_MAX + 1}": False}
    for task in threads.tasks:
        task.cancel()
    await threads.settle()
    await threads.ask("192.0.2.1", "honest", password="good")
    threads.ends[-1].set_result(None)
    await threads.settle()
    assert threads.results["honest"] is True
    assert threads.checks.sources == 0


async def test_a_check_that_breaks_gives_its_thread_back():
    async def broken(_phc, _password):
        raise RuntimeError("no thread")

    loop = asyncio.get_running_loop()
    checks = PasswordChecks(broken, loop, parallel=1, failed_seconds=0)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await checks.check("192.0.2.1", "u", "p")
    assert checks.sources == 0


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_who_has_one_address_of_a_site_has_them_all(host, source):
    assert attempt_source(host) == source
