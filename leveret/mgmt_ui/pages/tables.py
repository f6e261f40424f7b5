"""Lists: filtered, sorted and paginated on the server, as by the HTTP API.

A page has its `Column`s and the `ObjectKind` of its objects; the template shows the `TablePage`.
Invalid parameters of an address are ignored: people edit addresses, and a list that has become
shorter has another last page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.mgmt_ui.api.listing import ObjectKind, Query, in_order
from leveret.mgmt_ui.pages.formats import with_query
from leveret.mgmt_ui.yielding import made

if TYPE_CHECKING:
    from fastapi import Request

    from leveret.mgmt_ui.api.views import Row

__all__ = ["Column", "Header", "TablePage", "list_rows", "query_filters"]

T = TypeVar("T")

PAGE_ROWS = 50
PAGE_SIZES = (50, 100, 200, 500)


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is the sort key of the column, as `name` or `message_stats.publish`; "" for none.

    A `minor` one is not shown on a phone; its cells have the class of that name, too.
    """

    title: str
    key: str = ""
    numeric: bool = False
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """Head of a column: the address that sorts by it, and its current order."""

    title: str
    numeric: bool
    minor: bool
    address: str  # "" where it cannot be sorted
    order: str  # as aria-sort has it: "ascending", "descending" or "none"


@dataclass(frozen=True, slots=True)
class TablePage:
    """One page of a list. `filters` are the page's own parameters, which links keep."""

    rows: list[Row]
    headers: list[Header]
    name: str  # a part of the names that are shown
    total: int
    found: int
    number: int
    count: int
    page_size: int
    sort: str
    sort_reverse: bool
    filters: Mapping[str, str]
    address: str

    @property
    def is_filtered(self) -> bool:
        """Whether a filter is set, so that rows may be hidden."""
        return bool(self.name) or any(self.filters.values())

    @property
    def first(self) -> int:
        """Number of the first row, from 1."""
        return (self.number - 1) * self.page_size + 1

    def page_address(self, number: int) -> str:
        """Return the address of another page of the list."""
        size = self.page_size if self.page_size != PAGE_ROWS else None
        return with_query(
            self.address,
            **self.filters,
            name=self.name,
            sort=self.sort,
            sort_reverse="true" if self.sort_reverse else "",
            page_size=size,
            page=number if number > 1 else None,
        )


def query_filters(request: Request, *names: str) -> dict[str, str]:
    """Return the values of a page's own filters; "" for absent ones."""
    return {name: request.query_params.get(name, "") for name in names}


async def list_rows(
    request: Request,
    items: Sequence[T],
    kind: ObjectKind[T],
    columns: Sequence[Column],
    filters: Mapping[str, str] | None = None,
) -> TablePage:
    """Return the requested page of `items`, to which `filters` were applied already."""
    query = _query(request.query_params, columns)
    ordered = await in_order(items, kind, query)
    count = max(-(-len(ordered) // query.page_size), 1)
    number = min(query.page or 1, count)
    begin = (number - 1) * query.page_size
    shown = ordered[begin : begin + query.page_size]
    listing = TablePage(
        rows=await made(shown, kind.row),
        headers=[],
        name=request.query_params.get("name", ""),
        total=len(items),
        found=len(ordered),
        number=number,
        count=count,
        page_size=query.page_size,
        sort=query.sort,
        sort_reverse=query.sort_reverse,
        filters=dict(filters or {}),
        address=request.url.path,
    )
    listing.headers.extend(_header(column, listing, kind) for column in columns)
    return listing


def _query(parameters: Mapping[str, str], columns: Sequence[Column]) -> Query:
    sort = parameters.get("sort", "")
    return Query(
        page=_number(parameters.get("page"), 1),
        page_size=min(_number(parameters.get("page_size"), PAGE_ROWS), PAGE_SIZES[-1]),
        name=parameters.get("name", "").lower(),
        sort=sort if sort in {column.key for column in columns} else "",
        sort_reverse=parameters.get("sort_reverse") == "true",
    )


def _number(text: str | None, default: int) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 9):
        return default
    return int(text) or default


def _header(column: Column, listing: TablePage, kind: ObjectKind[Any]) -> Header:
    sorted_by = listing.sort or kind.default_sort[0]
    order = "none"
    if column.key == sorted_by:
        order = "descending" if listing.sort_reverse else "ascending"
    # For numbers, the largest first is the usual wish.
    reverse = order == "ascending" or (order == "none" and column.numeric)
    address = with_query(
        listing.address,
        **listing.filters,
        name=listing.name,
        sort=column.key,
        sort_reverse="true" if reverse else "",
        page_size=listing.page_size if listing.page_size != PAGE_ROWS else None,
    )
    return Header(column.title, column.numeric, column.minor, address if column.key else "", order)
