"""Avro bodies as Arrow values, and the schemas that they are written with."""

from __future__ import annotations

import datetime as dt
import io
import json
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.spark import schema_ids
from leveret.spark.avro_schemas import AvroSchemaError, parsed_schema
from leveret.spark.avro_values import AvroDecoder, value_type
from leveret.spark.errors import SourceError
from leveret.spark.schema_ids import SchemaIds
from leveret.spark.value_formats import SchemaIdOptions


def record(**fields):
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


SMALL = record(id="long", name=["null", "string"])
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
LARGE = record(
    flag="boolean",
    small="int",
    single="float",
    double="double",
    raw="bytes",
    price={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    day={"type": "int", "logicalType": "date"},
    millis={"type": "long", "logicalType": "timestamp-millis"},
    micros={"type": "long", "logicalType": "timestamp-micros"},
    local={"type": "long", "logicalType": "local-timestamp-micros"},
    clock={"type": "int", "logicalType": "time-millis"},
    id={"type": "string", "logicalType": "uuid"},
    kind={"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]},
    mark={"type": "fixed", "name": "Mark", "size": 2},
    points={"type": "array", "items": POINT},
    place=["null", "Point"],
    tags={"type": "map", "values": "string"},
)


def written(schema, value, number=None):
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    prefix = b"" if number is None else b"\0" + number.to_bytes(4, "big")
    return prefix + body.getvalue()


def decoder(schema, schema_ids=None):
    text = json.dumps(schema)
    raw = value_type(text)
    wanted = pa.struct([field.with_type(in_microseconds(field.type)) for field in raw])
    return AvroDecoder(text, wanted, schema_ids)


def in_microseconds(kind):
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def decode(bodies, schema, schema_ids=None):
    values, malformed = decoder(schema, schema_ids).decode(pa.array(bodies, pa.binary()))
    values.validate(full=True)
    return values.to_pylist(), malformed


def test_all_types():
    now = dt.datetime(2026, 1, 5, 13, 30, 0, 123000, tzinfo=dt.UTC)
    value = {
        "flag": True,
        "small": -5,
        "single": 1.5,
        "double": 2.25,
        "raw": b"\0\xff",
        "price": Decimal("12.50"),
        "day": dt.date(2026, 1, 5),
        "millis": now,
        "micros": now,
        "local": now.replace(tzinfo=None),
        "clock": dt.time(0, 0, 1),
        "id": "0b5cc0d5-5f5e-4f10-9d26-1d2f7a5f4f7d",
        "kind": "OLD",
        "mark": b"ab",
        "points": [{"x": 1}, {"x": 2}],
        "place": {"x": 3},
        "tags": {"a": "b"},
    }
    (found,), malformed = decode([written(LARGE, value)], LARGE)
    assert found == {**value, "clock": 1000, "tags": [("a", "b")]}
    assert malformed == {}


def test_malformed_bodies_are_null():
    good = written(SMALL, {"id": 7, "name": "ü"})
    bad = [b"", good[:-1], good + b"x", b"\x0e\x02\x02\xff", b"\x80" * 20, b"\x0e\x06"]
    bad += [b"\x0e\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"]  # a string of petabytes
    bodies = [good]
    for each in bad:
        bodies += [each, good]
    values, malformed = decode(bodies, SMALL)
    assert values[::2] == [{"id": 7, "name": "ü"}] * (len(bad) + 1)
    assert values[1::2] == [None] * len(bad)
    assert list(malformed) == list(range(1, len(bodies), 2))
    assert malformed[5] == f"the body goes on after its value, at byte {len(good)}"


def test_values_that_do_not_fit_are_malformed_and_spoil_no_others():
    schema = record(price={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    large = b"\x10" + b"\x7f" * 8
    good = written(schema, {"price": Decimal("1.25")})
    values, malformed = decode([good, large, b"", good], schema)
    assert values == [{"price": Decimal("1.25")}, None, None, {"price": Decimal("1.25")}]
    assert list(malformed) == [1, 2]


def test_bodies_are_resolved_from_the_schema_with_their_id():
    older = record(id="int")
    ids = SchemaIds(SchemaIdOptions(by_id=json.dumps({"1": older, "2": json.dumps(SMALL)})))
    reader = record(id="long")
    reader["fields"].append({"name": "name", "type": ["null", "string"], "default": None})
    bodies = [
        written(older, {"id": 5}, 1),
        written(SMALL, {"id": 6, "name": "b"}, 2),
        written(SMALL, {"id": 6, "name": "b"}, 3),
        written(SMALL, {"id": 6, "name": "b"}),
        b"\0\0",
        b"",
    ]
    values, malformed = decode(bodies, reader, ids)
    assert values[:2] == [{"id": 5, "name": None}, {"id": 6, "name": "b"}]
    assert values[2:] == [None] * 4
    assert "schema with id 3 cannot be used: option 'valueSchemas'" in malformed[2]
    assert all("byte 0 and a schema's id" in malformed[row] for row in (3, 4, 5))


def test_a_schema_that_does_not_resolve_makes_a_body_malformed():
    ids = SchemaIds(SchemaIdOptions(by_id=json.dumps({"1": record(id="string"), "2": {"a": 1}})))
    bodies = [written(record(id="string"), {"id": "x"}, 1), b"\0\0\0\0\2x"]
    values, malformed = decode(bodies, record(id="long"), ids)
    assert values == [None, None]
    assert "SchemaResolutionError" in malformed[0]
    assert "id 2 cannot be used: it is no Avro schema" in malformed[1]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (record(next=["null", "Order"]), "recursive"),
        (record(all={"type": "array", "items": "null"}), "take no bytes"),
        (record(all={"type": "array", "items": {**POINT, "fields": []}}), "take no bytes"),
        (record(both=["int", "string"]), "union of other types"),
        (record(nothing="null"), "a null that is not in a union"),
        (record(a="integer"), "no Avro schema"),
        ({"type": "record"}, "no Avro schema"),
        ([], "union of other types"),
        (
            record(a={"type": "bytes", "logicalType": "decimal", "precision": 39}),
            "more than 38 digits",
        ),
    ],
)
def test_schemas_that_are_refused(schema, text):
    with pytest.raises(AvroSchemaError, match=text):
        value_type(json.dumps(schema))


def test_schemas_that_are_no_json():
    with pytest.raises(AvroSchemaError, match="no JSON"):
        value_type("{")
    with pytest.raises(AvroSchemaError, match=r"nested too deeply|no JSON"):
        value_type('{"type":' * 5000 + '"int"' + "}" * 5000)
    with pytest.raises(AvroSchemaError, match="no object with ids"):
        SchemaIds(SchemaIdOptions(by_id="[]"))


def test_a_type_may_be_used_twice():
    schema = record(a=POINT, b="Point", c=["null", "Point"])
    body = written(schema, {"a": {"x": 1}, "b": {"x": 2}, "c": None})
    assert decode([body], schema)[0] == [{"a": {"x": 1}, "b": {"x": 2}, "c": None}]
    assert parsed_schema(schema)["name"] == "Order"


@contextmanager
def registry(answers):
    """Serve (status, object) by path; yields the URL, and the requests that came."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append((self.path, self.headers.get("Authorization")))
            status, answer = answers.get(self.path, (404, {"error_code": 40403}))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_registry_is_asked_once_for_each_id():
    answers = {
        "/schemas/ids/1": (200, {"schema": json.dumps(SMALL)}),
        "/schemas/ids/2": (200, {"schema": "{}", "schemaType": "PROTOBUF"}),
        "/schemas/ids/3": (200, {"schema": json.dumps(SMALL), "references": [{"name": "a"}]}),
    }
    good = written(SMALL, {"id": 1, "name": None}, 1)
    others = [b"\0\0\0\0" + bytes([number]) for number in (2, 3, 4)]
    with registry(answers) as (url, requests):
        ids = SchemaIds(SchemaIdOptions(url=url + "/", user="me", password="secret"))
        for _ in range(2):
            values, malformed = decode([good, *others, good], SMALL, ids)
    assert values == [{"id": 1, "name": None}, None, None, None, {"id": 1, "name": None}]
    assert "of type PROTOBUF" in malformed[1]
    assert "refers to other schemas" in malformed[2]
    assert "the schema registry does not have it" in malformed[3]
    assert [path for path, _ in requests] == [f"/schemas/ids/{number}" for number in (1, 2, 3, 4)]
    assert {secret for _, secret in requests} == {"Basic bWU6c2VjcmV0"}


def test_a_registry_that_does_not_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(schema_ids, "PAUSE_S", 0)
    body = written(SMALL, {"id": 1, "name": None}, 1)
    for status, attempts in ((503, schema_ids.ATTEMPTS), (401, 1)):
        with registry({"/schemas/ids/1": (status, {})}) as (url, requests):
            with pytest.raises(SourceError, match=f"ids/1: {status}"):
                decode([body], SMALL, SchemaIds(SchemaIdOptions(url=url)))
            assert len(requests) == attempts


def test_the_password_is_not_shown():
    assert "secret" not in repr(SchemaIdOptions(url="http://a", user="me", password="secret"))


RECORDS = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(-(1 << 63), (1 << 63) - 1), "name": st.none() | st.text(max_size=5)}
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(RECORDS, st.binary(max_size=12))
def test_any_bytes_beside_good_bodies(records, other):
    bodies = []
    for each in records:
        bodies += [written(SMALL, each), other]
    values, malformed = decode(bodies, SMALL)
    assert values[::2] == records
    alone, problem = decode([other], SMALL)
    assert values[1::2] == alone * len(records)
    assert len(malformed) == len(problem) * len(records)
