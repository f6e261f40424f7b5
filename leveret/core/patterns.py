r"""Regular expressions for names, searched in time linear in the length of the name.

A backtracking engine can be kept busy for ages by a few characters (`(a+)+b`), and the node's
only event loop with it. RE2 does not backtrack, and so has no back references and no look-arounds.
But look-arounds are the usual means to exclude names:

    ^(?!amq\.)    ^((?!test).)*$    .*(?<!\.retry)$

Where its position is fixed, a look-around is another pattern that must, or must not, be found too:
`^A(?!B)C` matches where `^AC` does and `^A(?:B)` does not, if A always matches the same length. The
same holds for text before an end, and for a look-around that is repeated over the whole rest. All
others are refused (docs/decisions/0034).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import re2  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NOWHERE", "PATTERN_CHARACTERS_MAX", "Pattern", "PatternError"]

PATTERN_CHARACTERS_MAX: Final = 1024  # enough for a list of some dozens of names
# RE2's program and its states for one pattern: below it a name of 255 bytes takes less than a
# millisecond, whatever the pattern is; lists of a hundred names need a twentieth of it.
PATTERN_BYTES_MAX: Final = 256 * 1024
ALTERNATIVES_MAX: Final = 32  # of a pattern with look-arounds, once groups are expanded
CONDITIONS_MAX: Final = 64  # patterns that its look-arounds become, each an engine of its own
# Characters parsed again for groups around look-arounds, in all: some milliseconds.
READ_CHARACTERS_MAX: Final = 16 * PATTERN_CHARACTERS_MAX

TOKENS: Final = re.compile(
    r"""
    \\Q.*?(?:\\E|\Z)
  | \\[pPx]\{[^}]*\} | \\.
  | \[\^?\]?(?:\\.|\[:\^?[a-z]*:\]|[^\]\\])*+\]
  | \((?:\?(?:P?<[A-Za-z_]\w*>|<?[=!]|:))?
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
REPETITION: Final = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})[?+]?")
FLAGS: Final = re.compile(r"\(\?[imsU]+\)")
LOOK_AROUND: Final = re.compile(r"\(\?<?[=!]")
BEGINNINGS: Final = {"^", r"\A"}
ENDS: Final = {"$", r"\z"}


class PatternError(ValueError):
    """Raised for an invalid pattern; `reason` says why, `position` is the character where."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class Pattern:
    """A compiled pattern that is searched in names."""

    def __init__(self, source: str) -> None:
        """Compile a pattern. Raises PatternError."""
        if len(source) > PATTERN_CHARACTERS_MAX:
            raise PatternError(f"longer than {PATTERN_CHARACTERS_MAX} characters")
        self._alternatives = (
            _alternatives(source) if LOOK_AROUND.search(source) else [_Alternative(_engine(source))]
        )

    def is_in(self, text: str) -> bool:
        """Whether the pattern is found anywhere in a text."""
        sought = text.encode(errors="surrogatepass")
        return any(alternative.is_in(sought) for alternative in self._alternatives)


@dataclass(frozen=True, slots=True)
class _Alternative:
    """Branch of a pattern: `body` and all `required` must be found, and none of `excluded`."""

    body: re2._Regexp
    required: tuple[re2._Regexp, ...] = ()
    excluded: tuple[re2._Regexp, ...] = ()

    @property
    def condition_count(self) -> int:
        return len(self.required) + len(self.excluded)

    def is_in(self, sought: bytes) -> bool:
        return (
            self.body.search(sought) is not None
            and all(pattern.search(sought) for pattern in self.required)
            and not any(pattern.search(sought) for pattern in self.excluded)
        )


def _engine(source: str) -> re2._Regexp:
    """Compile a pattern without look-arounds by RE2. Raises PatternError."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # without captures RE2 uses its faster automaton
    options.max_mem = PATTERN_BYTES_MAX
    try:
        return re2.compile(source, options)
    except UnicodeEncodeError as error:
        raise PatternError("half of a surrogate pair", error.start) from None
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        fragment = reason.rpartition(": ")[2]
        raise PatternError(reason, max(source.find(fragment), 0)) from None


# -- look-arounds


@dataclass(frozen=True, slots=True)
class _Item:
    """One element of a sequence with its repetition; `inner` is the content of a group."""

    text: str
    opening: str = ""  # of a group
    inner: str = ""
    repetition: str = ""

    @property
    def is_fixed(self) -> bool:
        """Whether it always matches the same number of characters, as far as is easily decided."""
        return not (self.opening or self.repetition)

    @property
    def is_look_around(self) -> bool:
        return LOOK_AROUND.match(self.opening) is not None and not self.repetition


