"""The outer shape of JSON bodies, looked at before a parser for whole blocks of them is.

Compiled since it looks at every byte. Whether a body is valid JSON is not found out here: only what
the parser cannot be asked, because it takes what lies between two bodies for their content.
"""

from libc.stdint cimport int32_t, uint8_t

cdef enum:
    OTHER = 0       # no byte of a JSON text outside of strings, as far as plain bodies go
    SPACE = 1
    TOKEN = 2       # of numbers, of true, false and null, and commas and colons
    OPEN = 3
    CLOSE = 4
    QUOTE = 5

cdef uint8_t[256] KINDS


cdef void fill_kinds():
    cdef uint8_t byte
    for byte in b" \t\r\n":
        KINDS[byte] = SPACE
    # No capital letters but E: NaN and Infinity are no JSON, and parsers differ about them.
    for byte in b"0123456789+-.eEtrufalsn,:":
        KINDS[byte] = TOKEN
    for byte in b"[{":
        KINDS[byte] = OPEN
    for byte in b"]}":
        KINDS[byte] = CLOSE
    KINDS[b'"'] = QUOTE


fill_kinds()


cdef inline Py_ssize_t string_end(const uint8_t* body, Py_ssize_t at, Py_ssize_t stop) noexcept nogil:
    """Return where a string that begins behind its quote at `at` ends, or -1.

    Control characters end no string, and are not allowed in one.
    """
    while at < stop:
        if body[at] == 34:      # "
            return at
        if body[at] < 32:
            return -1
        at += 2 if body[at] == 92 else 1    # a backslash, and what it escapes
    return -1


cdef bint is_plain(const uint8_t* body, Py_ssize_t stop, Py_ssize_t depth_max) noexcept nogil:
    cdef Py_ssize_t at = 0, depth = 0
    cdef bint is_over = False
    cdef uint8_t kind
    while at < stop:
        kind = KINDS[body[at]]
        if kind == SPACE:
            at += 1
            continue
        if is_over or (depth == 0 and body[at] != 123):     # {
            return False
        if kind == QUOTE:
            at = string_end(body, at + 1, stop)
            if at < 0:
                return False
        elif kind == OPEN:
            depth += 1
            if depth > depth_max:
                return False
        elif kind == CLOSE:
            depth -= 1
            is_over = depth == 0
        elif kind != TOKEN:
            return False
        at += 1
    return is_over


def plain_objects(
    const uint8_t[::1] values, const int32_t[::1] table, Py_ssize_t rows, Py_ssize_t depth_max
):
    """Return a byte for each body: 1 if it has the shape of one JSON object, and of nothing else.

    Body n is values[table[n]:table[n + 1]]. A plain body begins and ends with a brace, has as many
    brackets opened as closed, at most `depth_max` at a time, no control characters in its strings,
    and nothing behind the object but spaces. Raises ValueError if a body is not within `values`.
    """
    cdef bytearray found = bytearray(rows)
    cdef uint8_t* plain = found
    cdef Py_ssize_t row, first, stop, size = values.shape[0]
    cdef const uint8_t* data = &values[0] if size else NULL
    if table.shape[0] < rows + 1:
        raise ValueError("there are fewer bodies than rows")
    for row in range(rows):
        first, stop = table[row], table[row + 1]
        if first < 0 or stop < first or stop > size:
            raise ValueError(f"body {row} is not within the values")
        if stop > first:
            plain[row] = is_plain(data + first, stop - first, depth_max)
    return bytes(found)


def nesting(const uint8_t[::1] body not None):
    """Return how many brackets are open at a time, at most, outside of strings."""
    cdef Py_ssize_t at = 0, depth = 0, deepest = 0, size = body.shape[0]
    while at < size:
        if body[at] == 34:
            at += 1
            while at < size and body[at] != 34:
                at += 2 if body[at] == 92 else 1
        elif KINDS[body[at]] == OPEN:
            depth += 1
            deepest = max(deepest, depth)
        elif KINDS[body[at]] == CLOSE:
            depth -= 1
        at += 1
    return deepest
