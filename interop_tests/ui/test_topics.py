"""Topics in a real browser: partitions looked at, changed by keyboard, and gone through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop_tests.ui.conftest import Site
    from interop_tests.ui.window import View

MESSAGES = 60
READY = "document.querySelector('[data-figure=messages]').innerText"


@pytest.fixture
def queue(site: Site, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue with three partitions of the test's own, with messages in each."""
    name = f"topics.{request.node.name.removeprefix('test_')[:40]}"
    site.channel.queue_declare(name, durable=True, arguments={"x-partitions": 3})
    for number in range(MESSAGES):
        publish(site, name, number)
    yield name
    site.channel.queue_delete(name)


def publish(site: Site, queue: str, number: int) -> None:
    headers = {"x-partition-key": f"customer-{number}"}
    properties = pika.BasicProperties(headers=headers, delivery_mode=2)
    site.channel.basic_publish("", queue, b"order %d" % number, properties)


def take_all(site: Site, queue: str) -> None:
    """Consume everything, so that retired partitions can go."""
    for method, _, _ in site.channel.consume(queue, inactivity_timeout=1):
        if method is None:
            break
        site.channel.basic_ack(method.delivery_tag)
    site.channel.cancel()


def address(queue: str) -> str:
    return f"/topics/%2F/{queue}"


def test_pages_fit_and_are_quiet(site: Site, view: View, queue: str) -> None:
    view.sign_in()
    messages = f"/queues/%2F/{queue}/messages"
    paths = ("/topics", address(queue), messages, f"{messages}/0?partition=1")
    for path in (*paths, f"{messages}/0/edit?partition=1", f"/queues/%2F/{queue}"):
        view.go(path)
        view.page.wait_for_timeout(400)
        width = view.page.evaluate("document.documentElement.scrollWidth")
        assert width <= view.page.viewport_size["width"], path
        assert view.page.get_by_text(queue).first.is_visible()
    view.go(address(queue))
    bars = view.page.locator("td.lag rect.waiting")
    assert bars.count() == 3
    assert all(bars.nth(number).bounding_box()["width"] > 5 for number in range(3))


def test_the_list_is_live_and_filtered(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    desk.go("/topics")
    page.locator("#list").get_by_role("link", name=queue).wait_for()
    page.locator("#list").get_by_role("link", name="events").wait_for()  # the shop's stream
    page.get_by_label("Partitions").select_option("several")
    page.locator("#list").get_by_role("link", name="events").wait_for(state="hidden")
    row = page.locator("#list tr", has=page.get_by_role("link", name=queue))
    row.get_by_role("cell", name=str(MESSAGES), exact=True).wait_for()
    publish(site, queue, 0)
    row.get_by_role("cell", name=str(MESSAGES + 1), exact=True).wait_for()


def test_partitions_are_changed_by_keyboard(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    desk.go(f"/queues/%2F/{queue}")
    page.get_by_role("link", name="Topic", exact=True).click()
    page.get_by_role("link", name="Change partitions").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Partitions", exact=True).and_(page.locator("input")).focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.get_by_role("cell", name="takes no more messages").first.wait_for()
    page.get_by_text("messages of a key may go to another partition").wait_for()
    page.get_by_role("button", name=f"Give {queue} 1 partition").focus()
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("has 1 partition now").wait_for()
    assert page.locator("tr.retired").count() == 2
    take_all(site, queue)
    page.locator("tr.retired").first.wait_for(state="hidden")  # the table is renewed
    page.wait_for_function(f"{READY} === '0'")


def test_messages_of_each_partition_are_gone_through(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    desk.go(address(queue))
    page.get_by_role("link", name="Messages of partition 2").click()
    page.get_by_role("heading", name="Messages of").wait_for()
    assert page.locator("select[name=partition]").input_value() == "2"
    page.locator("select[name=partition]").select_option("1")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**partition=1**")
    page.get_by_label("Select message 0", exact=True).check()
    page.locator("summary", has_text="Delete").click()
    page.get_by_role("button", name="Delete the messages").click()
    page.get_by_role("status").get_by_text("1 messages of queue").wait_for()
    assert "partition=1" in page.url
    page.get_by_role("link", name="1", exact=True).click()
    page.get_by_text("partition 1", exact=True).wait_for()
    page.get_by_role("link", name="Edit and republish").click()
    page.locator("textarea[name=payload]").fill("changed")
    page.get_by_role("button", name="Send the message").click()
    page.get_by_role("status").get_by_text("was replaced").wait_for()
    assert page.locator("select[name=partition]").input_value() == "1"
    page.get_by_role("link", name="changed").wait_for()
