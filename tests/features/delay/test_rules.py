from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.errors import ChannelError
from leveret.features.delay.rules import (
    DELAY_MS_MAX,
    LEVELS_MS,
    Repetition,
    Schedule,
    kept_headers,
    read_repetition,
    read_schedule,
    schedule_id,
    schedule_owner,
    shown_headers,
)
from leveret.ports.tables import RawValue, Timestamp, decode_raw_table, decode_value, encode_table

NOW = 1_700_000_000_123
TWO = RawValue(b"I\0\0\0\2")


def raw(**headers: object) -> dict[str, RawValue]:
    """A table as it comes; `x_delay` is x-delay."""
    table = {name.replace("_", "-"): value for name, value in headers.items()}
    return decode_raw_table(encode_table(table))


def due(**headers: object) -> int:
    return read_schedule(raw(**headers), NOW).due_ms


def refusal(**headers: object) -> str:
    with pytest.raises(ChannelError) as caught:
        read_schedule(raw(**headers), NOW)
    assert caught.value.code == 406
    return caught.value.explanation


def ms(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1000)


class TestFirstDelivery:
    def test_a_delay_counts_from_now(self) -> None:
        assert due(x_delay=5000) == NOW + 5000

    @pytest.mark.parametrize(
        "value", ["5000", 5000.9, Decimal("5000.9"), RawValue(b"s\x13\x88"), RawValue(b"u\x13\x88")]
    )
    def test_a_delay_may_be_written_in_other_ways(self, value: object) -> None:
        assert due(x_delay=value) == NOW + 5000

    @pytest.mark.parametrize("value", [0, -1, -5000, "-5000", "0", 0.5, -2.5])
    def test_a_delay_that_is_not_above_zero_asks_for_nothing(self, value: object) -> None:
        schedule = read_schedule(raw(x_delay=value), NOW)
        assert schedule == Schedule(NOW)
        assert not schedule.is_kept(NOW)

    def test_what_was_delayed_before_can_be_scheduled_anew(self) -> None:
        assert due(x_delay=-5000, x_deliver_at=NOW + 7) == NOW + 7

    @pytest.mark.covers("C-201")
    def test_a_moment_is_milliseconds_or_a_timestamp(self) -> None:
        assert due(x_deliver_at=NOW + 1) == NOW + 1
        assert due(x_deliver_at=Timestamp(NOW // 1000 + 60)) == (NOW // 1000 + 60) * 1000

    @pytest.mark.parametrize("value", [NOW + 100.7, str(NOW + 100)])
    def test_a_moment_may_have_a_fraction_or_be_text(self, value: object) -> None:
        assert due(x_deliver_at=value) == NOW + 100

    @pytest.mark.parametrize("value", [0, -1, 10**12])
    def test_a_moment_that_is_long_past_means_now(self, value: int) -> None:
        assert due(x_deliver_at=value) == NOW

    def test_a_moment_that_is_past_means_now(self) -> None:
        schedule = read_schedule(raw(x_deliver_at=NOW - 1), NOW)
        assert schedule.due_ms == NOW
        assert not schedule.is_kept(NOW)

    def test_levels_are_steps(self) -> None:
        assert [due(x_delay_level=level) - NOW for level in range(1, 19)] == list(LEVELS_MS)
        assert LEVELS_MS[0] == 1000
        assert LEVELS_MS[13:] == (600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000)

    @pytest.mark.covers("C-201")
    def test_a_year_ahead_is_the_most(self) -> None:
        assert due(x_delay=DELAY_MS_MAX) == NOW + DELAY_MS_MAX
        assert "366 days" in refusal(x_delay=DELAY_MS_MAX + 1)
        assert "366 days" in refusal(x_deliver_at=NOW + DELAY_MS_MAX + 1)

    @pytest.mark.parametrize(
        ("headers", "text"),
        [
            ({"x_delay": "soon"}, "invalid header 'x-delay': it is no number of milliseconds"),
            ({"x_delay": "1_0"}, "invalid header 'x-delay': it is no number of milliseconds"),
            ({"x_delay": float("nan")}, "invalid header 'x-delay': it is no number"),
            ({"x_delay": float("inf")}, "invalid header 'x-delay': it is no number"),
            ({"x_delay": True}, "invalid header 'x-delay': it is no number of"),
            ({"x_delay": None}, "invalid header 'x-delay': it is no number of"),
            ({"x_delay": [1]}, "invalid header 'x-delay': it is no number of"),
            ({"x_deliver_at": True}, "invalid header 'x-deliver-at': it is no number"),
            ({"x_deliver_at": "soon"}, "invalid header 'x-deliver-at': it is no number"),
            (
                {"x_deliver_at": NOW // 1000 + 60},
                "'x-deliver-at': 1700000060 is in 1970: it is milliseconds since 1970",
            ),
            ({"x_repeat_every": 10, "x_repeat_until": 1}, "1 is in 1970"),
            ({"x_delay_level": 0}, "invalid header 'x-delay-level': levels are 1 to 18"),
            ({"x_delay_level": 19}, "invalid header 'x-delay-level': levels are 1 to 18"),
            ({"x_delay_level": "1"}, "'x-delay-level': it is no integer; levels are 1 to 18"),
            ({"x_delay": 1, "x_delay_level": 1}, "only one of 'x-delay' and 'x-delay-level'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, headers: dict[str, object], text: str) -> None:
        assert text in refusal(**headers)

    @pytest.mark.covers("C-203")
    def test_the_plugin_s_exchange_delivers_at_once_what_it_cannot_read(self) -> None:
        for value in (True, None, [1], 2**32, 2**40):
            schedule = read_schedule(raw(x_delay=value), NOW, like_plugin=True)
            assert not schedule.is_kept(NOW)
        longest = read_schedule(raw(x_delay=2**32 - 1), NOW, like_plugin=True)
        assert longest.due_ms == NOW + 2**32 - 1

    def test_an_id_is_kept_even_if_the_message_is_due(self) -> None:
        schedule = read_schedule(raw(x_delay=0, x_schedule_id="a"), NOW)
        assert schedule == Schedule(NOW, "a")
        assert schedule.is_kept(NOW)

    def test_an_id_of_the_brokers_asks_for_nothing(self) -> None:
        headers = raw(x_delay=1, x_schedule_id="@7")
        schedule = read_schedule(headers, NOW)
        assert schedule.id is None
        assert "x-schedule-id" not in kept_headers(headers, schedule, "u")

    @pytest.mark.parametrize("value", ["", "x" * 256, 7])
    def test_ids_are_text_of_a_bounded_length(self, value: object) -> None:
        assert "x-schedule-id" in refusal(x_delay=1, x_schedule_id=value)


class TestRepetition:
    def test_it_begins_at_once_unless_told(self) -> None:
        schedule = read_schedule(raw(x_repeat_every=1000, x_repeat_count=3), NOW)
        assert schedule == Schedule(NOW, None, Repetition(1000, count=3))
        assert schedule.is_kept(NOW)
        assert due(x_repeat_every=1000, x_delay=50) == NOW + 50

    def test_it_ends_after_so_many_deliveries(self) -> None:
        left: Repetition | None = Repetition(1000, count=3)
        times = [NOW]
        while left is not None:
            following = left.after(times[-1], times[-1])
            left = following and following[1]
            if following:
                times.append(following[0])
        assert times == [NOW, NOW + 1000, NOW + 2000]

    def test_it_ends_at_a_time(self) -> None:
        repetition = read_repetition(raw(x_repeat_every=1000, x_repeat_until=NOW + 1500))
        assert repetition.after(NOW, NOW) == (NOW + 1000, repetition)
        assert repetition.after(NOW + 1000, NOW + 1000) is None

    @given(
        every_ms=st.integers(10, 10**7),
        late_ms=st.integers(0, 10**9),
    )
    def test_what_was_missed_is_left_out(self, every_ms: int, late_ms: int) -> None:
        next_ms, _ = Repetition(every_ms).after(NOW, NOW + late_ms)
        assert next_ms > NOW + late_ms
        assert next_ms - every_ms <= NOW + late_ms
        assert (next_ms - NOW) % every_ms == 0

    def test_cron_is_utc(self) -> None:
        noon = ms(2026, 3, 29, 12)
        schedule = read_schedule(raw(x_cron="30 2 * * *"), noon)
        assert schedule.due_ms == ms(2026, 3, 30, 2, 30)
        assert schedule.repetition.after(schedule.due_ms, schedule.due_ms)[0] == (
            ms(2026, 3, 31, 2, 30)
        )

    def test_cron_begins_where_it_was_told_to(self) -> None:
        noon = ms(2026, 3, 29, 12)
        first = read_schedule(raw(x_cron="0 * * * *", x_deliver_at=ms(2026, 3, 30, 5)), noon)
        assert first.due_ms == ms(2026, 3, 30, 5)
        assert read_schedule(raw(x_cron="0 12 * * *"), noon).due_ms == ms(2026, 3, 30, 12)

    def test_cron_fires_once_after_a_long_absence(self) -> None:
        repetition = Repetition(cron="0 0 * * *")
        assert repetition.after(ms(2026, 1, 1), ms(2026, 1, 20, 5))[0] == ms(2026, 1, 21)

    def test_a_day_that_is_years_away(self) -> None:
        repetition = Repetition(cron="0 0 29 2 *")
        assert repetition.after(ms(2028, 2, 29), ms(2028, 2, 29))[0] == ms(2032, 2, 29)

    @pytest.mark.parametrize(
        ("headers", "text"),
        [
            ({"x_repeat_every": 9}, "invalid header 'x-repeat-every': it is 10 ms to 366 days"),
            ({"x_repeat_every": "1000"}, "'x-repeat-every': it is no integer; it is 10 ms to"),
            ({"x_repeat_every": 1000, "x_repeat_count": 0}, "'x-repeat-count': it is 1 to"),
            ({"x_repeat_every": 1000, "x_cron": "* * * * *"}, "only one of 'x-repeat-every' and"),
            ({"x_delay": 1, "x_repeat_count": 2}, "neither 'x-repeat-every' nor 'x-cron'"),
            ({"x_repeat_every": 1000, "x_repeat_until": NOW - 1}, "before the first delivery"),
            ({"x_cron": "* * * *"}, "'x-cron': it has five fields"),
            ({"x_cron": "* * * * * *"}, "'x-cron': it has five fields"),
            ({"x_cron": "61 * * * *"}, "'x-cron': Bad minute"),
            ({"x_cron": "0 0 31 2 *"}, "'x-cron': Bad day-of-month"),
            ({"x_cron": "*,* " * 64}, "longer than 255 bytes"),
            ({"x_cron": 5}, "'x-cron': it is no text; it has five fields"),
            ({"x_cron": "0 0 1 1 *", "x_repeat_until": NOW + 1}, "before the first delivery"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, headers: dict[str, object], text: str) -> None:
        assert text in refusal(**headers)

    @given(expression=st.text("0123456789*/-,L#MONFEB \t", max_size=24))
    def test_any_expression_is_understood_or_refused(self, expression: str) -> None:
        try:
            schedule = read_schedule(raw(x_cron=expression), NOW)
        except ChannelError:
            return
        assert schedule.due_ms > NOW
        assert schedule.due_ms % 60_000 == 0


class TestHeaders:
    def test_a_delay_is_negated_as_by_the_plugin(self) -> None:
        headers = raw(x_delay="5000", other="text")
        kept = kept_headers(headers, read_schedule(headers, NOW), "u")
        assert kept["x-delay"] == b"I\xff\xff\xec\x78"
        assert kept["other"] == headers["other"]
        again = read_schedule(kept, NOW)
        assert not again.is_kept(NOW)

    def test_a_level_is_gone(self) -> None:
        headers = raw(x_delay_level=3)
        assert kept_headers(headers, read_schedule(headers, NOW), "u") == {}

    def test_a_long_delay_takes_more_room(self) -> None:
        headers = raw(x_delay=DELAY_MS_MAX)
        kept = kept_headers(headers, read_schedule(headers, NOW), "u")
        assert decode_value(kept["x-delay"]) == -DELAY_MS_MAX

    def test_consumers_see_nothing_of_a_repetition(self) -> None:
        headers = raw(x_repeat_every=1000, x_repeat_count=3, x_schedule_id="a", mine=1)
        _, left = read_repetition(headers).after(NOW, NOW)
        shown, waiting = shown_headers(headers, left)
        assert shown == raw(x_from_schedule="a", mine=1)
        assert waiting == raw(x_repeat_every=1000, x_repeat_count=TWO, x_schedule_id="a", mine=1)
        assert shown_headers(headers, None) == (shown, None)

    def test_what_is_delivered_asks_for_nothing(self) -> None:
        headers = raw(x_delay=5, x_repeat_every=1000, x_schedule_id="a", x_schedule_owner="them")
        kept = kept_headers(headers, read_schedule(headers, NOW), "u")
        assert schedule_owner(kept) == "u"
        shown, _ = shown_headers(kept, None)
        again = read_schedule(shown, NOW)
        assert (again.id, again.repetition, again.due_ms) == (None, None, NOW)
        assert shown_headers(raw(x_schedule_id="@7"), None) == ({}, None)

    def test_ids_of_waiting_messages(self) -> None:
        assert schedule_id(raw(x_schedule_id="@7")) == "@7"
        assert schedule_id(raw(x_schedule_id=7)) is None
        assert schedule_id({}) is None
