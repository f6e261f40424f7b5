"""Schedules, retries and dead letters: what waits, what died, and what is done about it."""

import re

import pytest

from leveret.ports.definitions import PermissionDefinition
from tests.support.browser import Browser
from tests.support.client import Client
from tests.support.visitor import Visitor
from tests.support.waiting import wait_until

HOSTILE = "<script>alert(1)</script>"
HOUR_MS = 3_600_000


@pytest.fixture
def guest(visitor):
    visitor.declare("q")
    return visitor


def ids(text):
    return re.findall(r'type="checkbox" name="id" value="([^"]+)"', text)


def schedule_ids(text):
    return re.findall(r'<a class="code" href="[^"]+">([^<]+)</a>', text)


def offsets(text):
    return re.findall(r'name="offset" value="([^"]+)"', text)


def delay(guest, key="q", milliseconds=HOUR_MS, **more):
    """By AMQP a key that nobody takes is fine; here the queue takes it when it is due."""
    properties = {"headers": {"x-delay": milliseconds}, **more}
    asked = {"properties": properties, "routing_key": key, "payload": "x"}
    answer = guest.api.post(
        "/exchanges/%2F/amq.default/publish", json={**asked, "payload_encoding": "string"}
    )
    assert answer.status_code == 200


def fail(guest, queue, *bodies):
    """Let a queue's consumer reject messages."""
    for number, body in enumerate(bodies):
        guest.publish(queue, body, message_id=f"m{number}")
    asked = {"count": len(bodies), "ackmode": "reject_requeue_false", "encoding": "auto"}
    assert len(guest.api.post(f"/queues/%2F/{queue}/get", json=asked).json()) == len(bodies)


@pytest.mark.covers("C-202")
def test_schedules(guest):
    assert "There are no delayed messages" in guest.text("/schedules")
    for hours in (1, 2, 2, 5):
        delay(guest, milliseconds=hours * HOUR_MS)
    text = guest.text("/schedules")
    assert text.count('<rect class="bar"') == 3
    first, second, third, fourth = ids(text)
    assert "No waiting message matches" in guest.text("/schedules?exchange=elsewhere")
    said = guest.done("/schedules/deliver", vhost="/", id=first)
    assert said == ["1 messages of / were delivered."]
    assert 'name="offset"' in guest.text("/queues/%2F/q/messages")
    guest.done("/schedules/reschedule", vhost="/", id=fourth, delay_minutes="1")
    assert ids(guest.text("/schedules")) == [fourth, second, third]
    guest.done("/schedules/reschedule", vhost="/", id=second, due="2023-12-01T00:00")
    assert "2023-12-01 00:00:00" in guest.text("/schedules")
    said = guest.done("/schedules/cancel", vhost="/", id=[second, third, fourth])
    assert said == ["3 messages of / were cancelled."]
    assert "select some messages" in guest.done("/schedules/cancel", vhost="/")[0]
    assert "no message with id" in guest.done("/schedules/cancel", vhost="/", id=first)[0]
    assert guest.submit("/schedules/reschedule", vhost="/", id="1").status_code == 400
    assert guest.client.get("/schedules?vhost=nowhere").status_code == 404


def test_who_may_not_publish_leaves_schedules_alone(guest, live_site):
    task = {"task": "report.make", "id": "1", "argsrepr": "('anna',)"}
    delay(guest, headers={"x-delay": HOUR_MS, **task})
    text = guest.text("/schedules")
    assert "report.make(&#39;anna&#39;)" in text
    [id_] = ids(text)
    live_site.add_user("reader", "management")
    live_site.permit("reader", "/", ".*", "^$", ".*")
    with Visitor(live_site, "reader") as reader:
        text = reader.text("/schedules")
        assert "1 waiting in /" in text
        assert "report.make" not in text
        assert ids(reader.text("/schedules")) == []
        for verb in ("cancel", "deliver", "reschedule"):
            answer = reader.submit(f"/schedules/{verb}", vhost="/", id=id_, delay_minutes="1")
            assert answer.status_code == 403
    assert ids(guest.text("/schedules")) == [id_]


