"""Lists as in RabbitMQ's HTTP API: sorted, filtered by name, paginated, reduced to columns.

A node may hold a hundred thousand queues while its one event loop serves clients. So lists are
processed in slices, with a pass of the loop between them, and only the rows shown are built: a page
costs a sort of names and at most `PAGE_ROWS_MAX` rows, and a whole list is never in memory as text.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leveret.core.patterns import Pattern, PatternError
from leveret.mgmt_ui.api.message_stats import Ranges
from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.yielding import ROWS_AT_ONCE, in_yielding_chunks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.mgmt_ui.api.views import Row

__all__ = [
    "ObjectKind",
    "Query",
    "all_pages",
    "in_order",
    "in_pieces",
    "one_page",
    "picked",
    "select_columns",
]

T = TypeVar("T")

PAGE_ROWS = 100  # RabbitMQ's numbers, both
PAGE_ROWS_MAX = 500
# Each row is gone through for each column. No row has as many, and tables are not as deep.
COLUMNS_MAX = 100
PATH_NAMES_MAX = 32


@dataclass(frozen=True, slots=True)
class Query:
    """Query parameters that shape a list. Without `page`, the whole list is returned.

    `name` is a part of a name, in lower case; `pattern` replaces it if set.
    """

    page: int | None = None
    page_size: int = PAGE_ROWS
    name: str = ""
    pattern: Pattern | None = None
    sort: str = ""
    sort_reverse: bool = False
    columns: tuple[tuple[str, ...], ...] = ()
    disable_stats: bool = False
    enable_queue_totals: bool = False
    ranges: Ranges = field(default_factory=Ranges)

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Query:
        """Raises ApiError 400."""
        page, page_size = _page(parameters)
        name = parameters.get("name", "")
        is_pattern = page is not None and parameters.get("use_regex") == "true"
        return cls(
            page=page,
            page_size=page_size,
            name=name.lower(),
            pattern=_pattern(name) if is_pattern else None,
            sort=_sort(parameters.get("sort", "")),
            sort_reverse=parameters.get("sort_reverse") == "true",
            columns=_columns(parameters.get("columns", "")),
            disable_stats=parameters.get("disable_stats") == "true",
            enable_queue_totals=parameters.get("enable_queue_totals") == "true",
            ranges=Ranges.parse(parameters),
        )

    def wants(self, name: str) -> bool:
        """Whether a name passes the filter; only pages are filtered, as in RabbitMQ."""
        if self.pattern is not None:
            return self.pattern.is_in(name)
        return self.page is None or self.name in name.lower()


def _pattern(source: str) -> Pattern:
    try:
        return Pattern(f"(?i){source}")  # as RabbitMQ has it
    except PatternError as error:
        raise bad_request(f"name is no regular expression: {error}") from None


def _page(parameters: Mapping[str, str]) -> tuple[int | None, int]:
    try:
        page = _integer(parameters.get("page"))
        page_size = _integer(parameters.get("page_size"))
    except ValueError:
        raise ApiError(400, "bad_request", "Pagination parameters are invalid") from None
    if page is None:
        return None, PAGE_ROWS
    if page < 1 or not 1 <= (PAGE_ROWS if page_size is None else page_size) <= PAGE_ROWS_MAX:
        raise ApiError(
            400,
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {page}, "
            f"page size {'undefined' if page_size is None else page_size}",
        )
    return page, PAGE_ROWS if page_size is None else page_size


def _integer(text: str | None) -> int | None:
    """Parse an integer. Raises ValueError, also for forms only Python knows (`1_0`, ` 1`)."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
        raise ValueError(text)
    return int(text)


def _columns(text: str) -> tuple[tuple[str, ...], ...]:
    columns = [column for column in text.split(",") if column]
    if len(columns) > COLUMNS_MAX:
        raise bad_request(f"columns are at most {COLUMNS_MAX}")
    return tuple(_path("columns", column) for column in columns)


def _sort(column: str) -> str:
    _path("sort", column)
    return column


def _path(parameter: str, column: str) -> tuple[str, ...]:
    names = tuple(column.split(".", PATH_NAMES_MAX))
    if len(names) > PATH_NAMES_MAX:
        raise bad_request(f"{parameter} has a column of more than {PATH_NAMES_MAX} names")
    return names


@dataclass(frozen=True, slots=True)
class ObjectKind(Generic[T]):
    """Default order and rows of the lists of one kind of object."""

    identity: Callable[[T], tuple[str, ...]]  # values of the columns `default_sort`
    row: Callable[[T], Row]
    default_sort: tuple[str, ...] = ("vhost", "name")
    # Loads what the rows of one page need and is not in memory.
    prepare: Callable[[Sequence[T]], Awaitable[None]] | None = None

    def name(self, item: T) -> str:
        """Return the text that `name=` is matched with; empty for kinds without names."""
        if "name" not in self.default_sort:
            return ""
        return self.identity(item)[self.default_sort.index("name")]

    def key(self, item: T, query: Query) -> tuple[Any, ...]:
        """Return the sort key of an item, without building its row where possible."""
        identity = self.identity(item)
        if not query.sort:
            return identity
        if query.sort in self.default_sort:
            return identity[self.default_sort.index(query.sort)], *identity
        return _rank(_dotted(self.row(item), query.sort)), *identity


