"""PLAIN and AMQPLAIN responses, right and wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp.sasl import (
    MECHANISMS,
    Credentials,
    offered,
    parse_amqplain,
    parse_plain,
    parse_response,
)
from leveret.errors import ConnectionClosingError
from leveret.ports.tables import encode_table

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism {}. "
    "For details see the broker logfile."
)


def amqplain(**fields: object) -> bytes:
    return encode_table(fields)[4:]


@pytest.mark.covers("B-002")
@given(names, names)
def test_both_mechanisms_carry_name_and_password(user, password):
    plain = b"\0".join([b"", user.encode(), password.encode()])
    assert parse_plain(plain) == Credentials(user, password)
    table = amqplain(LOGIN=user, PASSWORD=password)
    assert parse_amqplain(table) == Credentials(user, password)


@pytest.mark.parametrize(
    "response",
    [b"", b"guest\0guest", b"\0guest", b"\0guest\0gu\0est", b"other\0guest\0guest", b"\0\xff\0x"],
)
def test_malformed_plain_is_a_refused_login(response):
    with pytest.raises(ConnectionClosingError) as caught:
        parse_response("PLAIN", response)
    assert (caught.value.code, caught.value.reply_text) == (403, REFUSED.format("PLAIN"))


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"zzzz",
        amqplain(LOGIN="guest"),
        amqplain(PASSWORD="guest"),
        amqplain(LOGIN=5, PASSWORD="guest"),
        amqplain(LOGIN="guest", PASSWORD=None),
        amqplain(LOGIN=b"\xff", PASSWORD="guest"),
        amqplain(LOGIN=bytearray(b"guest"), PASSWORD="guest"),
    ],
)
def test_malformed_amqplain_is_a_refused_login(response):
    with pytest.raises(ConnectionClosingError) as caught:
        parse_response("AMQPLAIN", response)
    assert (caught.value.code, caught.value.reply_text) == (403, REFUSED.format("AMQPLAIN"))


@pytest.mark.covers("B-308")
@pytest.mark.parametrize("mechanism", ["", "plain", "CRAM-MD5"])
def test_unknown_mechanisms_are_named(mechanism):
    with pytest.raises(ConnectionClosingError) as caught:
        parse_response(mechanism, b"\0guest\0guest")
    text = f"COMMAND_INVALID - unknown authentication mechanism '{mechanism}'"
    assert (caught.value.code, caught.value.reply_text) == (503, text)


@given(st.sampled_from(sorted(MECHANISMS)), st.binary(max_size=80))
def test_any_response_gives_credentials_or_the_documented_error(mechanism, response):
    code = 0
    try:
        parse_response(mechanism, response)
    except ConnectionClosingError as error:
        code = error.code
    assert code in {0, 403}


@pytest.mark.covers("B-308")
@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS"])
def test_mechanisms_that_are_not_for_this_client_are_told_from_unknown_ones(mechanism):
    with pytest.raises(ConnectionClosingError) as caught:
        parse_response(mechanism, b"guest")
    text = f"COMMAND_INVALID - invalid authentication mechanism '{mechanism}'"
    assert (caught.value.code, caught.value.reply_text) == (503, text)


@pytest.mark.covers("B-014")
def test_a_certificate_names_the_user_whatever_the_response_says():
    assert parse_response("EXTERNAL", b"somebody", "CN=probe") == Credentials("CN=probe", None)
    assert offered("CN=probe", "") == ("PLAIN", "AMQPLAIN", "EXTERNAL")


@pytest.mark.covers("B-002")
def test_the_operator_names_the_anonymous_user():
    assert parse_response("ANONYMOUS", b"trace", "", "visitor") == Credentials("visitor", None)
    assert offered("", "visitor") == ("PLAIN", "AMQPLAIN", "ANONYMOUS")
    assert offered("", "") == ("PLAIN", "AMQPLAIN")
