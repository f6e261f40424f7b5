"""The lease of a node: the time for which it surely has its session with the coordinator."""

from __future__ import annotations

__all__ = ["Lease"]


class Lease:
    """Time until which a node may serve, by its own clock alone.

    It runs for half of the session from the *request* of a renewal that was answered: the server
    that answers tells the others of its sessions only with their ticks, twice in a session at
    least, so they may count the session from that much earlier.
    """

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self.until_ms = 0

    def limit(self, session_ms: int) -> None:
        """Note that the session is no longer than this: renewals from now on count by it."""
        self._session_ms = min(self._session_ms, session_ms)

    def renewed(self, requested_ms: int) -> None:
        """Note the answer to a renewal that was requested at a time."""
        self.until_ms = max(self.until_ms, requested_ms + self._session_ms // 2)
