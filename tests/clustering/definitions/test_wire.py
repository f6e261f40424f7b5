"""Changes between nodes: what is sent arrives, and what makes no sense is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.clustering.definitions.wire import (
    ChangeMessageError,
    ChangeRequest,
    NotControllingError,
    WrittenChange,
    pack_answer,
    pack_refusal,
    pack_request,
    parse_answer,
    parse_request,
)
from leveret.errors import ChannelError, ConnectionClosingError, LeveretError, StorageError
from leveret.links.errors import PeerRefusedError
from leveret.ports.definition_changes import (
    AddBinding,
    AddQueue,
    ChangeOutcome,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DropDefinition,
    KeepDefinition,
    RemoveBinding,
    RemoveQueue,
)
from leveret.ports.definitions import BindingDefinition, GroupDefinition, Home, QueueDefinition
from leveret.ports.fields import WireInteger
from leveret.ports.link_kinds import CHANGE_DEFINITIONS
from tests.clustering.definitions.nodes import DefinitionCluster

TABLE = {
    "bytes": b"\x00\xff",
    "decimal": Decimal("1.50"),
    "time": datetime(2030, 1, 31, tzinfo=UTC),
    "long": WireInteger(5, "long"),
    "list": [1, None, {"inner": True}],
    "ü": "ü",
}
HOME = Home(1, 7, "127.0.0.1:1 -> 127.0.0.1:2")
QUEUE = QueueDefinition("/", "q", arguments=TABLE, incarnation="i", home=HOME)
BINDING = BindingDefinition("/", "x", "q", "queue", "k", TABLE)
CHANGES = [
    DeclareExchange("/", "x", "topic", True, False, True, TABLE),
    DeleteExchange("/", "x", if_unused=True),
    DeclareQueue("/", "q", False, True, True, TABLE, True, HOME),
    DeclareQueue("/", "q"),
    AddQueue(QUEUE),
    DeleteQueue("/", "q", if_empty=True),
    RemoveQueue("/", "q", "i"),
    AddBinding(BINDING),
    RemoveBinding(BINDING),
    KeepDefinition(QUEUE),
    DropDefinition(GroupDefinition("/", "i", "g", "j", 5)),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_change_arrives_as_it_was_sent(change):
    request = ChangeRequest(change, "guest", HOME)
    parsed = parse_request(memoryview(pack_request(request)))
    assert parsed == request
    arguments = getattr(parsed.change, "arguments", {})
    assert all(type(arguments[key]) is type(TABLE[key]) for key in arguments)


def test_an_answer_arrives_as_it_was_sent():
    written = WrittenChange(17, ChangeOutcome("q", 5))
    assert parse_answer(memoryview(pack_answer(written))) == written


@pytest.mark.parametrize(
    "error",
    [
        ChannelError(406, "inequivalent arg"),
        ConnectionClosingError(530, "not allowed"),
        StorageError("no space"),
        NotControllingError("the node is not the controller"),
    ],
)
def test_a_refusal_arrives_as_it_was_sent(error):
    with pytest.raises(type(error)) as caught:
        parse_answer(memoryview(pack_refusal(error)))
    assert type(caught.value) is type(error)
    assert caught.value.args == error.args


def broken():
    """Messages that differ from a good one in one place."""
    good = json.loads(pack_request(ChangeRequest(CHANGES[2], "guest", HOME)))
    yield from (b"", b"[]", b"{}", b"\xff", b"[" * 100_000)
    for name in good:
        yield json.dumps({key: value for key, value in good.items() if key != name}).encode()
        texts = () if name == "actor" else ("made up",)
        for value in (None, 5, *texts, [], {}, [1, 2], [1, 2, 3]):
            yield json.dumps({**good, name: value}).encode()
    for name in good["fields"]:
        fields = {key: value for key, value in good["fields"].items() if key != name}
        yield json.dumps({**good, "fields": fields}).encode()
        texts = () if name in {"vhost", "name"} else ('{"x": {"decimal": "y"}}',)
        for value in (5, [], {}, ["definitions/queues/-/0", "{}"], *texts):
            yield json.dumps({**good, "fields": {**fields, name: value}}).encode()
    queue = json.loads(pack_request(ChangeRequest(CHANGES[4], "guest", HOME)))
    key, encoded = queue["fields"]["definition"]
    for column, value in (("name", 5), ("home", [1]), ("home", "abc"), ("created_ms", "5")):
        columns = json.dumps({**json.loads(encoded), column: value})
        fields = {"definition": [key, columns]}
        yield json.dumps({**queue, "fields": fields}).encode()
    binding = json.loads(pack_request(ChangeRequest(CHANGES[7], "guest", HOME)))
    yield json.dumps({**queue, "fields": {"definition": binding["fields"]["binding"]}}).encode()


@pytest.mark.parametrize("message", [*dict.fromkeys(broken())])
def test_what_is_no_change_is_told(message):
    with pytest.raises(ChangeMessageError):
        parse_request(memoryview(message))


@given(
    st.binary(max_size=40)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["refused", "code", "text", "sequence", "name", "message_count"]),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_what_is_no_answer_is_told(message):
    try:
        written = parse_answer(memoryview(message))
    except LeveretError:
        return
    assert isinstance(written.sequence, int)


async def test_a_node_asks_for_its_own_clients_only():
    async with DefinitionCluster(2) as cluster:
        peer = cluster.nodes[1].links.peer(0)
        for home in (Home(0, 1, "c"), Home(1, 2, "c")):
            request = ChangeRequest(DeclareQueue("/", "q"), "guest", home)
            with pytest.raises(PeerRefusedError, match="its own clients"):
                await peer.request(CHANGE_DEFINITIONS, pack_request(request), timeout_s=60)
        with pytest.raises(PeerRefusedError, match="no change"):
            await peer.request(CHANGE_DEFINITIONS, b"{}", timeout_s=60)
        request = ChangeRequest(DeclareQueue("none", "q"), "guest", Home(1, 1, "c"))
        answer = await peer.request(CHANGE_DEFINITIONS, pack_request(request), timeout_s=60)
        with pytest.raises(ChannelError, match="no vhost 'none'"):
            parse_answer(answer)
