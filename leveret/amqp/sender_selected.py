"""Sender-selected distribution of what came by AMQP: see leveret.core.routing.sender_selected.

The reader notices such headers; the channel calls `select_keys` before it routes the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.sender_selected import selected_keys
from leveret.ports.contents import open_header

if TYPE_CHECKING:
    from leveret.amqp.frames import Publish


def select_keys(publish: Publish) -> None:
    """Store the keys in CC and BCC as `further_keys`; remove BCC from the header others see.

    The record keeps BCC: if it is dead-lettered, its BCC keys apply again. Raises as
    `selected_keys`.
    """
    publish.further_keys, has_blind_copies = selected_keys(publish.header)
    if has_blind_copies:
        publish.blind_header = publish.header
        publish.header = open_header(publish.header)
