"""A lock that somebody holds, as both kinds of callers see it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from earmark.locks.errors import FenceUnavailable, LockLost

if TYPE_CHECKING:
    from earmark.locks.ports import Grant
    from earmark.locks.stats import Stats

logger = logging.getLogger("earmark.locks")


class Holding:
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
        """Who holds it: made new for this acquisition."""
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
        """Seconds until the lock runs out, if nobody extends it."""
        return max(0.0, self._grant.until - time.monotonic())

    @property
    def lost(self) -> bool:
        """Whether somebody else may hold it by now. Once true it stays true."""
        if self._lost:
            return True
        if not self._over and time.monotonic() >= self._grant.until:
            self._lose("its time ran out")
        return bool(self._lost)

    def check(self) -> None:
        """Raise `LockLost` if the lock is lost. Call it before what cannot be undone; send the fence as well."""
        if self.lost:
            raise self._loss(self._lost)

    def _loss(self, because: str) -> LockLost:
        return LockLost(keys=self.keys, because=because, fence=self._grant.fence)

    def _gone(self) -> LockLost:
        """After an extension that found no lease: the error to raise. A holder that releases meanwhile lost nothing."""
        if self._ending:
            return self._loss("it was released before it was extended")
        self._stats.expired()
        self._lose("it was gone when it was to be extended")
        return self._loss(self._lost)

    def _left_block(self, error: BaseException | None, *, at: float, raise_if_lost: bool) -> None:
        """After the release at the end of a block that was left `at` this moment: tell of a loss, and mask no error.

        A release that found the lease in place proves that it was never lost. Where the server did not answer, the
        clock decides; the time that the release waited for an answer does not count.
        """
        if not self._over and at >= self._grant.until:
            self._lose("its time ran out")
        if not self._lost:
            return
        loss = self._loss(self._lost)
        if error is None:
            if raise_if_lost:
                raise loss
        elif not (isinstance(error, LockLost) and error.keys == self.keys):
            error.add_note(str(loss))

    def _lose(self, because: str) -> None:
        if not self._lost:
            self._lost = because
            self._stats.lost()
            logger.warning("lost the lock on %s: %s", ", ".join(self.keys), because)

    def _begin_release(self) -> None:
        """Before a release is asked for: from here on the lock is not renewed, and a hold that was too long is told."""
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
        """After a release: what it found is counted, and a loss is said aloud."""
        self._over = True
        self._stats.released(time.monotonic() - self._began)
        if not whole:
            self._stats.expired()
            logger.warning(
                "the lock on %s was gone before it was released; nobody else's was touched", ", ".join(self.keys)
            )
            self._lost = self._lost or "it was gone when it was released"
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("released the lock on %s", ", ".join(self.keys))
        return whole
