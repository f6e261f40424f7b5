"""Arguments of consumers and bindings that state filters.

`x-filter-tags` and `x-filter-sql` together mean that both must match. Their languages are in
`tags` and `sql`, their evaluation per record in leveret.features.filters.filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.errors import ChannelError
from leveret.features.filters.expressions import ExpressionError
from leveret.features.filters.filters import RecordFilter, SqlCondition, TagCondition, never
from leveret.features.filters.sql import parse_sql
from leveret.features.filters.stream_filter import stream_values
from leveret.features.filters.tags import parse_tags

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports.definitions import Arguments

FILTER_TAGS, FILTER_SQL = "x-filter-tags", "x-filter-sql"
FILTER_UNMATCHED = "x-filter-unmatched"
KEEP, SKIP = "keep", "skip"

# Cost of evaluating SQL, in steps of a walk through the routing graph (leveret.core.topology.walk):
# characters of its text per step, measured with conditions of one to sixty LIKEs.
CHARACTERS_A_STEP = 16
JUDGEMENT_STEPS_MIN = 10


def filter_tags(value: Any, _arguments: Arguments) -> str | None:
    """Check for a tag expression."""
    return _problem(value, parse_tags)


def filter_sql(value: Any, _arguments: Arguments) -> str | None:
    """Check for an SQL condition."""
    return _problem(value, parse_sql)


def filter_unmatched(value: Any, arguments: Arguments) -> str | None:
    """Check for `keep` or `skip`, the treatment of unmatched messages; invalid without a filter."""
    if not isinstance(value, str) or value not in {KEEP, SKIP}:
        return f"expected '{KEEP}' or '{SKIP}'"
    if FILTER_TAGS not in arguments and FILTER_SQL not in arguments:
        return "nothing is unmatched without a filter"
    return None


FILTER_CHECKS = {
    FILTER_TAGS: filter_tags,
    FILTER_SQL: filter_sql,
    FILTER_UNMATCHED: filter_unmatched,
}


def _problem(value: Any, parse: Callable[[str], object]) -> str | None:
    if not isinstance(value, str):
        return "expected text"
    try:
        parse(value)
    except ExpressionError as error:
        return str(error)
    return None


def tag_condition(text: str) -> TagCondition:
    """Return the condition of a tag expression. Raises ExpressionError."""
    expression = parse_tags(text)
    return TagCondition(expression.tags, expression.program)


def sql_condition(text: str) -> SqlCondition:
    """Return the condition of an SQL expression. Raises ExpressionError."""
    return SqlCondition(parse_sql(text))


def record_filter(arguments: Arguments, is_over: Callable[[], bool] = never) -> RecordFilter | None:
    """Return the filter that validated arguments state; None without one.

    `is_over()` is that of RecordFilter.
    """
    values = stream_values(arguments)
    tags = tag_condition(arguments[FILTER_TAGS]) if FILTER_TAGS in arguments else None
    sql = sql_condition(arguments[FILTER_SQL]) if FILTER_SQL in arguments else None
    if tags is None and values is None and sql is None:
        return None
    return RecordFilter(tags, values, sql, is_over)


def binding_filter(arguments: Arguments, of: str) -> RecordFilter | None:
    """Return the filter of a binding; None without one.

    Raises ChannelError 406 for an invalid one; `of` names the exchange in its text.
    """
    for key in (FILTER_TAGS, FILTER_SQL):
        if key in arguments:
            problem = FILTER_CHECKS[key](arguments[key], arguments)
            if problem is not None:
                raise ChannelError(406, f"invalid arg '{key}' for {of}: {problem}")
    wanted = {key: arguments[key] for key in (FILTER_TAGS, FILTER_SQL) if key in arguments}
    return record_filter(wanted) if wanted else None


def judgement_steps(arguments: Arguments) -> int:
    """Return the cost of evaluating the SQL of a binding's validated arguments, in steps."""
    condition = arguments.get(FILTER_SQL)
    if condition is None:
        return 0
    return max(len(condition) // CHARACTERS_A_STEP, JUDGEMENT_STEPS_MIN)
