"""Answers and lists of the HTTP API: sorted, filtered by name, paginated, reduced to columns.

A node may hold a hundred thousand queues while its one event loop serves clients. So lists are
processed in slices, with a pass of the loop between them, and only the rows shown are built: a page
costs a sort of names and at most `PAGE_ROWS_MAX` rows, and a whole list is never in memory as text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar
from urllib.parse import unquote

from fastapi import Depends, Request, Response
from fastapi import Query as Parameter
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AfterValidator

from leveret.core.patterns import Pattern, PatternError
from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.api.views import Ranges, Shown
from leveret.mgmt_ui.routes import LazyRoute
from leveret.mgmt_ui.yielding import (
    in_chunks,
    in_pieces,
    in_yielding_chunks,
    made,
    picked,
    sorted_by,
)
from leveret.ports.declared import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row

__all__ = [
    "PRIVATE",
    "READ",
    "ObjectKind",
    "Query",
    "QueryHere",
    "Segment",
    "all_pages",
    "answer",
    "done",
    "in_order",
    "listed",
    "one_page",
    "select_columns",
    "shown",
    "streamed",
    "vhosts_of",
]

T = TypeVar("T")

PAGE_ROWS = 100  # RabbitMQ's numbers, both
PAGE_ROWS_MAX = 500
# Each row is gone through for each column. No row has as many, and tables are not as deep.
COLUMNS_MAX = 100
COLUMN_CHARACTERS_MAX = 64  # of an unknown one that is quoted
PATH_NAMES_MAX = 32
FLAGS = ("sort_reverse", "disable_stats", "enable_queue_totals", "use_regex")


@dataclass(frozen=True, slots=True)
class Query:
    """Query parameters that shape a list. Without `page`, the whole list is returned.

    `name` is a part of a name, in lower case; `pattern` replaces it if set. If it `is_strict`, as
    on Leveret's own routes, a column to sort by must be one of the rows'.
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
    is_strict: bool = False

    @classmethod
    def parse(cls, parameters: Mapping[str, str], *, is_strict: bool = False) -> Query:
        """Raises ApiError 400."""
        if is_strict:
            _check_flags(parameters)
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
            is_strict=is_strict,
        )

    def wants(self, name: str) -> bool:
        """Whether a name passes the filter; only pages are filtered, as in RabbitMQ."""
        if self.pattern is not None:
            return self.pattern.is_in(name)
        return self.page is None or self.name in name.lower()


def _check_flags(parameters: Mapping[str, str]) -> None:
    """Raise ApiError 400 for a flag that is neither true nor false: RabbitMQ takes it for false."""
    for name in FLAGS:
        if parameters.get(name, "true") not in {"true", "false"}:
            raise bad_request(f"{name} is true or false")


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
    """Return the requested items, sorted. Raises ApiError 400."""
    if query.is_strict and query.sort:
        await _require_column(items, kind, query.sort)
    found = items
    if query.page is not None and query.name:
        found = await picked(items, lambda item: query.wants(kind.name(item)))
    return await sorted_by(found, lambda item: kind.key(item, query), reverse=query.sort_reverse)


async def _require_column(items: Sequence[T], kind: ObjectKind[T], sort: str) -> None:
    """Raise ApiError 400 if there are rows and none has the column that they are sorted by."""
    name = sort.partition(".")[0]
    if not items or name in kind.default_sort:
        return
    known: set[str] = set()
    async for part in in_yielding_chunks(items, 1):
        known.update(*(kind.row(item) for item in part))
        if name in known:
            return
    shown = ", ".join(sorted(known))
    text = f"sort: unknown column {name[:COLUMN_CHARACTERS_MAX]!r}{suggestion(name, known)}"
    raise bad_request(f"{text}; there are {shown}")


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
    rows = await made(shown, lambda item: select_columns(kind.row(item), query.columns))
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
    async for part in in_yielding_chunks(ordered, 1):
        rows = [select_columns(kind.row(item), query.columns) for item in part]
        yield before + json.dumps(rows)[1:-1]
        before = ", "
    yield "]" if before == ", " else "[]"


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


READ = ["GET", "HEAD"]
PRIVATE = {"cache-control": "no-cache", "x-content-type-options": "nosniff"}
DOTS = {".;": ".", "..;": ".."}


def _segment(sent: str) -> str:
    return DOTS.get(sent) or unquote(sent)


# Routes match the path as it was sent, so that `%2F` is a virtual host and not two slashes. Clients
# take `.` and `..` for steps through the path, even as `%2E`: with an empty parameter (RFC 3986,
# 3.3) they are names. Of a name itself, a semicolon is sent as `%3B`.
Segment = Annotated[str, AfterValidator(_segment)]


def answer(value: Any, status: int = 200) -> Response:
    """Return a JSON response with `value`."""
    return JSONResponse(value, status, PRIVATE)


def streamed(value: dict[str, Any]) -> Response:
    """Return a response with `value` as JSON, encoded in slices as its lists may be long."""
    return _sent(in_pieces(value))


def done(*, is_new: bool = False) -> Response:
    """Return an empty response: 201 if something was created, else 204."""
    return Response(status_code=201 if is_new else 204)


async def listed(items: list[Any], kind: ObjectKind[Any], query: Query) -> Response:
    """Respond with all items, encoded while they are sent, or with the requested page."""
    ordered = await in_order(items, kind, query)
    if query.page is None:
        return _sent(all_pages(ordered, kind, query))
    return answer(await one_page(ordered, len(items), kind, query))


def _sent(pieces: AsyncIterator[str]) -> Response:
    return StreamingResponse(in_chunks(pieces), headers=PRIVATE, media_type="application/json")


async def _query(
    request: Request,
    *,
    page: str | None = None,  # noqa: ARG001  # these are for the API's description
    page_size: str | None = None,  # noqa: ARG001
    name_part: Annotated[str | None, Parameter(alias="name")] = None,  # noqa: ARG001
    sort: str | None = None,  # noqa: ARG001
    sort_reverse: str | None = None,  # noqa: ARG001
    columns: str | None = None,  # noqa: ARG001
    disable_stats: str | None = None,  # noqa: ARG001
    enable_queue_totals: str | None = None,  # noqa: ARG001
    use_regex: str | None = None,  # noqa: ARG001
) -> Query:
    """Parse the query; a coroutine, because FastAPI calls plain functions in a thread."""
    route = request.scope["route"]
    assert isinstance(route, LazyRoute), "the routers make no others"
    return Query.parse(request.query_params, is_strict=route.is_strict)


QueryHere = Annotated[Query, Depends(_query)]


def vhosts_of(caller: Caller, name: str | None) -> list[Vhost]:
    """Return the virtual host of the path, or all whose contents the caller may list."""
    return caller.open_vhosts() if name is None else [caller.vhost(name)]


def shown(caller: Caller, query: Query) -> Shown:
    """Return the statistics that a query asks for."""
    return Shown(caller.node.broker.statistics, query.ranges)
