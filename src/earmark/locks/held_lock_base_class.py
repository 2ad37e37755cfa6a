"""A lock while it is held: what tasks and threads know of it, and how its loss is found and reported."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from earmark.locks.errors import FenceUnavailable, LockLost

if TYPE_CHECKING:
    from earmark.locks.backend_protocol import Grant
    from earmark.locks.stats import Stats

logger = logging.getLogger("earmark.locks")


class HeldLock:
    """What is known of a lock while it is held. `Held` and `SyncHeld` add the verbs."""

    __slots__ = ("__weakref__", "_began", "_ending", "_expected", "_grant", "_lost", "_over", "_stats")

    def __init__(self, grant: Grant, stats: Stats, began: float, expected: float | None = None) -> None:
        self._grant = grant
        self._stats = stats
        self._began = began
        self._expected = expected
        self._lost = ""
        self._ending = False
        self._over = False

    @property
    def keys(self) -> tuple[str, ...]:
        """What is locked, sorted."""
        return self._grant.claim.keys

    @property
    def token(self) -> str:
        """The token of this acquisition; no other has the same."""
        return self._grant.claim.token

    @property
    def ttl(self) -> float:
        """The seconds it was taken for."""
        return self._grant.claim.ttl

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier holder of this key. Send it along with every write."""
        if self._grant.fence is None:
            raise FenceUnavailable(backend=self._grant.backend.name)
        return self._grant.fence

    @property
    def remaining(self) -> float:
        """Seconds until the lock runs out, unless it is extended."""
        return max(0.0, self._grant.until - time.monotonic())

    @property
    def lost(self) -> bool:
        """Whether another caller may hold it by now. Once true it stays true."""
        if self._lost:
            return True
        if not self._over and time.monotonic() >= self._grant.until:
            self._lose("its time ran out")
        return bool(self._lost)

    def check(self) -> None:
        """Raise `LockLost` if the lock is lost. Call it before what cannot be undone; send the fence as well."""
        if self.lost:
            raise self.loss(self._lost)

    @property
    def ending(self) -> bool:
        """Whether its release has begun: from then on it is not renewed."""
        return self._ending

    def loss(self, because: str) -> LockLost:
        """The error that says that this lock was lost, and why; it is not raised here."""
        return LockLost(keys=self.keys, because=because, fence=self._grant.fence)

    def end_block(self, error: BaseException | None, *, at: float, raise_if_lost: bool) -> None:
        """After the release at the end of a block that was left `at` this moment: report a loss, and mask no error.

        A release that found the lease in place proves that it was never lost. Where the server did not answer, the
        clock decides; the time that the release waited for an answer does not count.
        """
        if not self._over and at >= self._grant.until:
            self._lose("its time ran out")
        if not self._lost:
            return
        loss = self.loss(self._lost)
        if error is None:
            if raise_if_lost:
                raise loss
        elif not (isinstance(error, LockLost) and error.keys == self.keys):
            error.add_note(str(loss))

    def _gone(self) -> LockLost:
        """After an extension that found no lease: the error to raise. A holder that releases meanwhile lost nothing."""
        if self._ending:
            return self.loss("it was released before it was extended")
        self._stats.expired()
        self._lose("it was gone when it was to be extended")
        return self.loss(self._lost)

    def _lose(self, because: str) -> None:
        if not self._lost:
            self._lost = because
            self._stats.lost()
            logger.warning("lost the lock on %s: %s", ", ".join(self.keys), because)

    def _begin_release(self) -> None:
        """Before the release: from here on the lock is not renewed, and a lock held for too long is logged."""
        self._ending = True
        if self._expected is None:
            return
        held_seconds = time.monotonic() - self._began
        if held_seconds > self._expected:
            logger.warning(
                "the lock on %s was held for %.1f s; %g s were expected",
                ", ".join(self.keys),
                held_seconds,
                self._expected,
            )
        self._expected = None

    def _gave_back(self, *, whole: bool) -> bool:
        """After the release: count what it found, and log a loss."""
        self._over = True
        self._stats.released(time.monotonic() - self._began)
        if not whole:
            self._stats.expired()
            logger.warning(
                "the lock on %s was gone before it was released; no other holder's was touched", ", ".join(self.keys)
            )
            self._lost = self._lost or "it was gone when it was released"
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("released the lock on %s", ", ".join(self.keys))
        return whole
