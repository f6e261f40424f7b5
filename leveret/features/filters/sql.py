"""Language of `x-filter-sql`: an SQL-92 condition on a message's headers and properties.

    or         = and { OR and }
    and        = not { AND not }
    not        = NOT not | test
    test       = sum [ comparison sum | IS [NOT] NULL | [NOT] BETWEEN sum AND sum
                     | [NOT] IN ( constant, … ) | [NOT] LIKE 'pattern' [ESCAPE 'c'] ]
    sum        = product { (+ | -) product }
    product    = sign { (* | / | %) sign }
    sign       = (+ | -) sign | ( or ) | constant | name
    constant   = 'text' | 12 | 1.5 | 2e3 | TRUE | FALSE
    name       = header | "any-header" | properties.name | p.name

Headers are given by name, in double quotes if the name is no word; properties with the prefix
`properties.` or `p.`. A header that is absent, or has no value in the language (a table,
say), is NULL. Logic is three-valued: any test of NULL is unknown, and so is a comparison
of values of different kinds; only true matches. Numbers are compared by value
whatever their wire type, texts by code points, booleans by = and <> only. Division of two
integers truncates towards zero, as in JMS; a division by zero is unknown.

Parsing builds a tree of functions, whose depth PARTS_MAX bounds. For text that is too
long for LIKE, LIKE is unknown, as for NULL (leveret.features.filters.like).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from typing import Any, Final, NamedTuple

from leveret.features.filters.expressions import ExpressionError, Reader, Token, check_length
from leveret.features.filters.like import LikePattern, LikePatternError

PROPERTIES = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
PREFIXES = ("properties.", "p.")
# Comparisons, sums and names in one condition: its cost for each message it is evaluated for.
PARTS_MAX = 256
# Digits of a constant: longer numbers cannot occur in a message.
NUMBER_CHARACTERS_MAX = 40

KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
TOKENS = re.compile(
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[^\W\d][\w$.]*)"
    r"|'(?P<text>(?:[^']|'')*)'"
    r'|"(?P<quoted>(?:[^"]|"")*)"'
    r"|(?P<sign><>|!=|<=|>=|[-+*/%(),=<>])"
    r"|(?P<space>\s+)"
)

Headers = Mapping[str, Any]
# Evaluates a part for a message: a number, a text, a boolean, or None for unknown.
Evaluate = Callable[[Headers, Headers], Any]
Names = frozenset[str]

NO_NAMES: Final[Names] = frozenset()
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": eq,
    "<>": ne,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


class SqlOperand(NamedTuple):
    """A part of a condition, ready to be evaluated.

    `if_true` and `if_false` name headers that a message must have for the part to be true, or
    false. `texts` are (header, text) pairs that a message must have for it to be true. `header` is
    set if the part is just a header, `text` if it is just a text constant.
    """

    evaluate: Evaluate
    if_true: Names = NO_NAMES
    if_false: Names = NO_NAMES
    texts: frozenset[tuple[str, str]] = frozenset()
    header: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedSql:
    """A parsed condition.

    A message that lacks one of the headers `needed`, or has another value for a header of `texts`,
    cannot match: compiled code checks that first.
    """

    evaluate: Evaluate
    needed: Names
    texts: frozenset[tuple[str, str]]
    headers: Names  # all headers that it reads
    asks_properties: bool  # whether it reads any properties

    def holds(self, headers: Headers, properties: Headers) -> bool:
        """Whether the condition is true for a message; unknown counts as false."""
        return self.evaluate(headers, properties) is True


def parse_sql(text: str) -> ParsedSql:
    """Parse a condition. Raises ExpressionError."""
    check_length(text)
    reader = Reader(text, _tokens(text))
    parser = _SqlParser(reader)
    part = parser.either()
    reader.finish()
    return ParsedSql(
        part.evaluate,
        part.if_true,
        part.texts,
        frozenset(parser.headers),
        parser.asks_properties,
    )


class _SqlParser:
    """Recursive-descent parser with one method for each line of the grammar."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._parts = 0
        self.headers: set[str] = set()
        self.asks_properties = False

    def either(self) -> SqlOperand:
        part = self._both()
        while self._reader.accept("OR"):
            part = self._counted(_or(part, self._both()))
        return part

    def _both(self) -> SqlOperand:
        part = self._not()
        while self._reader.accept("AND"):
            part = self._counted(_and(part, self._not()))
        return part

    def _not(self) -> SqlOperand:
        if not self._reader.accept("NOT"):
            return self._test()
        self._reader.enter()
        part = _not(self._not())
        self._reader.leave()
        return self._counted(part)

    def _test(self) -> SqlOperand:
        reader = self._reader
        left = self._sum()
        sign = reader.accept(*COMPARISONS)
        if sign is not None:
            return self._counted(_compare(COMPARISONS[sign.text], left, self._sum()))
        if reader.accept("IS"):
            negated = reader.accept("NOT") is not None
            reader.expect("NULL")
            return self._counted(_negated(_is_null(left), negated=negated))
        negated = reader.accept("NOT") is not None
        if reader.accept("BETWEEN"):
            part = self._between(left)
        elif reader.accept("IN"):
            part = self._in(left)
        elif reader.accept("LIKE"):
            part = self._like(left)
        elif negated:
            raise reader.unexpected("expected BETWEEN, IN or LIKE")
        else:
            return left
        return self._counted(_negated(part, negated=negated))

    def _between(self, value: SqlOperand) -> SqlOperand:
        low = self._sum()
        self._reader.expect("AND")
        return _and(_compare(ge, value, low), _compare(le, value, self._sum()))

    def _in(self, value: SqlOperand) -> SqlOperand:
        self._reader.expect("(")
        parts = [_compare(eq, value, self._constant())]
        while self._reader.accept(","):
            parts.append(self._counted(_compare(eq, value, self._constant())))
        self._reader.expect(")")
        part = parts[0]
        for other in parts[1:]:
            part = _or(part, other)
        return part._replace(evaluate=_any([part.evaluate for part in parts]))  # without nesting

    def _constant(self) -> SqlOperand:
        reader = self._reader
        sign = reader.accept("-", "+")
        if reader.token.kind == "number":
            number = self._number(reader.take())
            return _constant(-number if sign and sign.text == "-" else number)
        if sign is None and reader.token.kind == "text":
            return _text(reader.take().text)
        raise reader.unexpected("expected a constant")

    def _like(self, value: SqlOperand) -> SqlOperand:
        pattern = self._text_token("expected a pattern in single quotes")
        escape = None
        if self._reader.accept("ESCAPE"):
            escape = self._text_token("expected a character in single quotes")
            if len(escape.text) != 1:
                raise self._reader.wrong(escape, "ESCAPE takes one character")
        try:
            found = LikePattern(pattern.text, None if escape is None else escape.text)
        except LikePatternError as error:
            raise self._reader.wrong(pattern, str(error)) from None
        return _like(value, found)

    def _text_token(self, problem: str) -> Token:
        if self._reader.token.kind != "text":
            raise self._reader.unexpected(problem)
        return self._reader.take()

    def _sum(self) -> SqlOperand:
        part = self._product()
        while sign := self._reader.accept("+", "-"):
            operation = add if sign.text == "+" else sub
            part = self._counted(_arithmetic(operation, part, self._product()))
        return part

    def _product(self) -> SqlOperand:
        part = self._sign()
        while sign := self._reader.accept("*", "/", "%"):
            operation = {"*": mul, "/": _divide, "%": _remainder}[sign.text]
            part = self._counted(_arithmetic(operation, part, self._sign()))
        return part

    def _sign(self) -> SqlOperand:
        reader = self._reader
        reader.enter()
        sign = reader.accept("+", "-")
        if sign is not None:
            part = _arithmetic(add if sign.text == "+" else sub, _constant(0), self._sign())
        elif reader.accept("("):
            part = self.either()
            reader.expect(")")
        else:
            part = self._one()
        reader.leave()
        return self._counted(part)

    def _one(self) -> SqlOperand:
        reader = self._reader
        kind = reader.token.kind
        if kind == "number":
            return _constant(self._number(reader.take()))
        if kind == "text":
            return _text(reader.take().text)
        if kind == "name":
            return self._name(reader.take())
        if kind == "quoted":
            return self._header(reader.take().text)
        truth = reader.accept("TRUE", "FALSE")
        if truth is None:
            raise reader.unexpected("expected a value")
        return _constant(truth.text == "TRUE")

    def _name(self, token: Token) -> SqlOperand:
        for prefix in PREFIXES:
            if token.text.startswith(prefix):
                name = token.text.removeprefix(prefix)
                if name not in PROPERTIES:
                    raise self._reader.wrong(token, f"unknown property '{name[:24]}'")
                self.asks_properties = True
                return _property(name)
        return self._header(token.text)

    def _header(self, name: str) -> SqlOperand:
        self.headers.add(name)
        return _header(name)

    def _number(self, token: Token) -> int | float:
        if len(token.text) > NUMBER_CHARACTERS_MAX:
            raise self._reader.wrong(token, f"a number of more than {NUMBER_CHARACTERS_MAX} digits")
        return int(token.text) if token.text.isdecimal() else float(token.text)

    def _counted(self, part: SqlOperand) -> SqlOperand:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise self._reader.unexpected(f"more than {PARTS_MAX} parts")
        return part