def test_retries(guest):
    guest.declare("r", **{"x-retry-delays": [HOUR_MS]})
    assert '<a href="/retries/%2F/r">r</a>' in guest.text("/retries")
    assert "No messages of this queue are waiting" in guest.text("/retries/%2F/r")
    fail(guest, "r", "1", "2", "3")
    assert len(ids(guest.text("/retries/%2F/r"))) == 3
    text = guest.text("/retries/%2F/r")
    assert ">1970-" not in text  # the first failure is told in seconds, other times are not
    found = ids(text)
    said = guest.done("/retries/%2F/r/now", which="chosen", id=found[0])
    assert said == ["1 messages of queue r were retried."]
    said = guest.done("/retries/%2F/r/cancel", which="all")
    assert said == ["2 messages of queue r were deleted."]
    assert "select some messages" in guest.done("/retries/%2F/r/cancel")[0]
    assert "a number" in guest.done("/retries/%2F/r/cancel", id="x")[0]
    assert guest.client.get("/retries/%2F/nowhere").status_code == 404


def test_delayed_messages_are_looked_for_and_looked_at(guest, live_site):
    for number in range(3):
        headers = {"x-delay": HOUR_MS * (number + 1), "x-schedule-id": f"s{number}", "n": number}
        delay(guest, headers=headers, message_id=f"m{number}", type="order", priority=3)
    assert schedule_ids(guest.text("/schedules?id=s1")) == ["s1"]
    assert schedule_ids(guest.text("/schedules?message_id=m2")) == ["s2"]
    assert schedule_ids(guest.text("/schedules?header=n%3D0")) == ["s0"]
    assert ids(guest.text("/schedules?due_from=2200-01-01T00:00")) == []
    assert len(ids(guest.text("/schedules?due_before=2200-01-01T00:00"))) == 3
    assert guest.client.get("/schedules?header=n").status_code == 400
    text = guest.text("/schedules/messages/s1?vhost=%2F")
    for shown in ("m1", "order", "x-schedule-id", '<pre class="card body" tabindex="0">x</pre>'):
        assert shown in text
    assert guest.client.get("/schedules/messages/none?vhost=%2F").status_code == 404
    live_site.add_user("looker", "management")
    live_site.permit("looker", "/", ".*", "^$", ".*")
    with Visitor(live_site, "looker") as looker:
        assert "s1" in looker.text("/schedules")
        assert "m1" not in looker.text("/schedules")
        for path in ("?message_id=m1", "?header=n%3D1", "/messages/s1?vhost=%2F"):
            assert looker.client.get(f"/schedules{path}").status_code == 403


def test_messages_of_several_users_with_one_id_are_chosen_apart(guest, live_site):
    live_site.add_user("other", "management")
    live_site.permit("other", "/")
    headers = {"x-delay": HOUR_MS, "x-schedule-id": "same"}
    delay(guest, headers=headers, message_id="guest's")
    with Visitor(live_site, "other") as other:
        delay(other, headers=headers, message_id="other's")
    text = guest.text("/schedules")
    assert schedule_ids(text) == ["same", "same"]
    first, second = ids(text)
    assert "guest&#39;s" in guest.text(f"/schedules/messages/{first}?vhost=%2F")
    said = guest.done("/schedules/cancel", vhost="/", id=first)
    assert said == ["1 messages of / were cancelled."]
    assert ids(guest.text("/schedules")) == [second]


def test_retries_are_looked_for_and_looked_at(guest):
    guest.declare("rs", **{"x-retry-delays": [HOUR_MS]})
    fail(guest, "rs", "zero", "one")
    here = "/retries/%2F/rs"
    assert len(ids(guest.text(here))) == 2
    [second] = ids(guest.text(f"{here}?message_id=m1"))
    assert ids(guest.text(f"{here}?id={second}")) == [second]
    assert ids(guest.text(f"{here}?header=x-retry-count%3D1")) != []
    assert "No waiting message matches" in guest.text(f"{here}?message_id=other")
    text = guest.text(f"{here}/messages/{second}")
    assert "m1" in text
    assert ">one</pre>" in text
    assert guest.client.get(f"{here}/messages/999").status_code == 404


