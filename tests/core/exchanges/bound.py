"""Bindings for routers: a definition, and a queue or exchange at its end."""

from __future__ import annotations

from leveret.core.exchanges.fanout import FanoutRouter
from leveret.core.routing.bindings import Binding
from leveret.core.routing.exchange import Exchange
from leveret.core.routing.routes import Route
from leveret.ports.definitions import (
    Arguments,
    BindingDefinition,
    ExchangeDefinition,
    QueueDefinition,
)
from tests.core.vhost_fakes import FakeQueue

SOURCE = Exchange(ExchangeDefinition("/", "x", "fanout"), FanoutRouter({}), lambda *_: Route([]))


def to_queue(
    name: str, key: str = "", queue_arguments: Arguments | None = None, **arguments: object
) -> Binding:
    definition = BindingDefinition("/", "x", name, "queue", key, arguments)
    queue = FakeQueue(QueueDefinition("/", name, arguments=queue_arguments or {}))
    return Binding(definition, SOURCE, queue)


def to_exchange(name: str, key: str = "") -> Binding:
    return Binding(BindingDefinition("/", "x", name, "exchange", key), SOURCE, SOURCE)
