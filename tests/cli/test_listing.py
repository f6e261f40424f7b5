"""Lists, whole for programs and cut for people; without a node."""

import json
from dataclasses import asdict

import pytest
import typer

from leveret.cli import listing
from leveret.cli.listing import Listing, Source, show_list, whole
from leveret.cli.session import Invocation, begin

NOON_MS = 1_767_614_400_000
ROWS = [
    {"name": f"q{number:03}", "messages": number, "owner": {"name": "u"}, "since": NOON_MS}
    for number in range(130)
]


@pytest.fixture
def shown(capsys, monkeypatch):
    """Return what is written of a list: (output, errors)."""

    def show(source, *, as_json=False, terminal=False, aliases=None, **options):
        monkeypatch.setattr(listing, "is_for_people", lambda: terminal)
        stated = {**asdict(Listing()), **options}
        begin(Invocation(as_json=as_json))
        show_list(source, ["name", "messages"], stated, aliases=aliases)
        return capsys.readouterr()

    return show


def paged(rows):
    """The rows as a node tells them."""

    def page(count, after):
        first = 0 if after is None else after
        last = first + count
        after = last if last < len(rows) else None
        return {"rows": rows[first:last], "after": after, "total": len(rows)}

    return Source(page)


@pytest.mark.parametrize("source", [whole(ROWS), paged(ROWS)], ids=["whole", "paged"])
class TestCut:
    def test_programs_get_all(self, shown, source, monkeypatch):
        monkeypatch.setattr(listing, "PAGE_ROWS", 50)
        assert json.loads(shown(source, as_json=True).out) == ROWS
        assert json.loads(shown(source, as_json=True, terminal=True).out) == ROWS
        told = shown(source)
        assert (len(told.out.splitlines()), told.err) == (131, "")

    def test_a_terminal_gets_the_beginning_and_is_told(self, shown, source):
        told = shown(source, terminal=True)
        assert told.err == "100 of 130 shown; --limit 0 shows all\n"
        assert "q099" in told.out
        assert "q100" not in told.out
        assert "q129" in shown(source, terminal=True, limit=0).out

    def test_a_script_is_told_that_it_left_some_out(self, shown, source):
        told = shown(source, limit=2, as_json=True)
        assert [row["name"] for row in json.loads(told.out)] == ["q000", "q001"]
        assert told.err == "2 of 130 shown; --limit 0 shows all\n"
        assert shown(source, limit=130).err == ""

    def test_any_column_sorts(self, shown, source):
        told = shown(source, sort="messages", reverse=True, limit=1)
        assert told.out.split() == ["name", "messages", "q129", "129"]
        assert told.err == "1 of 130 shown; --limit 0 shows all\n"


def test_a_list_whose_length_nobody_knows_says_that_there_is_more(shown):
    source = Source(lambda count, after: {"rows": ROWS[:count], "after": count})
    assert shown(source, limit=3).err == "the first 3 shown; there are more: --limit 0 shows all\n"


def test_the_node_sorts_where_few_are_wanted(shown):
    asked = []

    def ranked(count, column):
        asked.append((count, column))
        return {"rows": ROWS[:count], "after": None, "total": 130}

    source = Source(paged(ROWS).page, ranked)
    assert "1 of 130" in shown(source, sort="owner", limit=1, aliases={"owner": "owner.name"}).err
    assert asked == [(1, "owner.name")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"columns": "name,mesages"}, "no column 'mesages'; did you mean 'messages'"),
        ({"sort": "foo"}, "no column 'foo'; there are messages, name, owner, since"),
        ({"reverse": True}, "it needs --sort"),
    ],
)
def test_what_makes_no_sense_is_refused(shown, options, problem):
    with pytest.raises(typer.BadParameter, match=problem):
        shown(whole(ROWS), **options)


def test_columns_have_names_of_their_own_and_times_are_readable(shown):
    told = shown(whole(ROWS[:1]), columns="user,since", aliases={"user": "owner.name"})
    assert told.out.split() == ["user", "since", "u", "2026-01-05T12:00:00.000Z"]
    told = shown(whole(ROWS[:1]), columns="owner.name,since", as_json=True)
    assert json.loads(told.out) == [{"owner.name": "u", "since": NOON_MS}]
