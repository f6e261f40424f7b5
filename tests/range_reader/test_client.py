"""Requests that a reader makes."""

from io import BytesIO
from urllib.parse import parse_qs, urlsplit

import pytest

from leveret.api_connection import ApiConnection
from leveret.features.range_reads.columns import ColumnPacker
from leveret.range_reader import RangeReader


class Answer(BytesIO):
    """An answer with one chunk without rows."""

    status = 200

    def __init__(self, offset):
        parts = ColumnPacker([0]).finish(
            offset=offset,
            next_offset=offset + 10,
            first=0,
            end=20,
            missing=0,
            log=0,
            partition=0,
            flags=1,
        )
        super().__init__(b"".join(parts))

    def isclosed(self):
        return True


@pytest.fixture
def asked(monkeypatch):
    queries = []

    def answer(_connection, _method, target, _body):
        query = parse_qs(urlsplit(target).query)
        queries.append({name: value for name, (value,) in query.items()})
        return Answer(int(queries[-1]["offset"]))

    monkeypatch.setattr(ApiConnection, "_answer", answer)
    return queries


def test_a_filter_is_part_of_each_request(asked):
    with RangeReader("http://localhost:15672", "guest", "guest") as reader:
        wanted = {"tags": "a && !'b c'", "where": "n > 1 AND x = 'ä'"}
        assert reader.read("q", 0, 3, **wanted).next_offset == 13
        assert len(list(reader.chunks("q", 0, 0, 20, **wanted))) == 2
        reader.read("q", 0, 0)
    for query in asked[:-1]:
        assert (query["tags"], query["filter"]) == ("a && !'b c'", "n > 1 AND x = 'ä'")
    assert [query["offset"] for query in asked[:-1]] == ["3", "0", "10"]
    assert asked[-1] == {"offset": "0"}


def test_another_resource_is_asked_for_by_its_path(monkeypatch):
    targets = []

    def ask(_connection, method, target):
        targets.append((method, target))
        return {"rows": []}

    monkeypatch.setattr(ApiConnection, "ask", ask)
    with RangeReader("http://localhost:15672", "guest", "guest") as reader:
        path = ("leveret", "dead-letters", "/", "a/b?c")
        assert reader.resource(*path, limit=5, after=None) == {"rows": []}
    assert targets == [("GET", "/api/leveret/dead-letters/%2F/a%2Fb%3Fc?limit=5")]
