"""CC and BCC: routing keys in the headers of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk

WRONG_TYPES: list[Any] = ["not a list", 1, True, {"a": "table"}, None, 1.5]


@pytest.mark.covers("B-106")
def sender_selected_keys(talk: Talk) -> None:
    channel = talk.channel()
    words = ("one", "two", "three")
    for word in words:
        channel.declare(talk.name(word))
    headers: Any = {"CC": [talk.name("two")], "BCC": [talk.name("three"), talk.name("three")]}
    channel.publish("", talk.name("one"), headers=headers)
    for word in words:
        talk.await_messages(talk.name(word), 1)
        channel.get(talk.name(word), no_ack=True)


@pytest.mark.covers("B-106")
def sender_selected_keys_meet_in_one_queue(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "topic")
    channel.declare(talk.name("q"))
    channel.bind(talk.name("q"), talk.name("x"), "a.*")
    headers: Any = {"CC": ["a.2", "b.2", 7], "BCC": ["a.3"], "other": "stays"}
    channel.publish(talk.name("x"), "nowhere", headers=headers, message_id="m")
    talk.await_messages(talk.name("q"), 1)
    channel.get(talk.name("q"), no_ack=True)
    channel.get(talk.name("q"), no_ack=True)


@pytest.mark.covers("B-106")
def sender_selected_and_returned(talk: Talk) -> None:
    channel = talk.channel()
    headers: Any = {"CC": ["nobody"], "BCC": ["nobody else"], "x": "y"}
    channel.publish("", talk.name("none"), b"back", mandatory=True, headers=headers)
    channel.read()
    channel.publish("", talk.name("none"), mandatory=True, headers={"BCC": ["nobody"]})
    channel.read()


@pytest.mark.covers("B-106")
def sender_selected_and_confirmed(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.confirm()
    headers: Any = {"CC": [talk.name("q")]}
    channel.publish("", talk.name("none"), mandatory=True, headers=headers)
    channel.read()


@pytest.mark.covers("B-213")
def sender_selected_by_the_wrong_type(talk: Talk) -> None:
    connection = talk.connection()
    for number, wrong in enumerate(WRONG_TYPES, start=1):
        channel = connection.channel(number)
        headers: Any = {"BCC" if number % 2 else "CC": wrong}
        channel.publish("", talk.name("none"), headers=headers)
        channel.read_answer()
