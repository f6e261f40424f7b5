"""Keys in order, compared with a sorted set."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.metadata import sorted_keys
from leveret.cluster.metadata.sorted_keys import SortedKeys

KEYS = st.text("ab/ü", max_size=5)


@given(st.sets(KEYS), st.lists(KEYS), KEYS)
def test_keys_come_in_order_whatever_was_added_and_removed(first, toggled, prefix):
    original, sorted_keys.CHUNK_KEYS = sorted_keys.CHUNK_KEYS, 3
    try:
        keys, model = SortedKeys(first), set(first)
        for key in toggled:
            if key in model:
                keys.remove(key)
                model.remove(key)
            else:
                keys.add(key)
                model.add(key)
            assert list(keys.beginning_with("")) == sorted(model)
        found = list(keys.beginning_with(prefix))
    finally:
        sorted_keys.CHUNK_KEYS = original
    assert found == sorted(key for key in model if key.startswith(prefix))
