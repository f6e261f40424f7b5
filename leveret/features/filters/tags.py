"""Language of `x-filter-tags`: `checkout || refund`, `vip && !test`, `(a || b) && c`, `*`.

    expression = both { "||" both }
    both       = one { "&&" one }
    one        = "!" one | "(" expression ")" | "*" | tag
    tag        = a word without space, quotes and any of |&!()* or any text in single quotes,
                 within which a quote is written twice

`*` matches a message that has any tag. Tags are compared byte by byte, in UTF-8. An expression is
compiled to a program in postfix order for compiled code (leveret.features.filters.filters), which
runs it for each record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from leveret.features.filters.expressions import ExpressionError, Reader, Token, check_length
from leveret.ports.tags import TAG_BYTES_MAX

# Different tags in one expression: those that a record has fit in one word of bits.
EXPRESSION_TAGS_MAX = 64
# Tags, operators and negations: the program's cost for each record.
STEPS_MAX = 512

TOKENS = re.compile(
    r"\s*(?:(?P<sign>\|\||&&|[!()*])|'(?P<quoted>(?:[^']|'')*)'|(?P<tag>[^\s'\"|&!()*]+))"
)
SPACE = re.compile(r"\s*")


class TagOperation(IntEnum):
    """Operation of a program.

    Any other number pushes whether the tag with this number is present.
    """

    ANY = -1
    NOT = -2
    AND = -3
    OR = -4


@dataclass(frozen=True, slots=True)
class TagExpression:
    """A parsed expression: its different tags, and its program in postfix order."""

    tags: tuple[bytes, ...]
    program: tuple[int, ...]


def parse_tags(text: str) -> TagExpression:
    """Parse an expression. Raises ExpressionError."""
    check_length(text)
    reader = Reader(text, _tokens(text))
    parser = _TagParser(reader)
    parser.expression()
    reader.finish()
    return TagExpression(tuple(parser.tags), tuple(parser.program))


class _TagParser:
    """Parser that emits the program as it reads; `tags` numbers the tags in order of appearance."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.tags: dict[bytes, int] = {}
        self.program: list[int] = []

    def expression(self) -> None:
        self._both()
        while self._reader.accept("||"):
            self._both()
            self._add(TagOperation.OR)

    def _both(self) -> None:
        self._one()
        while self._reader.accept("&&"):
            self._one()
            self._add(TagOperation.AND)

    def _one(self) -> None:
        reader = self._reader
        reader.enter()
        if reader.accept("!"):
            self._one()
            self._add(TagOperation.NOT)
        elif reader.accept("("):
            self.expression()
            reader.expect(")")
        elif reader.accept("*"):
            self._add(TagOperation.ANY)
        elif reader.token.kind == "tag":
            self._add(self._number(reader.take()))
        else:
            raise reader.unexpected("expected a tag")
        reader.leave()

    def _number(self, token: Token) -> int:
        tag = token.text.encode(errors="surrogateescape")
        if len(tag) > TAG_BYTES_MAX:
            raise self._reader.wrong(token, f"a tag is at most {TAG_BYTES_MAX} bytes long")
        if tag not in self.tags and len(self.tags) == EXPRESSION_TAGS_MAX:
            raise self._reader.wrong(token, f"more than {EXPRESSION_TAGS_MAX} tags")
        return self.tags.setdefault(tag, len(self.tags))

    def _add(self, step: int) -> None:
        self.program.append(step)
        if len(self.program) > STEPS_MAX:
            raise self._reader.unexpected(f"more than {STEPS_MAX} steps")


def _tokens(text: str) -> list[Token]:
    tokens = []
    position = _behind_space(text, 0)
    while position < len(text):
        found = TOKENS.match(text, position)
        if found is None:
            raise ExpressionError.at(text, position, f"unexpected '{text[position]}'")
        if found["sign"] is not None:
            tokens.append(Token("sign", found["sign"], position))
        else:
            quoted = found["quoted"]
            tag = found["tag"] if quoted is None else quoted.replace("''", "'")
            tokens.append(Token("tag", tag, position))
        position = _behind_space(text, found.end())
    return [*tokens, Token("end", "", len(text))]


def _behind_space(text: str, position: int) -> int:
    found = SPACE.match(text, position)
    return position if found is None else found.end()