async def in_order(items: Sequence[T], kind: ObjectKind[T], query: Query) -> list[T]:
    """Return the requested items, sorted."""
    found = items
    if query.page is not None and query.name:
        found = await picked(items, lambda item: query.wants(kind.name(item)))
    return await _sorted(found, lambda item: kind.key(item, query), reverse=query.sort_reverse)


async def one_page(
    ordered: Sequence[T], total_count: int, kind: ObjectKind[T], query: Query
) -> Row:
    """Return a page of rows with RabbitMQ's counts. Raises ApiError 400."""
    assert query.page is not None, "a page was asked for"
    first = (query.page - 1) * query.page_size
    if first > len(ordered):
        raise ApiError(
            400,
            "page_out_of_range",
            f"Page out of range, page: {query.page} page size: {query.page_size}, "
            f"len: {len(ordered)}",
        )
    shown = ordered[first : first + query.page_size]
    if kind.prepare is not None:
        await kind.prepare(shown)
    rows = [
        row
        async for part in in_yielding_chunks(shown, ROWS_AT_ONCE)
        for row in _rows(part, kind, query)
    ]
    return {
        "total_count": total_count,
        "item_count": len(rows),
        "filtered_count": len(ordered),
        "page": query.page,
        "page_size": query.page_size,
        "page_count": -(-len(ordered) // query.page_size),
        "items": rows,
    }


async def all_pages(ordered: Sequence[T], kind: ObjectKind[T], query: Query) -> AsyncIterator[str]:
    """Yield all rows as pieces of one JSON array, each built when the last was sent."""
    before = "["
    async for part in in_yielding_chunks(ordered, ROWS_AT_ONCE):
        yield before + json.dumps(_rows(part, kind, query))[1:-1]
        before = ", "
    yield "]" if before == ", " else "[]"


async def in_pieces(value: dict[str, Any]) -> AsyncIterator[str]:
    """Yield an object as pieces of JSON; the lists in it some items at a time."""
    before = "{"
    for name, held in value.items():
        yield f"{before}{json.dumps(name)}: "
        before = ", "
        if isinstance(held, list) and held:
            opening = "["
            async for part in in_yielding_chunks(held):
                yield opening + json.dumps(part)[1:-1]
                opening = ", "
            yield "]"
        else:
            yield json.dumps(held)
    yield "}" if value else "{}"


def _rows(items: Iterable[T], kind: ObjectKind[T], query: Query) -> list[Any]:
    return [select_columns(kind.row(item), query.columns) for item in items]


async def picked(items: Iterable[T], is_wanted: Callable[[T], bool]) -> list[T]:
    """Return the items that satisfy `is_wanted`, tested in slices."""
    return [item async for part in in_yielding_chunks(items) for item in part if is_wanted(item)]


async def _sorted(
    items: Sequence[T], key: Callable[[T], tuple[Any, ...]], *, reverse: bool
) -> list[T]:
    """Sort slice by slice, then merge: no single step is longer than a slice."""
    number = itertools.count()  # no two entries are equal, so that items are never compared
    runs = [
        sorted(((key(item), next(number), item) for item in part), reverse=reverse)
        async for part in in_yielding_chunks(items)
    ]
    merged: list[T] = []
    merging = heapq.merge(*map(_drained, runs), reverse=reverse)
    async for entries in in_yielding_chunks(merging):
        merged += [item for _, _, item in entries]
    return merged


def _drained(run: list[T]) -> Iterator[T]:
    """Yield and remove the items of a run, as freeing all runs at once would take long."""
    run.reverse()
    while run:
        yield run.pop()


def select_columns(value: Any, columns: Iterable[tuple[str, ...]]) -> Any:
    """Return a row with only some columns: (`a`,), or (`a`, `b`) for a.b."""
    columns = list(columns)
    if not columns:
        return value
    if isinstance(value, list):
        return [select_columns(item, columns) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = {}
    for name, item in value.items():
        deeper = [column[1:] for column in columns if column[0] == name]
        if deeper:
            chosen[name] = item if () in deeper else select_columns(item, deeper)
    return chosen


def _dotted(row: Any, column: str) -> Any:
    for name in column.split("."):
        row = row.get(name, 0) if isinstance(row, dict) else 0
    return row


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key in Erlang's order of types: numbers, atoms, maps, lists, strings."""
    match value:
        case bool() | None:
            return 1, str(value).lower()
        case int() | float():
            return 0, value
        case dict() | list():
            return 2 + isinstance(value, list), json.dumps(value, sort_keys=True)
        case _:
            return 4, str(value)