# -- values


def _constant(value: float | bool) -> SqlOperand:
    return SqlOperand(lambda _headers, _properties: value)


def _text(text: str) -> SqlOperand:
    return SqlOperand(lambda _headers, _properties: text, text=text)


def _header(name: str) -> SqlOperand:
    names = frozenset((name,))
    return SqlOperand(lambda headers, _: _value(headers.get(name)), names, names, header=name)


def _property(name: str) -> SqlOperand:
    return SqlOperand(lambda _, properties: _value(properties.get(name)))


def _value(value: Any) -> Any:
    """Return a field's value in the language; None (NULL) for tables, arrays, bytes and None."""
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, str | int | float) else None


def _arithmetic(
    operation: Callable[[Any, Any], Any], left: SqlOperand, right: SqlOperand
) -> SqlOperand:
    first, second = left.evaluate, right.evaluate

    def evaluate(headers: Headers, properties: Headers) -> Any:
        one, other = first(headers, properties), second(headers, properties)
        if not (_is_number(one) and _is_number(other)):
            return None
        try:
            return operation(one, other)
        except (ArithmeticError, ValueError):
            return None  # division by zero, or beyond the range of a float

    return SqlOperand(evaluate, left.if_true | right.if_true, left.if_true | right.if_true)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _divide(one: float, other: float) -> float:
    if isinstance(one, int) and isinstance(other, int):
        quotient = abs(one) // abs(other)
        return quotient if (one < 0) == (other < 0) else -quotient
    return one / other


