"""The HTTP service that knows users, in RabbitMQ's protocol: questions, and what answers mean."""

import asyncio
import logging

import httpx
import pytest

from leveret.auth.http import REPLY_BYTES_MAX, HttpAuthenticator, HttpRules
from leveret.ports.authentication import Login, UnansweredError


class Service:
    """Answers by path and parameters; remembers what it was asked."""

    def __init__(self, *replies, method="get", topic_path="http://auth/topic"):
        self.replies, self.asked, self.now = list(replies), [], 0.0
        rules = HttpRules(
            user_path="http://auth/user",
            vhost_path="http://auth/vhost",
            resource_path="http://auth/resource",
            topic_path=topic_path,
            method=method,
            timeout_seconds=0.2,
        )
        self.authenticator = HttpAuthenticator(
            rules, b"k" * 32, 10, lambda: self.now, httpx.MockTransport(self.answer)
        )

    async def answer(self, request):
        if request.method == "POST":
            assert not request.url.query
            parameters = httpx.QueryParams((await request.aread()).decode())
        else:
            parameters = request.url.params
        self.asked.append((request.method, request.url.path, dict(parameters)))
        reply = self.replies.pop(0)
        if reply is None:
            await asyncio.sleep(5)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx.Response) else httpx.Response(200, text=reply)

    async def log_in(self, user="ann", password="s&cret +"):
        return await self.authenticator.log_in(Login(user, password, "192.0.2.1"))


async def settled(question):
    """The answer to a question, asked for where it is not known."""
    try:
        return question()
    except UnansweredError as unanswered:
        await unanswered.ask()
        return question()


@pytest.mark.covers("B-408")
@pytest.mark.parametrize("method", ["get", "post"])
async def test_the_questions_are_rabbitmqs(method):
    service = Service("allow management  monitoring", *["allow"] * 3, method=method)
    rights = await service.log_in()
    assert rights.tags == ("management", "monitoring")
    assert await settled(lambda: rights.may_enter("/"))
    assert await settled(lambda: rights.allows("/", "queue", "q", "read"))
    assert rights.restricts_topics("/", "amq.topic")
    assert await settled(lambda: rights.allows_topic("/", "amq.topic", "a.b", "write"))
    common = {"username": "ann", "vhost": "/", "tags": "management monitoring"}
    named = {**common, "permission": "read", "resource": "queue", "name": "q"}
    topic = {"permission": "write", "resource": "topic", "name": "amq.topic", "routing_key": "a.b"}
    assert service.asked == [
        (method.upper(), "/user", {"username": "ann", "password": "s&cret +"}),
        (method.upper(), "/vhost", {**common, "ip": "192.0.2.1"}),
        (method.upper(), "/resource", named),
        (method.upper(), "/topic", {**common, **topic}),
    ]


@pytest.mark.parametrize(
    ("reply", "accepted"),
    [
        ("allow", True),
        ("ALLOW administrator", True),
        (" allow \n", True),
        (httpx.Response(201, text="allow"), True),
        ("deny", False),
        ("Deny because it is Monday", False),
        ("allowed", False),
        ("", False),
        ("true", False),
        (httpx.Response(204), False),
        (httpx.Response(302, headers={"location": "http://elsewhere/"}), False),
        (httpx.Response(500, text="allow"), False),
        (httpx.Response(200, content=b"\xff\xff"), False),
        (httpx.Response(200, text="allow " + "x" * REPLY_BYTES_MAX), False),
        (httpx.ConnectError("no route"), False),
        (httpx.ReadTimeout("too late"), False),
        (None, False),
    ],
    ids=repr,
)
async def test_whatever_is_no_allow_is_a_refusal(reply, accepted, caplog):
    caplog.set_level(logging.DEBUG)
    service = Service(reply, reply)
    assert (await service.log_in() is not None) is accepted
    assert "s&cret" not in caplog.text
    assert "s%26cret" not in caplog.text


async def test_answers_are_remembered_and_refusals_shorter():
    service = Service("allow", "deny", "allow", "deny", "deny")
    rights = await service.log_in()
    assert not await settled(lambda: rights.may_enter("/"))
    assert not rights.may_enter("/")
    service.now = 3
    assert await service.log_in()
    assert len(service.asked) == 2
    assert await settled(lambda: rights.may_enter("/"))  # the refusal was forgotten
    service.now = 11
    assert await service.log_in() is None
    assert await service.log_in() is None
    assert len(service.asked) == 4


async def test_another_password_is_another_question():
    service = Service("allow", "deny", "allow")
    assert await service.log_in(password="right")
    assert await service.log_in(password="wrong") is None
    assert await service.log_in(password=None)  # a certificate speaks for the user
    assert service.asked[-1] == ("GET", "/user", {"username": "ann"})


async def test_routes_are_looked_up_again_when_answers_may_be_too_old():
    service = Service("allow")
    rights = await service.log_in()
    generation = rights.generation
    service.now = 9.9
    assert rights.generation == generation
    service.now = 10
    assert rights.generation > generation


async def test_without_an_address_for_topics_all_keys_are_open():
    service = Service("allow", topic_path="")
    rights = await service.log_in()
    assert not rights.restricts_topics("/", "x")
    assert rights.allows_topic("/", "x", "k", "write")
    assert await rights.renewed("anything") is rights
    await service.authenticator.close()
