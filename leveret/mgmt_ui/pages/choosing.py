"""Common parts of pages about the messages of one queue: queue, partition, and checked boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.mgmt_ui.api.messages import require_to_browse
from leveret.mgmt_ui.api.problems import bad_request, not_found, queue_not_found
from leveret.mgmt_ui.objects import queues_of
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.routing.bindings import QueueLike
    from leveret.mgmt_ui.pages.forms import Form
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = [
    "CHOSEN_MAX",
    "Chosen",
    "chosen_partition",
    "readable_queue",
    "readable_queues",
    "selected_ids",
    "selected_offsets",
]

CHOSEN_MAX = 200  # boxes on a page
NUMBER_DIGITS_MAX = 9  # of a partition: there are never a billion


class Chosen(NamedTuple):
    """A partition that a page is about: one must be chosen where a queue has several.

    `text` is what links and forms carry: "" where the queue has one and none was stated.
    """

    number: int | None
    text: str
    numbers: list[int]


def chosen_partition(queue: DeclaredQueue, stated: str) -> Chosen:
    """Return the partition that an address or a form states, else the first one.

    Raises ApiError 400 for what is no number; the number may be that of none.
    """
    numbers = [part.number for part in queue.partitions]
    text = stated.strip()
    if not text and len(numbers) > 1:
        text = str(numbers[0])
    if not text:
        return Chosen(None, "", numbers)
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise bad_request(f"a partition is a whole number, not {text}")
    return Chosen(int(text), text, numbers)


async def readable_queue(viewer: Viewer, vhost: str, name: str) -> DeclaredQueue:
    """Return a queue from which the user may consume. Raises ApiError 401 and 404."""
    await require_to_browse(viewer.caller, vhost, name)
    host = viewer.caller.vhost(vhost)
    held = host.queues.get(name)
    if held is None:
        raise queue_not_found(host, name)
    found = viewer.broker.find_queue(host, name, held.owner)
    if found.settings.is_stream:
        raise not_found("queue_not_found")
    return found


async def readable_queues(
    viewer: Viewer, is_wanted: Callable[[DeclaredQueue], bool]
) -> list[DeclaredQueue]:
    """Return the queues of all virtual hosts from which the user may consume, by name."""

    def is_meant(queue: QueueLike) -> bool:
        return (
            isinstance(queue, DeclaredQueue)
            and not queue.settings.is_stream
            and is_wanted(queue)
            and (queue.owner is None or viewer.caller.is_administrator)
            and viewer.may("read", "queue", queue.definition.vhost, queue.name)
        )

    found = cast(
        "list[DeclaredQueue]", await picked(queues_of(viewer.caller.open_vhosts()), is_meant)
    )
    return sorted(found, key=lambda queue: (queue.definition.vhost, queue.name))


def selected_offsets(form: Form) -> list[int]:
    """Return the offsets of checked boxes. Raises ApiError 400 for none."""
    values = selected_ids(form, "offset")
    if not all(value.isascii() and value.isdigit() and len(value) < 19 for value in values):
        raise bad_request("an offset is a whole number")
    return list(map(int, values))


def selected_ids(form: Form, name: str = "id") -> list[str]:
    """Return the values of checked boxes. Raises ApiError 400 for none."""
    ids = [id_ for id_ in form.all(name) if id_]
    if not ids:
        raise bad_request("select some messages first")
    if len(ids) > CHOSEN_MAX:
        raise bad_request(f"select at most {CHOSEN_MAX} messages at a time")
    return ids