def _remainder(one: float, other: float) -> float:
    """Return the remainder, with the sign of the dividend."""
    return one - other * int(_divide(one, other))


# -- tests


def _compare(
    comparison: Callable[[Any, Any], bool], left: SqlOperand, right: SqlOperand
) -> SqlOperand:
    first, second = left.evaluate, right.evaluate
    ordered = comparison not in {eq, ne}

    def evaluate(headers: Headers, properties: Headers) -> bool | None:
        one, other = first(headers, properties), second(headers, properties)
        if isinstance(one, bool) or isinstance(other, bool):
            comparable = isinstance(one, bool) and isinstance(other, bool) and not ordered
        elif isinstance(one, str) or isinstance(other, str):
            comparable = isinstance(one, str) and isinstance(other, str)
        else:
            comparable = one is not None and other is not None
        return comparison(one, other) if comparable else None

    names = left.if_true | right.if_true
    texts: frozenset[tuple[str, str]] = frozenset()
    if comparison is eq:
        for value, constant in ((left, right), (right, left)):
            if value.header is not None and constant.text is not None:
                texts = frozenset(((value.header, constant.text),))
    return SqlOperand(evaluate, names, names, texts)


def _is_null(value: SqlOperand) -> SqlOperand:
    inner = value.evaluate
    return SqlOperand(lambda h, p: inner(h, p) is None, NO_NAMES, value.if_true)


def _like(value: SqlOperand, pattern: LikePattern) -> SqlOperand:
    inner = value.evaluate

    def evaluate(headers: Headers, properties: Headers) -> bool | None:
        text = inner(headers, properties)
        return pattern.matches(text) if isinstance(text, str) else None

    return SqlOperand(evaluate, value.if_true, value.if_true)


# -- three-valued logic: anything but a boolean is unknown


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _not(part: SqlOperand) -> SqlOperand:
    inner = part.evaluate

    def evaluate(headers: Headers, properties: Headers) -> bool | None:
        truth = _truth(inner(headers, properties))
        return None if truth is None else not truth

    return SqlOperand(evaluate, part.if_false, part.if_true)


def _negated(part: SqlOperand, *, negated: bool) -> SqlOperand:
    return _not(part) if negated else part


def _and(left: SqlOperand, right: SqlOperand) -> SqlOperand:
    first, second = left.evaluate, right.evaluate

    def evaluate(headers: Headers, properties: Headers) -> bool | None:
        one = _truth(first(headers, properties))
        if one is False:
            return False
        other = _truth(second(headers, properties))
        return one if other is True else other

    return SqlOperand(
        evaluate,
        left.if_true | right.if_true,
        left.if_false & right.if_false,
        left.texts | right.texts,
    )


def _or(left: SqlOperand, right: SqlOperand) -> SqlOperand:
    return SqlOperand(
        _any([left.evaluate, right.evaluate]),
        left.if_true & right.if_true,
        left.if_false | right.if_false,
        left.texts & right.texts,
    )


def _any(parts: list[Evaluate]) -> Evaluate:
    def evaluate(headers: Headers, properties: Headers) -> bool | None:
        found: bool | None = False
        for part in parts:
            truth = _truth(part(headers, properties))
            if truth:
                return True
            if truth is None:
                found = None
        return found

    return evaluate


def _tokens(text: str) -> list[Token]:
    tokens = []
    position = 0
    while position < len(text):
        found = TOKENS.match(text, position)
        if found is None:
            raise ExpressionError.at(text, position, f"unexpected '{text[position]}'")
        kind = str(found.lastgroup)
        if kind != "space":
            tokens.append(_token(kind, found[kind], position))
        position = found.end()
    return [*tokens, Token("end", "", len(text))]


def _token(kind: str, text: str, position: int) -> Token:
    if kind == "name" and text.upper() in KEYWORDS:
        return Token("word", text.upper(), position)
    if kind == "text":
        text = text.replace("''", "'")
    elif kind == "quoted":
        text = text.replace('""', '"')
    return Token(kind, text, position)
