"""Generated changes and entries, and bytes that were damaged."""

from hypothesis import strategies as st

from leveret.ports.coordination import KeyChange

KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
VALUES = st.binary(max_size=20)
CHANGES = st.lists(
    st.builds(KeyChange, KEYS, st.none() | VALUES, st.none()),
    max_size=8,
    unique_by=lambda each: each.key,
)


@st.composite
def damaged(draw, data):
    """Bytes with one of them changed, some cut off, or some added."""
    kind = draw(st.sampled_from(["changed", "cut", "added"]))
    if kind == "changed":
        place = draw(st.integers(0, len(data) - 1))
        value = draw(st.integers(0, 255).filter(lambda value: value != data[place]))
        return data[:place] + bytes([value]) + data[place + 1 :]
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    return data + draw(st.binary(min_size=1, max_size=5))
