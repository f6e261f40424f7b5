"""Notes of logs in the state store, and what is done once they are stored."""

from leveret.storage.note_writer import WORKS_AT_ONCE, NoteWriter
from leveret.storage.state import MemoryStateStore


class Committer:
    """Does what is handed in when `run` is called."""

    def __init__(self):
        self.submitted = []

    def submit(self, work, done):
        self.submitted.append((work, done))

    def run(self):
        submitted, self.submitted = self.submitted, []
        for work, done in submitted:
            try:
                work()
            except OSError as error:
                done(error)
            else:
                done(None)
        return len(submitted)


class Loop:
    def __init__(self):
        self.timers = []

    def call_later(self, *timer):
        self.timers.append(timer)


def make_writer(loop=None):
    committer, told = Committer(), []
    state = MemoryStateStore()
    loop = loop or Loop()
    writer = NoteWriter(state, loop, committer, {}, interval_ms=1000, worked=told.append)
    return writer, committer, state, told


def test_work_waits_for_what_was_noted_before():
    writer, committer, state, told = make_writer()
    seen = []
    writer.note(b"key", b"value")
    writer.when_written(lambda: seen.append(state.get(b"key")))
    writer.write()
    assert committer.run() == 1
    assert seen == []
    committer.run()
    assert (seen, told) == ([b"value"], [None])


def test_much_work_is_done_in_portions():
    writer, committer, _, told = make_writer()
    done = []
    for number in range(WORKS_AT_ONCE * 2 + 1):
        writer.when_written(lambda number=number: done.append(number))
    writer.write()
    committer.run()
    assert committer.run() == 3
    assert done == list(range(WORKS_AT_ONCE * 2 + 1))
    assert told == [None] * 3


def test_work_that_fails_keeps_no_other_from_being_done():
    writer, committer, _, told = make_writer()
    done = []

    def fail():
        raise OSError("no")

    for work in (fail, lambda: done.append(1)):
        writer.when_written(work)
    writer.write()
    committer.run()
    committer.run()
    assert done == [1]
    assert list(map(str, told)) == ["no"]


def test_what_is_noted_during_a_write_is_written_behind_it():
    writer, committer, state, _ = make_writer()
    writer.note(b"key", b"one")
    writer.write()
    writer.note(b"key", b"two")
    seen = []
    writer.when_written(lambda: seen.append(state.get(b"key")))
    writer.write()
    while committer.run():
        pass
    assert seen == [b"two"]


def test_work_behind_the_end_is_done_and_starts_no_timer():
    loop, done = Loop(), []
    writer, committer, *_ = make_writer(loop)
    writer.stop()
    writer.when_written(lambda: done.append(1))
    writer.write()
    while committer.run():
        pass
    assert done == [1]
    assert loop.timers == []
