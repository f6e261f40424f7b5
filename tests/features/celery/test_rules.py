from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.celery.rules import due_ms

HALF_PAST = 1_767_270_600_000  # 2026-01-01 12:30:00 UTC


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T12:30:00",
        "2026-01-01T12:30:00Z",
        "2026-01-01T12:30:00+00:00",
        "2026-01-01T14:30:00+02:00",
        "2026-01-01T07:00:00.000000-05:30",
        "2026-01-01 12:30",
    ],
)
def test_times_with_and_without_an_offset(text: str) -> None:
    assert due_ms(text) == HALF_PAST


def test_a_task_is_never_early() -> None:
    assert due_ms("2026-01-01T12:30:00.000001+00:00") == HALF_PAST + 1


@pytest.mark.parametrize("text", ["", "soon", "12:30", "9999-12-31T23:59:59-23:00x", "1" * 65])
def test_what_is_no_time_is_nobody_s_business(text: str) -> None:
    assert due_ms(text) is None


@given(
    moment=st.datetimes(
        datetime(1, 1, 3),  # noqa: DTZ001  # Hypothesis wants it so
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=-11))]),
    )
)
def test_whatever_python_writes_is_read(moment: datetime) -> None:
    exact = (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    due = due_ms(moment.isoformat())
    assert abs(due - exact) <= 1.1
