"""Settings of Python's garbage collector in our own processes. Earmark as a library leaves them to its host."""

from __future__ import annotations

import gc

NEW_OBJECTS_MAX = 10_000
"""New objects before a collection. Python's own threshold of 700 is less than one batch allocates and keeps until it is
answered: a busy server spent a twentieth of its time scanning objects that were in use."""


def freeze_startup_objects() -> None:
    """Exclude all objects that exist now from later collections: scanning them would cause a pause every minute."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_MAX, *_DEFAULT_THRESHOLD[1:])


def restore_defaults() -> None:
    """Undo `freeze_startup_objects`: collect as Python does by default."""
    gc.unfreeze()
    gc.set_threshold(*_DEFAULT_THRESHOLD)


_DEFAULT_THRESHOLD = gc.get_threshold()
