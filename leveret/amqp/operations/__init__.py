"""The methods of an open channel, one function each: `operation(channel, method)`.

A function returns None when it is done, or an awaitable that must end before the channel's
connection handles its next frame. It raises ChannelError or ConnectionClosingError for the client's
mistakes.
"""

from __future__ import annotations

from leveret.amqp.operations import basic, exchanges, get, modes, queues

OPERATIONS = {
    **exchanges.OPERATIONS,
    **queues.OPERATIONS,
    **basic.OPERATIONS,
    **get.OPERATIONS,
    **modes.OPERATIONS,
}
