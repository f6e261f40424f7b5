"""Heartbeats: silence, answers that do not come, and pauses of this process itself."""

from leveret.links.heartbeats import Heartbeats, Pulse
from leveret.links.settings import LinkSettings

MS = 1_000_000
SETTINGS = LinkSettings(heartbeat_ms=400, silent_ms_max=1600, answer_ms_max=15_000)


def test_silence_is_noticed_within_two_seconds():
    beats = Heartbeats(SETTINGS, 0)
    beats.beat(0)
    pulses = [beats.beat(at * MS) for at in (400, 800, 1200, 1600)]
    assert pulses == [Pulse.ALIVE, Pulse.ALIVE, Pulse.ALIVE, Pulse.SILENT]


def test_any_byte_counts():
    beats = Heartbeats(SETTINGS, 0)
    for at in range(400, 10_000, 400):
        beats.heard = True
        assert beats.beat(at * MS) is Pulse.ALIVE


def test_a_pause_of_this_process_is_not_the_peers_silence():
    beats = Heartbeats(SETTINGS, 0)
    beats.beat(400 * MS)
    beats.beat(800 * MS)
    assert beats.beat(60_000 * MS) is Pulse.ALIVE
    assert beats.beat(60_400 * MS) is Pulse.ALIVE


def test_heartbeats_without_answer_are_noticed_though_bytes_come():
    beats = Heartbeats(SETTINGS, 0)
    pulses = []
    for at in range(0, 15_600, 400):
        beats.heard = True
        pulses.append(beats.beat(at * MS))
    assert pulses[-2:] == [Pulse.ALIVE, Pulse.UNANSWERED]


def test_answers_measure_the_round_trip():
    beats = Heartbeats(SETTINGS, 0)
    beats.beat(400 * MS)
    assert beats.answered(400 * MS, 403 * MS) == 3 * MS
    assert beats.answered(400 * MS, 404 * MS) is None, "it is answered already"
    assert beats.answered(9999 * MS, 500 * MS) is None, "it was not sent"