def figure(text, name):
    return re.search(rf'data-figure="{name}"[^>]*>([^<]*)<', text)[1]


def test_what_waits_is_told_apart_on_the_page_of_its_queue(guest):
    guest.declare("w", **{"x-retry-delays": [HOUR_MS], "x-celery-eta": True})
    fail(guest, "w", "1", "2")
    for number in range(3):
        task(guest, "w", number)
    guest.publish("w", "late")
    base = "/leveret/queues/%2F/w"
    [pulled] = guest.api.post(f"{base}/receive", json={}).json()["messages"]
    handles = [pulled["receipt_handle"]]
    guest.api.post(f"{base}/nack", json={"receipt_handles": handles, "delay_ms": HOUR_MS})
    told = {
        "messages_ready": 0,
        "messages_unacknowledged": 0,
        "messages_delayed": 1,
        "messages": 1,
        "messages_waiting_for_retry": 2,
        "messages_waiting_for_eta": 3,
    }

    row = guest.api.get("/queues/%2F/w").json()
    assert {name: row[name] for name in told} == told
    text = guest.text("/queues/%2F/w")
    assert {name: int(figure(text, name)) for name in told} == told
    for label, name in (
        ("Waiting for a retry", "messages_waiting_for_retry"),
        ("Waiting for their ETA", "messages_waiting_for_eta"),
        ("Delayed requeue", "messages_delayed"),
    ):
        assert re.search(rf'<dt>{label}</dt>\s*<dd data-figure="{name}"', text), label


def test_a_purge_takes_what_waits_where_the_box_is_checked(guest):
    guest.declare("p", **{"x-retry-delays": [HOUR_MS]})
    assert 'name="waiting"' not in guest.text("/queues/%2F/p")  # nothing does
    fail(guest, "p", "1", "2")
    assert "or an ETA (2)" in guest.text("/queues/%2F/p")
    said = guest.done("/queues/%2F/p/purge")
    assert said == ["The ready messages of queue p were deleted."]
    assert len(ids(guest.text("/retries/%2F/p"))) == 2
    said = guest.done("/queues/%2F/p/purge", waiting="1")
    assert said == ["The ready and waiting messages of queue p were deleted."]
    assert ids(guest.text("/retries/%2F/p")) == []


def test_dead_letters_and_their_redrive(guest):
    guest.declare("d", **{"x-dead-letter-topic": True})
    fail(guest, "d", "1", "2", "3")
    here = "/dead-letters/%2F/d.dlq"
    assert here in guest.text("/dead-letters")
    assert len(offsets(guest.text(here))) == 3
    text = guest.text(here)
    assert "rejected" in text
    assert 'hx-trigger="every 1s"' not in text
    assert offsets(guest.text(f"{here}?reason=rejected&source=d")) == offsets(text)
    assert offsets(guest.text(f"{here}?message_id=m1")) == ["1"]
    assert "No dead letter matches" in guest.text(f"{here}?reason=expired")
    assert "name=value" in guest.text(f"{here}?header=x")
    assert guest.done(f"{here}/redrive", offset="1", rate="1", to="back") == []
    wait_until(lambda: "1 moved" in guest.text(here))
    assert offsets(guest.text(here)) == ["0", "2"]
    assert guest.done(f"{here}/delete", offset="0") == ["1 messages of queue d.dlq were deleted."]
    assert "state which messages" in guest.done(f"{here}/delete", which="matching")[0]
    assert "select some messages" in guest.done(f"{here}/redrive")[0]
    assert "whole number" in guest.done(f"{here}/redrive", offset="m0")[0]


