"""Conversations about what Leveret does not have yet, and what that is.

They are held all the same and must fail: one that reads right says that its entry is to go.
"""

from __future__ import annotations

NOT_YET: dict[str, str] = {}
