"""Field tables as JSON: what the stores' own tests cannot see, because it is not in the values."""

import copy

from leveret.ports.fields import WireInteger
from leveret.storage.tagged_json import decode_arguments, encode_arguments


def test_integers_keep_their_wire_types():
    text = encode_arguments({"a": [WireInteger(-5, "long")], "b": 5})
    assert text == '{"a":[{"integer":[-5,"long"]}],"b":5}'
    decoded = decode_arguments(text)
    assert (decoded["a"][0], decoded["a"][0].wire_type) == (-5, "long")
    assert type(decoded["b"]) is int


def test_copies_keep_their_wire_types():
    assert copy.deepcopy({"a": WireInteger(5, "short")})["a"].wire_type == "short"