def test_dead_letters_without_or_with_equal_ids_are_chosen_one_by_one(guest):
    guest.declare("same", **{"x-dead-letter-topic": True})
    for number, message_id in enumerate(("1", "1", "0", None)):
        properties = {} if message_id is None else {"message_id": message_id}
        guest.publish("same", str(number), **properties)
    asked = {"count": 4, "ackmode": "reject_requeue_false", "encoding": "auto"}
    guest.api.post("/queues/%2F/same/get", json=asked)
    here = "/dead-letters/%2F/same.dlq"
    assert offsets(guest.text(here)) == ["0", "1", "2", "3"]
    said = guest.done(f"{here}/delete", offset=["0", "3"])
    assert said == ["2 messages of queue same.dlq were deleted."]
    assert offsets(guest.text(here)) == ["1", "2"]


def test_a_redrive_is_paused_resumed_and_cancelled(guest):
    guest.declare("e", **{"x-dead-letter-topic": True})
    fail(guest, "e", *map(str, range(30)))
    here = "/dead-letters/%2F/e.dlq"
    assert len(offsets(guest.text(here))) == 30
    guest.done(f"{here}/redrive", which="matching", rate="1")
    assert 'hx-trigger="every 1s"' in guest.text(here)
    assert guest.done(f"{here}/redrive/pause") == ["The redrive of queue e.dlq is paused."]
    assert f"{here}/redrive/resume" in guest.text(here)
    assert guest.done(f"{here}/redrive/resume") == ["The redrive of queue e.dlq is resumed."]
    assert guest.done(f"{here}/redrive/cancel") == ["The redrive of queue e.dlq is cancelled."]
    assert "cancelled" in guest.text(here)
    assert guest.submit(f"{here}/redrive/destroy").status_code == 404


def test_who_may_not_publish_everywhere_names_an_exchange_for_a_redrive(guest, live_site):
    guest.declare("f", **{"x-dead-letter-topic": True})
    fail(guest, "f", "1")
    here = "/dead-letters/%2F/f.dlq"
    assert here in guest.text("/dead-letters")
    live_site.add_user("some", "management")
    live_site.permit("some", "/", ".*", r"^(amq\.default|amq\.fanout)$", ".*")
    with Visitor(live_site, "some") as visitor:
        assert "Redrive the messages" not in visitor.text(here)
        for to in ("back", "routed"):
            answer = visitor.submit(f"{here}/redrive", which="matching", to=to)
            assert answer.status_code == 403
        fields = {"which": "matching", "to": "exchange"}
        assert visitor.submit(f"{here}/redrive", **fields, exchange="amq.direct").status_code == 403
        assert visitor.submit(f"{here}/redrive", **fields, exchange="amq.fanout").status_code == 303
    assert "Redrive the messages" in guest.text(here)


def task(guest, queue, number, eta="2999-01-01T00:00:00", **headers):
    """Return the message that Celery sends for `mail.send.delay(number)`."""
    called = {"task": "mail.send", "id": f"t{number}", "argsrepr": f"({number},)", "eta": eta}
    guest.publish(queue, f"[[{number}],{{}},{{}}]", headers={**called, **headers})


def test_tasks_that_a_queue_holds(guest, live_site):
    guest.declare("held", **{"x-celery-eta": True})
    here = "/schedules?vhost=%2F&queue=held"
    assert "No tasks are waiting for held" in guest.text(here)
    for number in (17, 18):
        task(guest, "held", number)
    assert "Held tasks: 2" in guest.text("/queues/%2F/held")
    assert "Celery tasks of held (2)" in guest.text("/schedules")
    text = guest.text(here)
    assert "mail.send(17)" in text
    assert "Reschedule" not in text  # a task's ETA is its own
    first, second = ids(text)
    live_site.add_user("writer", "management")
    live_site.permit("writer", "/", "^$", ".*", "^$")
    with Visitor(live_site, "writer") as writer:
        assert "tasks of held" not in writer.text("/schedules")
        assert "mail.send" not in writer.text(here)
        fields = {"vhost": "/", "queue": "held", "id": first}
        assert writer.submit("/schedules/cancel", **fields).status_code == 403
    said = guest.done("/schedules/cancel", vhost="/", queue="held", id=first)
    assert said == ["1 messages of / were cancelled."]
    assert ids(guest.text(here)) == [second]
    said = guest.done("/schedules/cancel", vhost="/", id=second)
    assert "no message with id" in said[0]  # not among the delayed ones


