"""The patterns of LIKE: `%` is any text, `_` any character; an escape character takes that away.

A pattern is cut at its `%` into pieces. The first piece must stand at the beginning of the text and
the last at its end, and each of the others is looked for where the one before it ended: the first
place is as good as any later one, so that nothing is ever tried twice. A piece with `_` is found by
the bit-parallel method of Baeza-Yates and Gonnet, one step for each character of the text.
"""

from __future__ import annotations

PATTERN_CHARACTERS_MAX = 512


class PatternError(ValueError):
    """The pattern is none."""


class LikePattern:
    """A pattern, made ready to be compared with many texts."""

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        """Raises PatternError."""
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise PatternError(f"a pattern of more than {PATTERN_CHARACTERS_MAX} characters")
        first, *others = _pieces(pattern, escape)
        self._first = first
        self._last = others.pop() if others else None  # None: no % at all
        self._between = [piece for piece in others if piece.size]

    def matches(self, text: str) -> bool:
        """Whether the whole text fits."""
        if self._last is None:
            return len(text) == self._first.size and self._first.stands_at(text, 0)
        stop = len(text) - self._last.size
        position = self._first.size
        if stop < position or not self._first.stands_at(text, 0):
            return False
        if not self._last.stands_at(text, stop):
            return False
        for piece in self._between:
            position = piece.find(text, position, stop)
            if position < 0:
                return False
        return True


class _Piece:
    """What stands between two `%`; None in `characters` is any character."""

    def __init__(self, characters: list[str | None]) -> None:
        self.size = len(characters)
        self._literal = None if None in characters else "".join(map(str, characters))
        self._fixed = [(i, c) for i, c in enumerate(characters) if c is not None]
        self._anything = sum(1 << i for i, c in enumerate(characters) if c is None)
        self._places: dict[str, int] = {}
        for i, character in self._fixed:
            self._places[character] = self._places.get(character, self._anything) | 1 << i

    def stands_at(self, text: str, position: int) -> bool:
        """Whether the text from `position` on, which is long enough, begins with this."""
        if self._literal is not None:
            return text.startswith(self._literal, position)
        return all(text[position + i] == character for i, character in self._fixed)

    def find(self, text: str, position: int, stop: int) -> int:
        """One past the first place within [position, stop) where this stands; -1: nowhere."""
        if self._literal is not None:
            found = text.find(self._literal, position, stop)
            return found if found < 0 else found + self.size
        begun = 0  # bit i: the last i + 1 characters are the first i + 1 of the piece
        whole = 1 << (self.size - 1)
        for i in range(position, stop):
            begun = (begun << 1 | 1) & self._places.get(text[i], self._anything)
            if begun & whole:
                return i + 1
        return -1


def _pieces(pattern: str, escape: str | None) -> list[_Piece]:
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped not in {"%", "_", escape}:
                raise PatternError("what is escaped must be %, _ or the escape character")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return [_Piece(piece) for piece in pieces]
