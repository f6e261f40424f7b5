from collections.abc import Iterable, Mapping

from leveret.core.routing.bindings import QueueLike
from leveret.core.routing.exchange import Exchange
from leveret.core.routing.message import Message

VAIN_STEPS_MAX: int

def follow(
    start: Exchange,
    keys: Iterable[str],
    message: Message | None,
    exchanges: Mapping[str, Exchange],
    vain_max: int = ...,
    *,
    is_published: bool = True,
) -> tuple[list[QueueLike], bool]: ...
