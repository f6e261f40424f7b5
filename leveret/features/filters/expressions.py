"""Common parts of the filter languages: tokens with positions, and errors that show them.

An expression is written by a client and parsed once, when a consumer or a binding is declared. Its
length, the depth of its parentheses and the number of its parts are bounded, so that parsing is
quick and evaluation has a bounded cost.
"""

from __future__ import annotations

from dataclasses import dataclass

# Expressions are written by people, or generated from lists of a few hundred values.
EXPRESSION_CHARACTERS_MAX = 4096
# Deeper nesting comes from a bug in the generator.
DEPTH_MAX = 32
# Characters shown before an error: a reply text has 255 bytes in all.
SHOWN_CHARACTERS = 24


class ExpressionError(ValueError):
    """Raised for an invalid expression; `str()` says why and where, in one line."""

    @classmethod
    def at(cls, text: str, position: int, problem: str) -> ExpressionError:
        """Return an error at a position; characters are counted from 1, as in editors."""
        before = text[max(position - SHOWN_CHARACTERS, 0) : position]
        cut = "…" if position > SHOWN_CHARACTERS else ""
        place = f"after '{cut}{before}'" if before else "at the beginning"
        return cls(f"{problem} at character {position + 1}, {place}")


@dataclass(frozen=True, slots=True)
class Token:
    """Token of an expression: its kind, its text, and where it begins."""

    kind: str
    text: str
    position: int


class Reader:
    """Token stream of an expression, with a counter of the nesting depth."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """Next token; the last one is of kind `end`."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Consume and return the next token."""
        token = self.token
        self._next += token.kind != "end"
        return token

    def accept(self, *texts: str) -> Token | None:
        """Consume and return the next token if it is one of these signs or words, else None."""
        if self.token.kind in {"sign", "word"} and self.token.text in texts:
            return self.take()
        return None

    def expect(self, text: str) -> Token:
        """Consume this sign or word. Raises ExpressionError if something else comes next."""
        token = self.accept(text)
        if token is None:
            raise self.unexpected(f"expected {text}")
        return token

    def unexpected(self, problem: str) -> ExpressionError:
        """Return an error about the next token, which is not allowed here."""
        token = self.token
        found = "the end" if token.kind == "end" else f"'{token.text[:SHOWN_CHARACTERS]}'"
        return ExpressionError.at(self._text, token.position, f"{problem}, found {found}")

    def wrong(self, token: Token, problem: str) -> ExpressionError:
        """Return an error about a token that was consumed."""
        return ExpressionError.at(self._text, token.position, problem)

    def enter(self) -> None:
        """Enter a nesting level. Raises ExpressionError beyond DEPTH_MAX."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.unexpected(f"nested deeper than {DEPTH_MAX}")

    def leave(self) -> None:
        """Leave a nesting level."""
        self._depth -= 1

    def finish(self) -> None:
        """Raise ExpressionError unless the expression has ended."""
        if self.token.kind != "end":
            raise self.unexpected("expected the end")


def check_length(text: str) -> None:
    """Raise ExpressionError if a text is too long to be parsed."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise ExpressionError(f"longer than {EXPRESSION_CHARACTERS_MAX} characters")