def _alternatives(source: str) -> list[_Alternative]:
    """Return the branches of a pattern, with look-arounds as conditions. Raises PatternError."""
    match = FLAGS.match(source)
    flags = match[0] if match else ""
    pending: list[str] = [source.removeprefix(flags)]
    found: list[_Alternative] = []
    left = READ_CHARACTERS_MAX
    while pending:
        part = pending.pop()
        left -= len(part)
        if left < 0:
            raise PatternError("too many groups around look-arounds")
        for sequence in _sequences(part):
            parts = _multiplied_out(sequence)
            pending += parts
            if not parts:
                found.append(_alternative(flags, _spread(sequence)))
            if len(pending) + len(found) > ALTERNATIVES_MAX:
                raise PatternError("too many alternatives beside a look-around")
            if sum(each.condition_count for each in found) > CONDITIONS_MAX:
                raise PatternError("too many look-arounds")
    return found


def _multiplied_out(sequence: list[_Item]) -> list[str]:
    """Expand the first group with a look-around, `a(b|c)d` to `abd` and `acd`.

    Empty if there is none.
    """
    for place, item in enumerate(sequence):
        is_group = item.opening and not item.repetition and not item.is_look_around
        if is_group and LOOK_AROUND.search(item.inner):
            before, after = _text(sequence[:place]), _text(sequence[place + 1 :])
            return [before + _text(inner) + after for inner in _sequences(item.inner)]
    return []


def _spread(sequence: list[_Item]) -> list[_Item]:
    """Rewrite `((?!x).)*$`, i.e. no x in the rest, as `(?!.*x).*$`."""
    match sequence:
        case [
            *before,
            _Item(opening="(" | "(?:", inner=inner, repetition="*" | "+" as repetition),
            end,
        ] if end.text in ENDS:
            match list(_sequences(inner)):
                case [[_Item(opening="(?!", inner=unwanted, repetition=""), _Item(text=".")]]:
                    look = _Item(f"(?!.*(?:{unwanted}))", "(?!", f".*(?:{unwanted})")
                    return [*before, look, _Item(f".{repetition}", repetition=repetition), end]
    return sequence


def _alternative(flags: str, sequence: list[_Item]) -> _Alternative:
    """Compile a sequence and its look-arounds. Raises PatternError."""
    body = [item for item in sequence if not item.is_look_around]
    required: list[re2._Regexp] = []
    excluded: list[re2._Regexp] = []
    for place, item in enumerate(sequence):
        if item.is_look_around:
            before = [other for other in sequence[:place] if not other.is_look_around]
            after = [other for other in sequence[place + 1 :] if not other.is_look_around]
            wanted = excluded if item.opening.endswith("!") else required
            wanted.append(_engine(flags + _condition(item, before, after)))
    return _Alternative(_engine(flags + _text(body)), tuple(required), tuple(excluded))


def _condition(look: _Item, before: list[_Item], after: list[_Item]) -> str:
    """Return a pattern that is found exactly if a look-around holds where the rest matches."""
    is_behind = look.opening.startswith("(?<")
    beside = after if is_behind else before
    border = beside[-1 if is_behind else 0].text if beside else ""
    if border not in (ENDS if is_behind else BEGINNINGS) or not all(i.is_fixed for i in beside):
        raise PatternError(
            f"{look.text} stands where it might hold in several places: look-arounds are "
            "understood right behind ^ or before $, or with text of one length in between"
        )
    inner = f"(?:{look.inner})"
    return inner + _text(after) if is_behind else _text(before) + inner


def _sequences(source: str) -> Iterator[list[_Item]]:
    """Yield the sequences between the bars of a pattern. Raises PatternError."""
    sequence: list[_Item] = []
    for item in _items(source):
        if item.text == "|":
            yield sequence
            sequence = []
        else:
            sequence.append(item)
    yield sequence


def _items(source: str) -> Iterator[_Item]:
    """Yield the elements of a pattern. Raises PatternError."""
    position = 0
    while position < len(source):
        opening, inner = _token(source, position), ""
        stop = position + len(opening)
        if opening.startswith("("):
            closing = _closing(source, position)
            inner, stop = source[stop:closing], closing + 1
        else:
            opening = ""
        repeated = REPETITION.match(source, stop)
        repetition = repeated[0] if repeated else ""
        text = source[position : stop + len(repetition)]
        yield _Item(text, opening, inner, repetition)
        position += len(text)


def _closing(source: str, position: int) -> int:
    """Return the index of the parenthesis that closes the group at a position.

    Raises PatternError.
    """
    depth, begin = 0, position
    while position < len(source):
        part = _token(source, position)
        depth += part.startswith("(")
        depth -= part == ")"
        if not depth:
            return position
        position += len(part)
    raise PatternError("missing )", begin)


def _token(source: str, position: int) -> str:
    match = TOKENS.match(source, position)
    assert match is not None, "any character is a token"
    return match[0]


def _text(sequence: list[_Item]) -> str:
    return "".join(item.text for item in sequence)


NOWHERE: Final = Pattern(r"[^\s\S]")  # matches nothing: for a stored, now invalid pattern
