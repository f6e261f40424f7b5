"""What the languages of filters have in common: tokens with places, and errors that show them.

An expression is written by a client and read once, when a consumer or a binding is declared. Its
length, the depth of its parentheses and the number of its parts are bounded, so that reading it is
quick and evaluating it costs a known amount.
"""

from __future__ import annotations

from dataclasses import dataclass

# An expression is written by people, or made of a list of a few hundred values.
EXPRESSION_CHARACTERS_MAX = 4096
# Deeper nesting is a loop in whatever made it.
DEPTH_MAX = 32
# How much of the text in front of a mistake is shown: a reply text has 255 bytes in all.
SHOWN_CHARACTERS = 24


class ExpressionError(ValueError):
    """The text is no expression; `str()` says why and where, in one line."""

    @classmethod
    def at(cls, text: str, position: int, problem: str) -> ExpressionError:
        """Describe a mistake at a place: characters are counted from 1, as editors do."""
        before = text[max(position - SHOWN_CHARACTERS, 0) : position]
        cut = "…" if position > SHOWN_CHARACTERS else ""
        place = f"after '{cut}{before}'" if before else "at the beginning"
        return cls(f"{problem} at character {position + 1}, {place}")


@dataclass(frozen=True, slots=True)
class Token:
    """One word of an expression: what kind it is, what it says, and where it begins."""

    kind: str
    text: str
    position: int


class Reader:
    """Hands out an expression's tokens one by one, and counts how deep its reader has gone."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """The token that comes next; the last one is of kind `end`."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Take the next token."""
        token = self.token
        self._next += token.kind != "end"
        return token

    def accept(self, *texts: str) -> Token | None:
        """Take the next token if it is one of these signs or words."""
        if self.token.kind in {"sign", "word"} and self.token.text in texts:
            return self.take()
        return None

    def expect(self, text: str) -> Token:
        """Take this sign or word. Raises ExpressionError where something else comes."""
        token = self.accept(text)
        if token is None:
            raise self.unexpected(f"expected {text}")
        return token

    def unexpected(self, problem: str) -> ExpressionError:
        """Describe a next token that cannot be."""
        token = self.token
        found = "the end" if token.kind == "end" else f"'{token.text[:SHOWN_CHARACTERS]}'"
        return ExpressionError.at(self._text, token.position, f"{problem}, found {found}")

    def wrong(self, token: Token, problem: str) -> ExpressionError:
        """Describe what is wrong with a token that was taken."""
        return ExpressionError.at(self._text, token.position, problem)

    def enter(self) -> None:
        """Go one level deeper. Raises ExpressionError where that is too deep."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.unexpected(f"nested deeper than {DEPTH_MAX}")

    def leave(self) -> None:
        """Come back from a level."""
        self._depth -= 1

    def finish(self) -> None:
        """Expect nothing more."""
        if self.token.kind != "end":
            raise self.unexpected("expected the end")


def check_length(text: str) -> None:
    """Raise ExpressionError for a text that is too long to be read."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise ExpressionError(f"longer than {EXPRESSION_CHARACTERS_MAX} characters")
