"""Lists: what an address says of them, and where their links lead."""

from fastapi import Request

from leveret.mgmt_ui.api.listing import ObjectKind
from leveret.mgmt_ui.pages.tables import Column, list_rows

NAMES = [f"q{number:03}" for number in range(120)]
KIND = ObjectKind(
    lambda name: (name,), lambda name: {"name": name, "length": int(name[1:]) % 7}, ("name",)
)
COLUMNS = (Column("Name", "name"), Column("Length", "length", numeric=True), Column("ObjectKind"))


def shown(query="", items=NAMES, filters=None):
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/queues",
        "query_string": query.encode(),
        "headers": [],
    }
    return list_rows(Request(scope), items, KIND, COLUMNS, filters)


def names(listing):
    return [row["name"] for row in listing.rows]


async def test_first_page_by_name():
    listing = await shown()
    assert names(listing) == NAMES[:50]
    assert (listing.number, listing.count, listing.first, listing.total) == (1, 3, 1, 120)
    assert [header.order for header in listing.headers] == ["ascending", "none", "none"]


async def test_last_page():
    listing = await shown("page=3")
    assert names(listing) == NAMES[100:]
    assert listing.first == 101


async def test_what_the_address_says_wrongly_is_not_said():
    for query in ("page=0", "page=-1", "page=x", "page_size=0", "sort=nothing", "page=%C2%B2"):
        assert names(await shown(query)) == NAMES[:50]
    assert (await shown("page=999999999")).number == 3
    assert (await shown("page_size=99999")).page_size == 500


async def test_filter_by_a_part_of_the_name():
    listing = await shown("name=Q01")
    assert names(listing) == NAMES[10:20]
    assert (listing.found, listing.total) == (10, 120)
    assert listing.is_filtered


async def test_sorting():
    listing = await shown("sort=length&sort_reverse=true")
    assert {row["length"] for row in listing.rows[:17]} == {6}
    assert [header.order for header in listing.headers] == ["none", "descending", "none"]


async def test_heads_lead_to_the_other_order_and_numbers_to_the_largest_first():
    listing = await shown()
    assert [header.address for header in listing.headers] == [
        "/queues?sort=name&sort_reverse=true",
        "/queues?sort=length&sort_reverse=true",
        "",
    ]
    listing = await shown("sort=length&sort_reverse=true")
    assert listing.headers[1].address == "/queues?sort=length"


async def test_links_keep_what_was_asked_for():
    listing = await shown(
        "name=q0&sort=length&sort_reverse=true&page_size=10&page=2&vhost=%2F",
        filters={"vhost": "/"},
    )
    assert listing.page_address(3) == (
        "/queues?vhost=%2F&name=q0&sort=length&sort_reverse=true&page_size=10&page=3"
    )
    assert "page=" not in listing.page_address(1).replace("page_size=", "")


async def test_nothing_at_all():
    listing = await shown(items=[])
    assert (listing.rows, listing.number, listing.count) == ([], 1, 1)
    assert not listing.is_filtered
