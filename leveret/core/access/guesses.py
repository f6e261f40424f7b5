"""Throttling of failed logins: each further failure makes the next attempt wait longer.

Failures are counted per user and source address, so that an attacker cannot lock out a user who
connects from elsewhere, nor one whose password was right before: that is no guess. While an attempt
has to wait, it is refused without checking the password.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.core.access.authentication import log_in
from leveret.core.access.passwords import PasswordCache
from leveret.ports.authentication import TooManyGuessesError, attempt_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.ports.authentication import Authenticator, Login, Rights

__all__ = ["Guarded", "Guesses"]

FREE_GUESSES = 5  # people mistype; a fleet with an old password is throttled soon enough
# Concurrent attempts with different proofs of one name while none has failed: a fleet with tokens.
UNDER_WAY_MAX = 64
WAIT_MS_MAX = 60_000  # a user who mistyped waits a minute; an attacker has 1,500 attempts a day
FORGOTTEN_MS = 15 * 60_000  # without an attempt
PLACES_MAX = 10_000  # remembered pairs of user and source, some hundred bytes each


@dataclass(slots=True)
class _Place:
    """Attempts for one user from one source."""

    failures: int = 0
    last_ms: int = 0  # time of the last failure
    next_ms: int = 0  # no attempt before this time
    under_way: Counter[bytes] = field(default_factory=Counter)  # by proof


class Guesses:
    """Login throttle of a node. Times are ms since 1970; the clock may be set back."""

    def __init__(self, delay_ms: int) -> None:
        """Create a throttle; the first wait is `delay_ms`, doubled by each failure; 0: no waits."""
        self._delay_ms = delay_ms
        self._places: OrderedDict[bytes, _Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def begin(self, source: str, user: str, proof: str, now_ms: int) -> int:
        """Return how long an attempt must wait in ms; 0: it has begun and lasts until `end`."""
        key = _digest(source, user)
        place = self._places.get(key)
        if place is None or self._is_forgotten(place, now_ms):
            place = self._places[key] = _Place()
        wait_ms = self._wait_ms(place, _digest(proof), now_ms)
        if not wait_ms:
            place.under_way[_digest(proof)] += 1
            self._places.move_to_end(key)
            self._make_room()
        return wait_ms

    def end(
        self, source: str, user: str, proof: str, now_ms: int, *, accepted: bool | None
    ) -> None:
        """Record the result of an attempt; None: it proved another name, or was abandoned."""
        key, said = _digest(source, user), _digest(proof)
        place = self._places.get(key)
        if place is None:
            return
        place.under_way -= Counter([said])
        if accepted:
            place.failures = place.next_ms = 0
        elif accepted is not None:
            place.failures += 1
            beyond = place.failures - FREE_GUESSES
            wait_ms = min(self._delay_ms << min(beyond, 32), WAIT_MS_MAX) if beyond >= 0 else 0
            place.last_ms, place.next_ms = now_ms, now_ms + wait_ms
        if not place.failures and not place.under_way:
            del self._places[key]

    def _wait_ms(self, place: _Place, said: bytes, now_ms: int) -> int:
        if not self._delay_ms or said in place.under_way:
            return 0
        if not place.failures:
            is_free = len(place.under_way) < UNDER_WAY_MAX
        elif place.failures < FREE_GUESSES:
            is_free = place.failures + len(place.under_way) < FREE_GUESSES
        else:
            is_free = not place.under_way
            if now_ms < place.next_ms:
                return min(place.next_ms - now_ms, WAIT_MS_MAX)
        return 0 if is_free else self._delay_ms

    def _is_forgotten(self, place: _Place, now_ms: int) -> bool:
        return not place.under_way and not 0 <= now_ms - place.last_ms < FORGOTTEN_MS

    def _make_room(self) -> None:
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)


def _digest(*texts: str) -> bytes:
    """Return a digest: names may be long, and proofs must not be kept."""
    said = hashlib.blake2b(digest_size=16)
    for text in texts:
        octets = text.encode(errors="surrogatepass")
        said.update(len(octets).to_bytes(8, "big") + octets)
    return said.digest()


class Guarded:
    """Authenticator that asks several backends in order, under the login throttle."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        guesses: Guesses,
        cache_key: bytes,
        wall_ms: Callable[[], int],
    ) -> None:
        self._authenticators = authenticators
        self._guesses = guesses
        self._proved = PasswordCache(cache_key)
        self._wall_ms = wall_ms

    async def log_in(self, login: Login) -> Rights | None:
        """Check a login with all backends. Raises TooManyGuessesError."""
        user, proof = login.user, login.password
        if proof is None or self._proved.knows(user, proof):
            return await log_in(self._authenticators, login)
        place = attempt_source(login.peer_host), user, proof
        wait_ms = self._guesses.begin(*place, self._wall_ms())
        if wait_ms:
            raise TooManyGuessesError(wait_ms)
        accepted: bool | None = None  # stays None if the client hung up meanwhile
        try:
            rights = await log_in(self._authenticators, login)
            if rights is None:
                accepted = False
            elif rights.user == user:  # a token proves its own name, whatever name was claimed
                accepted = True
        finally:
            self._guesses.end(*place, self._wall_ms(), accepted=accepted)
        if rights is not None:
            self._proved.remember(user, proof)
        return rights
