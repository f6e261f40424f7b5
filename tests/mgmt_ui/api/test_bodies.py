"""Bodies of requests: as much as can be taken apart, and no more."""

import json

import pytest

from leveret.mgmt_ui.api.bodies import VALUES_MAX, understand
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.hosts import BodyBudget
from tests.support.site import Site


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":[' + b"[]," * VALUES_MAX + b"[]]}",
        b'{"x":[' + b'"",' * VALUES_MAX + b'""]}',
        b'{"x":[' + b"{}," * VALUES_MAX + b"{}]}",
        b'"a\\"b' + b'","' * (VALUES_MAX + 1),
    ],
)
def test_more_values_than_can_be_taken_apart_at_once(body):
    with pytest.raises(ApiError, match=f"at most {VALUES_MAX} values"):
        understand(body)


@pytest.mark.parametrize("piece", [",", "[[", '{"a": [1, 2]}, ', '\\",[', "\\\\,"])
def test_text_may_look_like_any_number_of_values(piece):
    text = piece * VALUES_MAX
    assert understand(json.dumps({"payload": text}).encode()) == {"payload": text}


@pytest.mark.parametrize("body", [b'{"a":"' + b"\\" * 99_999, b'"' * 100_000, b",[{" * 99_999])
def test_what_has_no_end_is_refused(body):
    with pytest.raises(ApiError):
        understand(body)


async def test_nobody_may_send_what_he_may_not_publish():
    site = Site()
    site.add_user("u", "management")
    site.permit("u", "/", "^$", "^$", "^$")
    pieces = 0

    async def body():
        nonlocal pieces
        while True:
            pieces += 1
            yield b" " * 100_000

    answer = await site.get(
        "/api/exchanges/%2F/amq.direct/publish", "u", method="POST", content=body()
    )
    assert (answer.status_code, answer.json()["error"]) == (401, "not_authorised")
    assert pieces <= 1


async def test_all_bodies_together_are_bounded():
    """The bytes of a request count until it is answered, however that ends."""
    passed = []

    async def application(scope, receive, _send):
        while (message := await receive())["more_body"]:
            passed.append(len(message["body"]))
        if scope["fails"]:
            raise RuntimeError

    def sending(*sizes):
        pieces = [{"body": b"b" * size, "more_body": True} for size in sizes]
        ends = iter([*pieces, {"body": b"", "more_body": False}])

        async def receive():
            return next(ends)

        return receive

    budget = BodyBudget(application, 10)
    await budget({"fails": False}, sending(5, 5), None)
    with pytest.raises(RuntimeError):
        await budget({"fails": True}, sending(4, 6), None)
    with pytest.raises(ApiError) as refused:
        await budget({"fails": False}, sending(6, 5), None)
    assert refused.value.status == 503
    await budget({"fails": False}, sending(10), None)
    assert passed == [5, 5, 4, 6, 6, 10]


@pytest.mark.parametrize(
    "digits", ["9223372036854775808", "-9223372036854775809", "1" + "0" * 5000]
)
def test_a_number_beyond_64_bits_is_refused_wherever_it_stands(digits):
    assert understand(b'{"n": 9223372036854775807}') == {"n": 2**63 - 1}
    with pytest.raises(ApiError, match="does not fit into 64 bits"):
        understand(f'{{"definition": [{{"message-ttl": {digits}}}]}}'.encode())
