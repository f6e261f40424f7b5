"""People at work with messages, schedules, dead letters and users, in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika
import pytest

from interop_tests.ui.conftest import HOSTILE
from interop_tests.ui.window import DESK, View

if TYPE_CHECKING:
    from interop_tests.ui.conftest import Site

PAGES = {
    "schedules": "Schedules",
    "retries": "Retries",
    "dead-letters": "Dead letters",
    "once": "De-duplication",
    "alerts": "Alerts",
    "usage": "Usage",
    "audit": "Audit log",
    "users": "Users",
    "policies": "Policies",
    "limits": "Limits",
    "definitions": "Definitions",
    "encryption": "Encryption",
}


@pytest.fixture
def queue(site: Site, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name = f"work.{request.node.name.removeprefix('test_')[:40]}"
    site.channel.queue_declare(name, durable=True, arguments={"x-dead-letter-topic": True})
    site.channel.queue_purge(name)
    return name


def body_cells(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("td.preview").all_inner_texts()]


def choose(page: Any, at: int = 0) -> None:
    page.locator("tbody input[type=checkbox]").nth(at).check()


def test_every_page_is_there(site: Site, view: View) -> None:
    headers = {"x-delay": 3_600_000, HOSTILE: HOSTILE}
    site.channel.basic_publish("", "worker.01", b"{}", pika.BasicProperties(headers=headers))
    view.sign_in()
    for name, title in PAGES.items():
        view.go(f"/{name}")
        assert view.page.locator("h1").inner_text() == title
        width = view.page.evaluate("document.documentElement.scrollWidth")
        assert width <= view.page.viewport_size["width"], name
    view.go("/queues/%2F/orders.created/messages")


@pytest.mark.covers("C-214")
def test_publishing_searching_and_moving(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    desk.go(f"/queues/%2F/{queue}")
    page.get_by_role("link", name="Messages", exact=True).click()
    for body in ('{"order": 1}', HOSTILE):
        page.get_by_text("Publish a message").click()
        page.get_by_label("Headers (JSON object)").fill('{"customer": 17}')
        page.get_by_label("Body", exact=True).fill(body)
        page.get_by_role("button", name="Publish the message").click()
        page.get_by_text("The message was published").wait_for()
    assert body_cells(page) == [HOSTILE, '{"order": 1}']
    page.get_by_label("Body contains").fill("order")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**text=order**")
    assert body_cells(page) == ['{"order": 1}']
    page.locator("td.preview a").click()
    assert '"order": 1' in page.locator("pre.body").inner_text()
    page.get_by_role("link", name="hex", exact=True).click()
    assert "7b 22 6f 72" in page.locator("pre.body").inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the body").click()
    assert download.value.path().read_bytes() == b'{"order": 1}'
    desk.go(f"/queues/%2F/{queue}/messages?text=order")
    choose(page)
    page.get_by_text("Move or copy").click()
    page.get_by_label("Queue", exact=True).fill("worker.02")
    page.get_by_role("button", name="Move the messages").click()
    page.get_by_text("1 messages of queue").wait_for()
    assert site.channel.basic_get("worker.02", auto_ack=True)[2] == b'{"order": 1}'


def test_publishing_on_an_exchange_and_sending_again(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    desk.go("/exchanges/%2F/amq.direct")
    page.get_by_role("link", name="Publish").click()
    form = page.locator("#publish")
    form.get_by_label("Routing key").fill(queue)
    form.get_by_label("Body", exact=True).fill("typed")
    send = form.get_by_role("button", name="Publish the message")
    send.click()
    form.get_by_text("No queue took the message").wait_for()
    site.channel.queue_bind(queue, "amq.direct", queue)
    send.click()  # the form is as it was
    form.get_by_text("The message was published to exchange amq.direct").wait_for()
    desk.go(f"/queues/%2F/{queue}/messages")
    page.locator("td.preview a").click()
    page.get_by_role("link", name="Edit and republish").click()
    body = page.locator("textarea[name=payload]")
    assert body.input_value() == "typed"
    body.fill("\n\nchanged")
    page.get_by_role("button", name="Send the message").click()
    page.get_by_text("at the tail of queue").wait_for()
    assert site.channel.basic_get(queue, auto_ack=True)[2] == b"\n\nchanged"
    assert site.channel.basic_get(queue, auto_ack=True)[0] is None


def test_scheduling_and_calling_off(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    properties = pika.BasicProperties(headers={"x-delay": 1_800_000})
    site.channel.basic_publish("", queue, b"later", properties)
    address = f"/schedules?routing_key={queue}"
    desk.go(address)
    assert page.locator("rect.bar").count() == 1
    choose(page)
    page.get_by_text("Cancel…").click()
    page.get_by_role("button", name="Cancel delivery").click()
    page.get_by_text("were cancelled").wait_for()
    desk.go(address)
    page.get_by_text("No waiting message matches").wait_for()


def test_failing_and_redriving(site: Site, desk: View, queue: str) -> None:
    page, channel = desk.page, site.channel
    for number in range(3):
        properties = pika.BasicProperties(message_id=f"m{number}")
        channel.basic_publish("", queue, b"x", properties)
    for _ in range(3):
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=False)
    desk.go("/dead-letters")
    page.get_by_role("link", name=f"{queue}.dlq").click()
    page.get_by_text("rejected").first.wait_for()
    page.get_by_label("With").select_option("matching")
    page.get_by_text("Redrive…").click()
    page.get_by_label("Messages per second").fill("2")
    page.get_by_role("button", name="Redrive the messages").click()
    page.get_by_text("3 moved, 3 of 3 scanned").wait_for()  # the page renews the progress
    assert channel.queue_declare(queue, passive=True).method.message_count == 3


def test_a_new_user_sees_only_his_virtual_host(chromium: Any, site: Site, desk: View) -> None:
    page = desk.page
    desk.go("/vhosts")
    page.get_by_text("Add a virtual host").click()
    page.get_by_label("Name", exact=True).fill("annas")
    page.get_by_role("button", name="Add the virtual host").click()
    desk.go("/users")
    page.get_by_text("Add a user").click()
    page.get_by_label("Name", exact=True).fill("anna")
    page.get_by_label("Password").fill("annas secret")
    page.get_by_label("Tags, separated by commas").fill("management")
    page.get_by_role("button", name="Add the user").click()
    page.wait_for_url("**/users/anna")
    page.get_by_label("Virtual host").first.select_option("annas")
    page.get_by_role("button", name="Set the permissions").click()
    page.get_by_text("permissions of user anna in annas were set").wait_for()
    anna = View(chromium, site.address, "light", DESK)
    anna.go("/login")
    anna.page.get_by_label("User").fill("anna")
    anna.page.get_by_label("Password").fill("annas secret")
    anna.page.get_by_role("button", name="Sign in").click()
    anna.page.wait_for_url("**/overview")
    anna.go("/vhosts")
    assert anna.page.locator("td.name a").all_inner_texts() == ["annas"]
    anna.go("/queues")
    assert anna.page.locator("tbody tr").count() == 0
    assert anna.page.get_by_role("link", name="Users").count() == 0
    assert anna.page.goto(f"{site.address}/queues/%2F/orders.created/messages").status == 403
    anna.context.close()
