"""The account of a cluster's clients tells what is wrong, and nothing where all is well."""

from __future__ import annotations

import pytest

from tests.harness.cluster_load.account import LoadAccount, longest_gap
from tests.harness.cluster_load.journal import last_events

PLAIN = """
1.0 connected - 7
1.1 sent pika 1 0
1.2 confirmed pika 1
1.3 sent pika 2 0
1.4 error - 0 StreamLostError: gone
1.5 connected - 8
1.6 sent pika 3 0
1.7 confirmed pika 3
"""
TAKEN = """
2.1 got pika 1 plain 0 0 -1
2.2 acked pika 1 plain 0
2.3 got pika 3 plain 0 0 -1
2.4 acked pika 3 plain 0
"""
HALF = """
1.1 sent tx 1
2.1 got tx 1 left 0 0 -1
2.2 got tx 1 left 1 0 -1
2.3 got tx 1 views 0 0 0
"""
WHOLE = HALF + "2.4 got tx 1 views 1 0 1\n"


@pytest.fixture
def problems(tmp_path):
    """Return what tells the problems of journals."""

    def tell(**journals: str) -> list[str]:
        for client, text in journals.items():
            (tmp_path / f"{client}.journal").write_text(text.lstrip())
        return [line for line in LoadAccount(tmp_path).problems() if not line.startswith(" ")]

    return tell


def test_what_is_not_confirmed_may_be_missing_and_may_come_late(problems):
    assert problems(pika=PLAIN, consumer=TAKEN) == []
    assert problems(drain="3.0 got pika 2 plain 0 0 -1\n") == []


def test_what_was_delivered_and_not_acknowledged_must_come_again(problems):
    taken = TAKEN.replace("2.4 acked pika 3 plain 0\n", "")
    assert problems(pika=PLAIN, consumer=taken) == ["1 confirmed, and missing:"]
    assert problems(drain="3.0 got pika 3 plain 0 1 -1\n") == []


@pytest.mark.parametrize("first", ["2", "3"])
def test_the_order_of_what_is_confirmed(problems, first):
    taken = f"2.0 got pika {first} plain 0 0 -1{TAKEN}"
    wrong = ["1 not in the order of publishing:"]
    assert problems(pika=PLAIN, consumer=taken) == wrong


def test_the_order_on_a_connection(problems):
    sent = PLAIN.replace("1.5 connected - 8\n", "")
    taken = TAKEN + "2.5 got pika 2 plain 0 0 -1\n"
    assert problems(pika=sent, consumer=taken) == ["1 not in the order of publishing:"]


def test_transactions_are_whole_or_not_there(problems):
    assert problems(consumer=HALF) == ["1 half a transaction:"]
    assert problems(consumer=WHOLE) == []
    again = WHOLE + "2.5 got tx 1 views 1 1 2\n"
    assert problems(consumer=again) == ["1 stored twice in the stream:"]


def test_what_is_early_or_of_nobody(problems):
    late = "1.0 sent late 1 2500\n2.0 got late 1 late 2500 0 -1\n2.6 got late 1 late 2500 0 -1\n"
    assert problems(consumer=late) == ["1 early:"]
    assert problems(consumer="2.0 got pika 1 plain 0 0 -1\n") == ["1 never sent:"]


def test_duplicates_are_counted_and_retries_are_none(problems, tmp_path):
    again = "".join(f"2.{n} got mails 3 mails 0 {n // 2} -1 {n % 2}\n" for n in range(4))
    problems(consumer="1.0 sent mails 3 0\n" + again)
    assert LoadAccount(tmp_path).duplicates()["mails"] == (4, 2, 0)


def test_the_longest_gap_that_touches_a_time():
    times = [1.0, 2.0, 5.0, 6.0, 20.0]
    assert longest_gap(times, 2.5, 4.0) == 3.0
    assert longest_gap(times, 2.5, 5.5) == 3.0
    assert longest_gap(times, 5.5, 7.0) == 14.0


def test_the_newest_events_are_whole_lines(tmp_path):
    lines = [f"{number}.0 confirmed pika {number} \n" for number in range(5000)]
    (tmp_path / "pika.journal").write_text("".join(lines) + "5000.0 confir")
    found = last_events(tmp_path)
    assert [event.number for event in found] == list(range(found[0].number, 5000))
    assert len(found) > 100
