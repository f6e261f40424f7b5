"""Two runs of the tests try the same examples, and say so by a digest."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from tests.support import examples
from tests.support.examples import ExamplesRecorder
from tests.support.waiting import TEST_SECONDS_MAX


def test_a_digest_stands_for_what_was_tried(monkeypatch):
    monkeypatch.setattr(
        engine.ConjectureRunner, "test_function", engine.ConjectureRunner.test_function
    )
    recorder = ExamplesRecorder()
    recorder.install()
    seen = []

    @settings(settings.get_profile("same"), max_examples=20)
    @given(st.integers(0, 1_000_000), st.text())
    def same(number, text):
        seen.append((number, text))

    @settings(settings.get_profile("same"), max_examples=20)
    @given(st.integers(0, 1_000_001), st.text())
    def other(number, text):
        pass

    same()
    first, tried = recorder.take(), list(seen)
    seen.clear()
    same()
    assert seen == tried
    assert recorder.take() == first
    other()
    assert recorder.take() != first
    assert recorder.take() == ""


def test_one_setting_scales_all_numbers(monkeypatch):
    monkeypatch.setattr(examples, "SCALE", 0.25)
    assert [examples.examples(count) for count in (400, 60, 1)] == [100, 15, 1]


@settings(max_examples=1)
@given(number=st.integers())
def test_an_example_that_fails_is_shrunk_before_the_time_is_over(request, number):
    if request.config.option.timeout == TEST_SECONDS_MAX:  # else the command line states another
        (seconds,) = request.node.get_closest_marker("timeout").args
        assert seconds >= TEST_SECONDS_MAX + engine.MAX_SHRINKING_SECONDS
