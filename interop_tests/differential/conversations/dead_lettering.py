"""Dead letters: why messages die, where they go, and what their headers say then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk

EVERYTHING: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "message_type": "t",
    "user_id": "guest",
    "app_id": "a",
    "headers": {"text": "s", "number": 5, "list": [1, "two"], "table": {"a": True}, "none": None},
}


def _dying(talk: Talk, **arguments: Any) -> Channel:
    """A channel, a queue `q` that hands its dead to `dead`, and that one."""
    channel = talk.channel()
    channel.declare(talk.name("dead"))
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": talk.name("dead")}
    channel.declare(talk.name("q"), arguments={**dead, **arguments})
    return channel


def _reject(channel: Channel, queue: str, tag: int) -> None:
    channel.get(queue)
    channel.reject(tag, requeue=False)


def _show(talk: Talk, channel: Channel, queue: str, count: int = 1) -> None:
    talk.await_messages(talk.name(queue), count)
    for _ in range(count):
        channel.get(talk.name(queue), no_ack=True)


@pytest.mark.covers("B-150", "B-151", "B-152", "B-153", "B-155")
def rejected_goes_to_the_dead_letter_exchange(talk: Talk) -> None:
    channel = _dying(talk)
    channel.publish("", talk.name("q"), b"rejected", message_id="m")
    _reject(channel, talk.name("q"), 1)
    _show(talk, channel, "dead")


@pytest.mark.covers("B-150")
def nack_of_many_goes_to_the_dead_letter_exchange(talk: Talk) -> None:
    channel = _dying(talk)
    for number in (b"1", b"2", b"3"):
        channel.publish("", talk.name("q"), number)
    talk.await_messages(talk.name("q"), 3)
    for _ in range(3):
        channel.get(talk.name("q"))
    channel.nack(3, multiple=True, requeue=False)
    _show(talk, channel, "dead", 3)


@pytest.mark.covers("B-151", "B-152", "B-153")
def death_is_counted(talk: Talk) -> None:
    channel = talk.channel()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": talk.name("q")}
    channel.declare(talk.name("q"), arguments=arguments)
    channel.publish("", talk.name("q"), b"again and again")
    for tag in (1, 2, 3):
        _reject(channel, talk.name("q"), tag)
        talk.await_messages(talk.name("q"), 1)
    channel.get(talk.name("q"))


@pytest.mark.covers("B-150", "B-152", "B-154")
def expired_and_too_many_go_to_the_dead_letter_exchange(talk: Talk) -> None:
    channel = _dying(talk, **{"x-message-ttl": 10})
    channel.publish("", talk.name("q"), b"queue's time", expiration="60000")
    _show(talk, channel, "dead")
    channel.publish("", talk.name("q"), b"own time", expiration="1", priority=3)
    _show(talk, channel, "dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": talk.name("dead")}
    channel.declare(talk.name("short"), arguments={**dead, "x-max-length": 1})
    for word in (b"one", b"two"):
        channel.publish("", talk.name("short"), word)
    _show(talk, channel, "dead")


@pytest.mark.covers("B-152", "B-154")
def dead_letters_keep_their_properties(talk: Talk) -> None:
    channel = _dying(talk)
    channel.publish("", talk.name("q"), b"all of them", **EVERYTHING)
    _reject(channel, talk.name("q"), 1)
    _show(talk, channel, "dead")


@pytest.mark.covers("B-152", "B-155")
def dead_letters_follow_their_own_keys(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "fanout")
    channel.exchange(talk.name("dlx"), "direct")
    channel.declare(talk.name("q"), arguments={"x-dead-letter-exchange": talk.name("dlx")})
    channel.bind(talk.name("q"), talk.name("x"))
    for word, key in (("one", "main"), ("two", "copy"), ("three", "blind")):
        channel.declare(talk.name(word))
        channel.bind(talk.name(word), talk.name("dlx"), key)
    headers: Any = {"CC": ["copy"], "BCC": ["blind"], "kept": 1}
    channel.publish(talk.name("x"), "main", headers=headers)
    _reject(channel, talk.name("q"), 1)
    for word in ("one", "two", "three"):
        _show(talk, channel, word)


@pytest.mark.covers("B-106", "B-155")
def dead_letters_with_a_key_of_the_queues_lose_their_copies(talk: Talk) -> None:
    channel = _dying(talk)
    channel.publish("", talk.name("q"), headers={"CC": ["copy"], "BCC": ["blind"], "kept": 1})
    _reject(channel, talk.name("q"), 1)
    _show(talk, channel, "dead")


@pytest.mark.covers("B-151", "B-153")
def dead_letters_die_again_elsewhere(talk: Talk) -> None:
    channel = talk.channel()
    for word, following in (("a", "b"), ("b", "c"), ("c", "a")):
        arguments = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": talk.name(following),
        }
        channel.declare(talk.name(word), arguments=arguments)
    channel.publish("", talk.name("a"), b"round", headers={"mine": "kept"})
    for tag, word in enumerate("abca", start=1):
        talk.await_messages(talk.name(word), 1)
        _reject(channel, talk.name(word), tag)
    _show(talk, channel, "b")


@pytest.mark.covers("B-156")
def dead_letters_do_not_go_round_by_themselves(talk: Talk) -> None:
    channel = talk.channel()
    # In the second it stays long enough to be seen there on a busy machine.
    for name, ttl_ms, following in (("a", 20, "b"), ("b", 1000, "a")):
        arguments = {"x-dead-letter-exchange": "", "x-message-ttl": ttl_ms}
        following_key = {"x-dead-letter-routing-key": talk.name(following)}
        channel.declare(talk.name(name), arguments={**arguments, **following_key})
    channel.publish("", talk.name("a"), b"round")
    talk.await_messages(talk.name("a"), 0)
    talk.await_messages(talk.name("b"), 1)
    talk.await_messages(talk.name("b"), 0)
    channel.expect_quiet()
    channel.count(talk.name("a"))
    channel.count(talk.name("b"))


@pytest.mark.covers("B-156")
def rejected_dead_letters_may_go_round(talk: Talk) -> None:
    channel = talk.channel()
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": talk.name("work")}
    wait = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": talk.name("wait")}
    channel.declare(talk.name("wait"), arguments={**back, "x-message-ttl": 30})
    channel.declare(talk.name("work"), arguments=wait)
    channel.publish("", talk.name("work"), b"retried")
    for tag in (1, 2, 3):
        talk.await_messages(talk.name("work"), 1)
        _reject(channel, talk.name("work"), tag)
    _show(talk, channel, "work")


@pytest.mark.covers("B-158")
def dead_letters_for_a_missing_exchange_are_gone(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-dead-letter-exchange": talk.name("missing")})
    channel.publish("", talk.name("q"))
    _reject(channel, talk.name("q"), 1)
    channel.call(commands.Basic.Recover(requeue=True))
    channel.count(talk.name("q"))
    channel.exchange(talk.name("missing"), "fanout")
    channel.declare(talk.name("dead"))
    channel.bind(talk.name("dead"), talk.name("missing"))
    channel.publish("", talk.name("q"), b"the exchange has come")
    _reject(channel, talk.name("q"), 2)
    _show(talk, channel, "dead")


@pytest.mark.covers("B-157")
def dead_letters_with_a_history_of_a_clients_own(talk: Talk) -> None:
    channel = _dying(talk)
    history: Any = {"count": 7, "reason": "rejected", "queue": talk.name("q"), "exchange": ""}
    headers: Any = {"x-death": [history], "x-first-death-reason": "made up", "kept": 1}
    channel.publish("", talk.name("q"), headers=headers)
    _reject(channel, talk.name("q"), 1)
    _show(talk, channel, "dead")


@pytest.mark.covers("B-155")
def dead_letters_are_routed_by_headers_and_alternates(talk: Talk) -> None:
    channel = talk.channel()
    spare: dict[str, Any] = {"alternate-exchange": talk.name("spare")}
    channel.exchange(talk.name("spare"), "fanout")
    channel.exchange(talk.name("dlx"), "headers", arguments=spare)
    channel.declare(talk.name("q"), arguments={"x-dead-letter-exchange": talk.name("dlx")})
    channel.declare(talk.name("matched"))
    channel.declare(talk.name("others"))
    channel.bind(talk.name("matched"), talk.name("dlx"), arguments={"a": "b"})
    channel.bind(talk.name("others"), talk.name("spare"))
    for tag, value in enumerate("bc", start=1):
        channel.publish("", talk.name("q"), value.encode(), headers={"a": value})
        talk.await_messages(talk.name("q"), 1)
        _reject(channel, talk.name("q"), tag)
    _show(talk, channel, "matched")
    _show(talk, channel, "others")


@pytest.mark.covers("B-155")
def dead_letters_go_to_every_queue(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("dlx"), "fanout", internal=True)
    channel.declare(talk.name("q"), arguments={"x-dead-letter-exchange": talk.name("dlx")})
    for word in ("one", "two"):
        channel.declare(talk.name(word))
        channel.bind(talk.name(word), talk.name("dlx"))
    channel.bind(talk.name("q"), talk.name("dlx"))
    channel.publish("", talk.name("q"), b"x" * 5000)
    _reject(channel, talk.name("q"), 1)
    for word in ("one", "two", "q"):
        _show(talk, channel, word)


@pytest.mark.covers("B-144", "B-150")
def refused_publishes_become_dead_letters(talk: Talk) -> None:
    channel = _dying(talk, **{"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    channel.confirm()
    channel.publish("", talk.name("q"), b"first")
    channel.read()
    channel.publish("", talk.name("q"), b"second")
    channel.read()
    _show(talk, channel, "dead")
    _show(talk, channel, "q")


@pytest.mark.covers("B-112", "B-150")
def dead_letters_wait_for_the_commit(talk: Talk) -> None:
    channel = _dying(talk)
    channel.publish("", talk.name("q"))
    channel.get(talk.name("q"))
    channel.call(commands.Tx.Select())
    channel.reject(1, requeue=False)
    channel.count(talk.name("dead"))
    channel.call(commands.Tx.Rollback())
    channel.nack(1, requeue=False)
    channel.call(commands.Tx.Commit())
    _show(talk, channel, "dead")


@pytest.mark.covers("B-159")
def dead_letters_arrive_at_least_once(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("dead"))
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": talk.name("dead"),
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    channel.declare(talk.name("q"), durable=True, arguments=arguments)
    channel.publish("", talk.name("q"), b"sure", delivery_mode=2)
    talk.await_messages(talk.name("q"), 1)
    _reject(channel, talk.name("q"), 1)
    _show(talk, channel, "dead")


@pytest.mark.covers("B-142", "B-150")
def too_many_deliveries_end_in_a_dead_letter(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("dead"))
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": talk.name("dead"),
        "x-delivery-limit": 1,
    }
    channel.declare(talk.name("q"), durable=True, arguments=arguments)
    channel.publish("", talk.name("q"), b"poison", delivery_mode=2)
    for tag in (1, 2):
        talk.await_messages(talk.name("q"), 1)
        channel.get(talk.name("q"))
        channel.reject(tag, requeue=True)
    _show(talk, channel, "dead")
