"""Every page is walked as a user would: it is there, quiet, fits, and asks no other host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interop_tests.ui.conftest import HOSTILE

if TYPE_CHECKING:
    from interop_tests.ui.conftest import Site
    from interop_tests.ui.window import View

ROWS = "#list tbody tr"
DETAILS = [
    "/queues/%2F/mail.confirmation",
    "/queues/%2F/events",
    "/exchanges/%2F/orders",
    "/exchanges/%2F/amq.default",
    "/vhosts/%2F",
    "/queues/%2F/mail.confirmation?period=week",
]


def test_walk_over_all_pages(view: View) -> None:
    view.go("/login")
    view.sign_in()
    links = view.page.locator("#navigation a")
    addresses = [link.get_attribute("href") for link in links.all()]
    assert {"/overview", "/connections", "/channels", "/exchanges", "/queues", "/vhosts"} <= set(
        addresses
    )
    for address in [*addresses, *DETAILS]:
        view.go(address)
        view.page.wait_for_timeout(400)  # for charts, and for whatever a script would complain of
        assert view.page.locator("h1").count() == 1, address
        width = view.page.evaluate("document.documentElement.scrollWidth")
        assert width <= view.page.viewport_size["width"], f"{address} is {width} wide"


def test_connection_page_by_its_link(view: View) -> None:
    view.sign_in()
    view.go("/connections")
    view.page.locator(f"{ROWS} a").first.click()
    view.page.get_by_text("order service").wait_for()
    assert view.page.get_by_role("cell", name="mailer").is_visible()
    view.page.get_by_role("link", name="1", exact=True).first.click()
    view.page.wait_for_url("**/channels/1")
    assert view.page.get_by_role("heading", name="Channel 1").is_visible()
    assert view.page.locator(".plot canvas").count() >= 1


def test_figures_and_charts_are_live(site: Site, desk: View) -> None:
    desk.go("/queues/%2F/orders.created")
    assert desk.page.locator(".plot canvas").count() == 2
    before = desk.page.locator("[data-figure=messages_ready]").inner_text()
    site.channel.basic_publish("orders", "order.created.eu", b"one more")
    desk.page.wait_for_function(
        "before => document.querySelector('[data-figure=messages_ready]').innerText !== before",
        arg=before,
    )


def test_a_failed_message_is_counted_where_it_waits(site: Site, desk: View) -> None:
    arguments = {"x-retry-delays": [3_600_000]}
    site.channel.queue_declare("retried", durable=True, arguments=arguments)
    site.channel.queue_purge("retried")
    desk.go("/queues/%2F/retried")
    waiting = desk.page.locator("div", has=desk.page.get_by_text("Waiting for a retry")).last
    assert waiting.locator("dd").inner_text() == "0"
    site.channel.basic_publish("", "retried", b"fails")
    method, _, _ = site.channel.basic_get("retried")
    site.channel.basic_reject(method.delivery_tag, requeue=False)
    desk.page.wait_for_function(
        "() => document.querySelector('[data-figure=messages_waiting_for_retry]').innerText === '1'"
    )
    assert waiting.locator("dd").inner_text() == "1"
    assert desk.page.locator("[data-figure=messages_delayed]").inner_text() == "0"
    desk.page.get_by_role("link", name="Retries", exact=True).last.click()
    assert desk.page.get_by_text("1 waiting").is_visible()


def test_lists_are_filtered_sorted_and_paged(desk: View) -> None:
    desk.go("/queues")
    rows = desk.page.locator(ROWS)
    assert rows.count() == 50
    desk.page.get_by_role("link", name="Next").click()
    desk.page.wait_for_url("**page=2**")
    desk.page.get_by_label("Name contains").press_sequentially("worker.1")
    desk.page.wait_for_function("() => document.querySelectorAll('#list tbody tr').length === 10")
    assert "name=worker.1" in desk.page.url
    desk.page.get_by_role("link", name="Name").click()
    desk.page.wait_for_url("**sort_reverse=true**")
    desk.page.wait_for_function(
        "() => document.querySelector('#list tbody td').innerText.includes('worker.19')"
    )
    desk.page.get_by_label("Name contains").fill("worker.2")
    desk.page.wait_for_function(
        "() => document.querySelector('#list tbody td').innerText.includes('worker.29')"
    )  # what it is sorted by stays


def test_names_are_text(desk: View) -> None:
    desk.go("/exchanges/%2F/orders")
    assert desk.page.get_by_text(HOSTILE).count() >= 1
    assert desk.page.locator("main script").count() == 0


def test_theme_is_switched_and_remembered(desk: View) -> None:
    root = desk.page.locator("html")
    light = desk.page.evaluate("getComputedStyle(document.body).backgroundColor")
    desk.page.get_by_role("button", name="Theme").click()
    assert root.get_attribute("data-theme") == "dark"
    assert desk.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    desk.go("/queues")
    assert root.get_attribute("data-theme") == "dark"


def test_by_keyboard(desk: View) -> None:
    desk.go("/queues/%2F/worker.59")
    desk.page.keyboard.press("Tab")
    assert desk.page.evaluate("document.activeElement.className") == "skip"
    desk.page.keyboard.press("Enter")
    assert desk.page.evaluate("document.activeElement.id") == "main"
    desk.page.locator("summary", has_text="Purge").focus()
    desk.page.keyboard.press("Enter")
    button = desk.page.get_by_role("button", name="Purge the queue")
    button.wait_for()
    desk.page.keyboard.press("Escape")
    button.wait_for(state="hidden")
    assert "Purge" in desk.page.evaluate("document.activeElement.innerText")


def test_menu_on_a_phone(view: View) -> None:
    view.sign_in()
    if view.is_phone:
        assert not view.page.locator("#navigation").is_visible()
        view.page.get_by_role("button", name="Menu").click()
        assert view.page.locator("#navigation").is_visible()
        view.page.keyboard.press("Escape")
        assert not view.page.locator("#navigation").is_visible()
        view.page.keyboard.press("Enter")  # the button has the focus again
    view.page.locator("#navigation").get_by_role("link", name="Exchanges").click()
    view.page.wait_for_url("**/exchanges")


def test_queue_from_its_declaration_to_its_end(desk: View) -> None:
    desk.go("/queues")
    desk.page.locator("summary", has_text="Declare a queue").click()
    form = desk.page.locator("form[action='/queues'][method=post]")
    form.get_by_label("Name").fill("made by hand")
    form.get_by_label("Arguments").fill("{nonsense")
    form.get_by_role("button", name="Declare").click()
    desk.page.get_by_role("alert").get_by_text("not a JSON object").wait_for()
    assert form.get_by_label("Name").input_value() == "made by hand"
    desk.complaints.clear()  # the browser tells of the 400
    form.get_by_label("Arguments").fill('{"x-max-length": 10}')
    form.get_by_role("button", name="Declare").click()
    desk.page.get_by_role("heading", name="made by hand").wait_for()
    desk.page.locator("summary", has_text="Add binding").click()
    desk.page.get_by_label("Exchange").fill("amq.topic")
    desk.page.get_by_label("Routing key").fill("by.hand")
    desk.page.get_by_role("button", name="Bind the queue").click()
    desk.page.get_by_role("status").get_by_text("Bound").wait_for()
    desk.page.get_by_role("button", name="Unbind").click()
    desk.page.get_by_role("status").get_by_text("Unbound").wait_for()
    desk.page.locator("summary", has_text="Pause").click()
    desk.page.get_by_role("button", name="Pause the queue").click()
    desk.page.get_by_role("status").get_by_text("was paused").wait_for()
    desk.page.get_by_role("button", name="Resume").click()
    desk.page.get_by_role("status").get_by_text("was resumed").wait_for()
    desk.page.locator("summary", has_text="Delete").click()
    desk.page.get_by_role("button", name="Delete the queue").click()
    desk.page.get_by_role("status").get_by_text("was deleted").wait_for()


def test_signing_out(desk: View) -> None:
    desk.page.get_by_role("button", name="Sign out").click()
    desk.page.wait_for_url("**/login")
    desk.page.goto(desk.address + "/queues")
    assert "/login?wanted=%2Fqueues" in desk.page.url
