"""Questions about transactions that nodes ask each other by requests, as JSON.

{"ask": "numbers", "partition"}            numbers for new transactions
{"numbers": [first, stop]}
{"ask": "decide", "transactions": [[transaction, [participant, …]], …]}
{"outcome"}                            of all of them, once it is certain
{"ask": "outcome", "transaction", "participant"}
{"outcome"}                            "unknown": to be asked again
{"ask": "give back", "partition", "epoch"}   numbers of a leader that is about to be replaced
{"given"}                              whether no transaction has one any more
{"ask": "parts", "of": {participant: [transaction, …]}}
{"parts": {participant: [transaction, …]}}   those whose outcome is not safe yet; who cannot
say is left out
"""

from __future__ import annotations

import json
from typing import Any, Final

from leveret.links.errors import PeerRefusedError

__all__ = ["MALFORMED", "NOT_LEADING", "pack_question", "parse_question"]

NOT_LEADING: Final = 100  # codes of refusals
MALFORMED: Final = 101


def pack_question(question: dict[str, Any]) -> bytes:
    """Return a question or an answer as it is sent."""
    return json.dumps(question, separators=(",", ":")).encode()


def parse_question(payload: memoryview) -> dict[str, Any]:
    """Return a question or an answer. Raises PeerRefusedError."""
    try:
        question = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise PeerRefusedError(MALFORMED, f"no question about transactions: {error}") from error
    if not isinstance(question, dict):
        raise PeerRefusedError(MALFORMED, "no question about transactions")
    return question
