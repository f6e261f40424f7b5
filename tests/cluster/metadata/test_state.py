"""The state, compared with a model of it, and carried over by snapshots."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.metadata import state as state_module
from leveret.cluster.metadata.changes import ChangeBatch, PendingWrite
from leveret.cluster.metadata.state import WRITERS_MAX, MetadataState
from leveret.ports.coordination import KeyChange, KeyCheck
from tests.cluster.metadata.samples import CHANGES

BATCHES = st.lists(st.tuples(st.integers(1, 3), CHANGES), max_size=8)


def apply_all(state, batches):
    for writer, changes in batches:
        number = state.sequence + 1
        state.apply(ChangeBatch(writer, number, number, tuple(changes)))


def entries(state):
    return {key: state[key] for key in state}


@given(BATCHES)
def test_entries_have_the_number_of_their_last_change(batches):
    state, model = MetadataState(), {}
    apply_all(state, batches)
    for number, (_, changes) in enumerate(batches, 1):
        for key, value, _ in changes:
            model.pop(key, None)
            if value is not None:
                model[key] = (number, value)
    assert entries(state) == model
    assert list(state.keys()) == sorted(model)
    assert len(state) == len(model)
    assert all(state.version(key) == version for key, (version, _) in model.items())


@given(BATCHES, BATCHES)
def test_a_state_that_lags_becomes_an_image_by_the_difference(batches, more):
    lagging, leading = MetadataState(), MetadataState()
    apply_all(lagging, batches)
    apply_all(leading, batches + more)
    image = leading.image()
    changes = lagging.difference(image, dict.fromkeys((*lagging, *image.entries)))
    replayed = {key: entry.value for key, entry in entries(lagging).items()}
    for key, value, _ in changes:
        replayed.pop(key, None)
        if value is not None:
            replayed[key] = value
    lagging.restore(image, changes)
    assert lagging.image() == image
    assert list(lagging.keys()) == list(leading.keys())
    assert replayed == {key: entry.value for key, entry in entries(leading).items()}


def test_an_image_stays_as_it_is():
    state = MetadataState()
    apply_all(state, [(1, [KeyChange("a", b"1")])])
    image = state.image()
    apply_all(state, [(2, [KeyChange("a", None)])])
    assert image.entries == {"a": (1, b"1")}
    assert list(image.writers) == [1]


def test_conflicts_are_the_keys_with_other_versions():
    state = MetadataState()
    apply_all(state, [(1, [KeyChange("a", b"1")]), (1, [KeyChange("b", b"1")])])
    wanted = [
        KeyChange("a", b"2", 1),
        KeyChange("b", b"2", 1),
        KeyChange("c", b"2", 0),
        KeyChange("d", b"2"),
        KeyCheck("a", 2),
        KeyCheck("e", 0),
    ]
    assert state.conflicts(PendingWrite.of(wanted)) == ["b", "a"]


def test_a_writer_finds_its_last_batch_only():
    state = MetadataState()
    apply_all(state, [(7, []), (8, []), (7, [])])
    assert state.applied(7, 3) == 3
    assert state.applied(7, 1) is None
    assert state.applied(7, 4) is None
    assert state.applied(8, 2) == 2
    assert state.applied(9, 1) is None


def test_only_the_latest_writers_are_remembered(monkeypatch):
    monkeypatch.setattr(state_module, "WRITERS_MAX", 2)
    state = MetadataState()
    apply_all(state, [(1, []), (2, []), (1, []), (3, [])])
    assert list(state.image().writers) == [1, 3]
    assert WRITERS_MAX == 1024
