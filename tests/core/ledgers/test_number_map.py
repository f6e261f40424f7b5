"""The flat map against a dictionary."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.ledgers.number_map import NumberMap

keys = st.integers(0, 40) | st.integers(0, 2**64 - 1)
steps = st.lists(st.tuples(st.sampled_from(["set", "take", "get"]), keys, st.integers(0, 99)))


@given(steps)
def test_any_sequence(sequence):
    numbers, model = NumberMap(), {}
    for step, key, value in sequence:
        if step == "set":
            numbers.set(key, value)
            model[key] = value
        elif step == "take":
            assert numbers.take(key) == model.pop(key, None)
        assert numbers.get(key) == model.get(key)
        assert len(numbers) == len(model)


@pytest.mark.parametrize("seed", range(5))
def test_thousands_come_and_go(seed):
    rng, numbers, model = random.Random(seed), NumberMap(), {}
    for turn in range(20_000):
        key = rng.randrange(3000) << rng.choice((0, 0, 32))
        if rng.random() < 0.3 + 0.4 * (turn % 5000 < 2500):
            numbers.set(key, turn)
            model[key] = turn
        else:
            assert numbers.take(key) == model.pop(key, None)
    assert {key: numbers.get(key) for key in model} == model
    for key in list(model):
        assert numbers.take(key) == model.pop(key)
    assert numbers.count == 0
    assert numbers.get(1) is None
