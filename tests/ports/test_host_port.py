import pytest

from leveret.ports.host_port import format_host_port, parse_host_port


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("node-1.example", ("node-1.example", None)),
        ("node-1:25672", ("node-1", 25672)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]", ("::1", None)),
        ("[fe80::2]:65535", ("fe80::2", 65535)),
    ],
)
def test_an_address_is_host_and_port(text, parsed):
    assert parse_host_port(text) == parsed
    if parsed[1] is not None:
        assert format_host_port(*parsed) == text


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a:-1", "::1", "[a]:1", "a b"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"HOST|port"):
        parse_host_port(text)
