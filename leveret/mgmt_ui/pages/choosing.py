"""Common parts of pages about the messages of one queue: queue, partition, and checked boxes.

The value of a box is a place in the list: `17`, or `2:17` in partition 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.mgmt_ui.api.messages import require_to_browse
from leveret.mgmt_ui.api.problems import bad_request, not_found, queue_not_found
from leveret.mgmt_ui.objects import queues_of
from leveret.mgmt_ui.pages.forms import refusals_told
from leveret.mgmt_ui.yielding import picked
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leveret.core.admin.commands import AnyCommand
    from leveret.core.routing.bindings import QueueLike
    from leveret.mgmt_ui.pages.forms import Form
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = [
    "CHOSEN_MAX",
    "Chosen",
    "chosen_partition",
    "offset_of",
    "perform_on_each",
    "readable_queue",
    "readable_queues",
    "selected_ids",
    "selected_offsets",
    "selected_places",
]

CHOSEN_MAX = 200  # boxes on a page
NUMBER_DIGITS_MAX = 9  # of a partition: there are never a billion


class Chosen(NamedTuple):
    """The partition of a queue that a page is about; number None: all that there are.

    `text` is what links and forms carry: "" for all.
    """

    number: int | None
    text: str
    numbers: list[int]

    @property
    def are_all(self) -> bool:
        """Whether the page is about several partitions."""
        return self.number is None and len(self.numbers) > 1

    @property
    def each(self) -> list[int]:
        """Partitions that the page is about."""
        return self.numbers if self.number is None else [self.number]


def chosen_partition(queue: DeclaredQueue, stated: str) -> Chosen:
    """Return the partition that an address or a form states, else all.

    Raises ApiError 400 for what is no number; the number may be that of none.
    """
    numbers = [part.number for part in queue.partitions]
    text = stated.strip()
    return Chosen(_partition_number(text) if text else None, text, numbers)


def _partition_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise bad_request(f"a partition is a whole number, not {text}")
    return int(text)


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


async def perform_on_each(
    viewer: Viewer, command: AnyCommand, selections: Iterable[Mapping[str, Any]], **common: Any
) -> list[Any]:
    """Perform a command with the selection of each partition; return the answers.

    One that is refused is the last, and the user is told why.
    """
    answers: list[Any] = []
    with refusals_told(viewer):
        for selection in selections:
            answers.append(await viewer.caller.perform(command, **common, **selection))
            await let_others_run()
    return answers


def selected_offsets(form: Form, part: Chosen) -> dict[int | None, list[int]]:
    """Return the offsets of checked boxes, by partition. Raises ApiError 400 for none."""
    places = selected_places(form, part, "offset")
    return {number: list(map(offset_of, values)) for number, values in places.items()}


def offset_of(text: str) -> int:
    """Return the offset that an address or a form states. Raises ApiError 400."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise bad_request(f"an offset is a whole number, not {text}")
    return int(text)


def selected_places(form: Form, part: Chosen, name: str = "id") -> dict[int | None, list[str]]:
    """Return the places of checked boxes, by partition: without one, that of the form.

    Raises ApiError 400 for none.
    """
    places: dict[int | None, list[str]] = {}
    for value in selected_ids(form, name):
        number, colon, place = value.rpartition(":")
        places.setdefault(_partition_number(number) if colon else part.number, []).append(place)
    return places


def selected_ids(form: Form, name: str = "id") -> list[str]:
    """Return the values of checked boxes. Raises ApiError 400 for none."""
    ids = [id_ for id_ in form.all(name) if id_]
    if not ids:
        raise bad_request("select some messages first")
    if len(ids) > CHOSEN_MAX:
        raise bad_request(f"select at most {CHOSEN_MAX} messages at a time")
    return ids
