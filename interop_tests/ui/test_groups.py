"""Consumer groups in a real browser: looked at, moved by keyboard, deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop_tests.ui.conftest import Site
    from interop_tests.ui.window import View

MESSAGES = 40
TEXT_OF_LAG = "document.querySelector('[data-figure=lag]').innerText"


@pytest.fixture
def queue(site: Site, request: pytest.FixtureRequest) -> Iterator[str]:
    """A stream of the test's own, with messages."""
    name = f"groups.{request.node.name.removeprefix('test_')[:40]}"
    site.channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for number in range(MESSAGES):
        site.channel.basic_publish("", name, b"click %d" % number)
    yield name
    site.channel.queue_delete(name)


def member(site: Site, queue: str, group: str, acknowledged: int) -> Any:
    """A consumer on a channel of its own, which has acknowledged some messages."""
    channel = site.connection.channel()
    channel.basic_qos(prefetch_count=10)
    arguments = {"x-consumer-group": group, "x-stream-offset": "first"}
    taken = channel.consume(queue, arguments=arguments, inactivity_timeout=10)
    for method, _, _ in taken:
        assert method is not None
        channel.basic_ack(method.delivery_tag)
        acknowledged -= 1
        if acknowledged == 0:
            break
    site.connection.process_data_events(0.2)
    return channel


def address(queue: str, group: str) -> str:
    return f"/consumer-groups/%2F/{queue}/{group}"


def test_pages_fit_and_are_quiet(site: Site, view: View, queue: str) -> None:
    channel = member(site, queue, "billing", 15)
    view.sign_in()
    for path in ("/consumer-groups", address(queue, "billing"), f"/queues/%2F/{queue}"):
        view.go(path)
        view.page.wait_for_timeout(400)
        width = view.page.evaluate("document.documentElement.scrollWidth")
        assert width <= view.page.viewport_size["width"], path
        assert view.page.get_by_text("billing").first.is_visible()
    view.go(address(queue, "billing"))
    bar = view.page.locator("td.lag rect.waiting")
    assert bar.bounding_box()["width"] > 5
    assert view.page.get_by_role("cell", name="order service", exact=True).is_visible()
    view.page.locator("summary", has_text="Delete").click()
    panel = view.page.locator(".panel:visible").bounding_box()
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= view.page.viewport_size["width"]
    channel.close()


def test_lag_and_members_are_live(site: Site, desk: View, queue: str) -> None:
    desk.go("/consumer-groups?queue=" + queue)
    desk.page.get_by_text("Nothing matches the filter").or_(
        desk.page.get_by_text("There are no consumer groups")
    ).wait_for()
    channel = member(site, queue, "billing", 15)
    desk.page.locator("#list").get_by_role("link", name="billing").click()  # the list is renewed
    desk.page.wait_for_url("**/billing")
    before = desk.page.evaluate(TEXT_OF_LAG)
    site.channel.basic_publish("", queue, b"one more")
    desk.page.wait_for_function(f"before => {TEXT_OF_LAG} !== before", arg=before)
    channel.close()
    desk.page.get_by_text("No members.").wait_for()
    desk.page.locator("#state .empty").wait_for()
    desk.page.get_by_text("The group is in use").wait_for(state="hidden")


def test_a_group_is_reset_by_keyboard_and_deleted(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    member(site, queue, "billing", 15).close()
    desk.go(f"/queues/%2F/{queue}")
    page.get_by_role("link", name="billing").click()
    page.get_by_role("link", name="Reset offsets").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Offset of the first message").focus()
    page.keyboard.type("12")
    assert page.get_by_role("radio", name="Offset", exact=True).is_checked()
    page.keyboard.press("Enter")
    page.get_by_role("cell", name="reads 3 again").wait_for()
    page.get_by_role("button", name="Reset group billing to 12").focus()
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("was reset to 12").wait_for()
    assert page.evaluate(TEXT_OF_LAG) == str(MESSAGES - 12)
    page.locator("summary", has_text="Delete").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete the group").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Delete the group").wait_for(state="hidden")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete the group").click()
    page.get_by_role("status").get_by_text("was deleted").wait_for()
    assert "/consumer-groups" in page.url


def test_a_reset_of_a_group_in_use_is_refused(site: Site, desk: View, queue: str) -> None:
    page = desk.page
    channel = member(site, queue, "billing", 5)
    desk.go(address(queue, "billing"))
    page.get_by_label("Latest: skip everything so far").check()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("cell", name="skips 35").wait_for()
    page.get_by_role("button", name="Reset group billing to latest").click()
    page.get_by_role("alert").get_by_text("is in use").wait_for()
    channel.close()
    properties = pika.BasicProperties(delivery_mode=2)
    site.channel.basic_publish("", queue, b"last", properties)