def test_tasks_are_told_wherever_messages_are_shown(guest):
    arguments = {"x-dead-letter-topic": True, "x-retry-delays": [HOUR_MS]}
    guest.declare("tasks", **arguments)
    task(guest, "tasks", 1)
    asked = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
    assert "mail.send(1)" in guest.text("/queues/%2F/tasks/messages")
    guest.api.post("/queues/%2F/tasks/get", json=asked)
    assert "mail.send(1)" in guest.text("/retries/%2F/tasks")
    guest.declare("given.up", **{"x-dead-letter-topic": True})
    task(guest, "given.up", 2, kwargsrepr=f"{{'to': '{HOSTILE}'}}")
    guest.api.post("/queues/%2F/given.up/get", json=asked)
    assert "/dead-letters/%2F/given.up.dlq" in guest.text("/dead-letters")
    assert "mail.send" in guest.text("/dead-letters/%2F/given.up.dlq")
    text = guest.text("/dead-letters/%2F/given.up.dlq")
    assert "mail.send(2, {&#39;to&#39;: &#39;&lt;script&gt;" in text
    offset = re.search(r"given\.up\.dlq/messages/(\d+)", text)[1]
    text = guest.text(f"/queues/%2F/given.up.dlq/messages/{offset}")
    assert "Celery task" in text
    assert "ETA" in text
    assert "<script>alert" not in text


def test_a_strangers_text_is_no_markup(guest):
    delay(guest, HOSTILE)
    guest.declare("h", **{"x-dead-letter-topic": True})
    fail(guest, "h", HOSTILE)
    guest.publish("h", HOSTILE, message_id=HOSTILE, headers={"x-death": HOSTILE, HOSTILE: "'"})
    paths = ["/schedules", f"/schedules?exchange={HOSTILE}", "/dead-letters/%2F/h", "/dead-letters"]
    for path in [*paths, f"/dead-letters/%2F/h?source={HOSTILE}&header={HOSTILE}"]:
        assert "<script>alert" not in guest.text(path)
    assert HOSTILE not in guest.text("/dead-letters/%2F/h")


WRITES = (
    ("/schedules/cancel", {"vhost": "/", "id": "1"}),
    ("/schedules/cancel", {"vhost": "/", "id": "1", "queue": "q"}),
    ("/schedules/deliver", {"vhost": "/", "id": "1"}),
    ("/schedules/reschedule", {"vhost": "/", "id": "1", "delay_minutes": "1"}),
    ("/retries/%2F/q/now", {"which": "all"}),
    ("/retries/%2F/q/cancel", {"which": "all"}),
    ("/dead-letters/%2F/q/redrive", {"which": "matching"}),
    ("/dead-letters/%2F/q/redrive/pause", {}),
    ("/dead-letters/%2F/q/delete", {"which": "matching"}),
)


@pytest.mark.parametrize(("path", "fields"), WRITES)
def test_forms_without_the_token_are_refused(guest, path, fields):
    assert guest.submit(path, **{**fields, "csrf_token": "wrong"}).status_code == 403


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_strangers_are_refused(browser, path, fields):
    assert (await browser.submit(path, **fields)).status_code == 401


@pytest.mark.parametrize(("path", "fields"), WRITES[4:])
async def test_who_may_not_consume_is_refused(site, path, fields):
    Client(site.stage).open().declare("q", durable=True, arguments={"x-retry-delay": 10})
    site.add_user("reader", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "reader", "^$", ".*", "^$"))
    browser = Browser(site)
    await browser.sign_in("reader")
    assert (await browser.submit(path, **fields)).status_code == 403
    for page in ("/retries", "/dead-letters"):
        assert "%2F/q" not in await browser.text(page)
    assert (await browser.get("/retries/%2F/q")).status_code == 403
    assert (await browser.get("/dead-letters/%2F/q")).status_code == 403
