"""Patterns of LIKE: `%` is any text, `_` any character; an escape character makes them literal.

A pattern is split at its `%` into pieces. The first must match at the beginning of the text and
the last at its end; each of the others is searched from the end of the one before it: the first
match is as good as any later one, so that there is no backtracking. A piece is found by the
bit-parallel method of Baeza-Yates and Gonnet, whose number of steps does not depend on the content:
one for each character of the text and each 64 characters of the piece.

Compiled because of those steps. Texts are bounded, too: a condition has room for two hundred
patterns, and matching all of them with one message must take no more than a millisecond or two.
"""

from cpython.unicode cimport PyUnicode_DATA, PyUnicode_KIND, PyUnicode_READ
from libc.stdint cimport uint32_t, uint64_t

PATTERN_CHARACTERS_MAX = 512
# For longer text LIKE is unknown (NULL). Filters use names and addresses; this is a page of text.
TEXT_CHARACTERS_MAX = 4096

cdef enum:
    WORD_BITS = 64
    WORDS_MAX = 8               # of PATTERN_CHARACTERS_MAX
    LATIN = 256                 # characters whose rows are looked up in an array


class LikePatternError(ValueError):
    """Raised for an invalid pattern."""


cdef class LikePattern:
    """A pattern compiled for comparison with many texts."""

    cdef Piece first
    cdef Piece last             # None: there is no %, and the first piece must match the whole text
    cdef list between

    def __init__(self, str pattern not None, str escape=None):
        """Compile a pattern. Raises LikePatternError."""
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise LikePatternError(f"a pattern of more than {PATTERN_CHARACTERS_MAX} characters")
        first, *others = _pieces(pattern, escape)
        self.first = first
        self.last = others.pop() if others else None
        self.between = [piece for piece in others if piece.size]

    def matches(self, str text not None):
        """Whether the whole text matches; None if it is too long to be compared."""
        cdef Py_ssize_t stop, position = self.first.size
        cdef Piece piece
        if len(text) > TEXT_CHARACTERS_MAX:
            return None
        if self.last is None:
            return len(text) == position and self.first.stands_at(text, 0)
        stop = len(text) - self.last.size
        if stop < position or not self.first.stands_at(text, 0):
            return False
        if not self.last.stands_at(text, stop):
            return False
        for piece in self.between:
            position = piece.find(text, position, stop)
            if position < 0:
                return False
        return True


cdef class Piece:
    """Piece of a pattern between two `%`; None in `characters` is any character.

        rows    for each character of the piece a number of 64 * words bits; bit i: whether it is
                allowed at index i; row 0 is that of all other characters
        codes   the characters of the rows from 1 on, ascending
    """

    cdef readonly Py_ssize_t size
    cdef list characters
    cdef bytes rows
    cdef bytes codes
    cdef int words
    cdef uint32_t code_count
    cdef uint32_t[LATIN] latin      # row of each of the characters below LATIN

    def __init__(self, list characters not None):
        cdef uint32_t row
        anything = sum(1 << i for i, character in enumerate(characters) if character is None)
        places = {}
        for i, character in enumerate(characters):
            if character is not None:
                places[character] = places.get(character, anything) | 1 << i
        self.size = len(characters)
        self.characters = characters
        self.words = max((len(characters) + WORD_BITS - 1) // WORD_BITS, 1)
        known = sorted(places)
        self.code_count = len(known)
        self.codes = b"".join(ord(character).to_bytes(4, "little") for character in known)
        self.rows = b"".join(
            bits.to_bytes(self.words * 8, "little")
            for bits in (anything, *(places[character] for character in known))
        )
        for row in range(LATIN):
            self.latin[row] = 0
        for row, character in enumerate(known):
            if ord(character) < LATIN:
                self.latin[ord(character)] = row + 1

    cdef bint stands_at(self, str text, Py_ssize_t position) noexcept:
        """Whether the text from `position` on, which is long enough, begins with this piece."""
        cdef Py_ssize_t i
        for i in range(self.size):
            character = self.characters[i]
            if character is not None and text[position + i] != character:
                return False
        return True

    cdef Py_ssize_t find(self, str text, Py_ssize_t position, Py_ssize_t stop) noexcept:
        """Return one past the first match within [position, stop); -1 if there is none."""
        cdef uint64_t[WORDS_MAX] begun      # bit i: the last i + 1 characters match the piece's first
        cdef int kind = PyUnicode_KIND(text)
        cdef void* data = PyUnicode_DATA(text)
        cdef const uint64_t* rows = <const uint64_t*><const char*>self.rows
        cdef const uint64_t* row
        cdef int words = self.words
        cdef uint64_t whole = <uint64_t>1 << ((self.size - 1) % WORD_BITS)
        cdef uint64_t carry, lost
        cdef uint32_t code
        cdef Py_ssize_t i
        cdef int word
        for word in range(words):
            begun[word] = 0
        for i in range(position, stop):
            code = PyUnicode_READ(kind, data, i)
            row = rows + words * (self.latin[code] if code < LATIN else self.row_of(code))
            carry = 1
            for word in range(words):
                lost = begun[word] >> (WORD_BITS - 1)
                begun[word] = (begun[word] << 1 | carry) & row[word]
                carry = lost
            if begun[words - 1] & whole:
                return i + 1
        return -1

    cdef uint32_t row_of(self, uint32_t code) noexcept:
        """Return the row of a character at or above LATIN."""
        cdef const uint32_t* codes = <const uint32_t*><const char*>self.codes
        cdef uint32_t low = 0, high = self.code_count, middle
        while low < high:
            middle = (low + high) // 2
            if codes[middle] < code:
                low = middle + 1
            else:
                high = middle
        return low + 1 if low < self.code_count and codes[low] == code else 0


def _pieces(str pattern, str escape):
    piece = []
    pieces = [piece]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped not in {"%", "_", escape}:
                raise LikePatternError("what is escaped must be %, _ or the escape character")
            piece.append(escaped)
        elif character == "%":
            piece = []
            pieces.append(piece)
        else:
            piece.append(None if character == "_" else character)
    return [Piece(piece) for piece in pieces]
