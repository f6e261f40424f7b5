"""The process of a running node, as far as operations need it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.process import read_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.config import Configuration

__all__ = ["Listener", "Runtime"]


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket."""

    protocol: str  # as RabbitMQ calls it: "amqp", "http"
    host: str
    port: int


@dataclass(slots=True)
class Runtime:
    """A running process. `listeners` are set once all are ready, `stopping` to end it."""

    configuration: Configuration
    started_ms: int  # since 1970
    wall_ms: Callable[[], int]
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    listeners: Sequence[Listener] = field(default=())

    @property
    def is_serving(self) -> bool:
        """Whether clients are served: false while the node starts or stops."""
        return bool(self.listeners) and not self.stopping.is_set()

    async def facts(self) -> dict[str, Any]:
        """Return the resource usage of the process, and its limits."""
        configuration = self.configuration
        figures = await asyncio.to_thread(read_process, configuration.data_dir)
        return {
            "started": self.started_ms,
            "uptime_ms": self.wall_ms() - self.started_ms,
            "data_dir": str(configuration.data_dir.absolute()),
            "listeners": [
                {"protocol": each.protocol, "host": each.host, "port": each.port}
                for each in self.listeners
            ],
            "memory_bytes": figures.resident_bytes,
            "memory_bytes_max": int(configuration.memory_fraction_max * figures.memory_bytes_total),
            "disk_free_bytes": figures.disk_free_bytes,
            "disk_free_bytes_min": configuration.disk_free_bytes_min,
            "open_files": figures.open_files,
            "open_files_max": figures.open_files_max,
            "processor_seconds": figures.cpu_seconds,
        }
