"""Methods that are called in a child process after a fork, and that keep no object alive."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

from earmark.locks import call_methods_after_fork
from earmark.locks.call_methods_after_fork import call_in_child

PROGRAM = """
import os
from earmark.locks.call_methods_after_fork import call_in_child

class Owner:
    def __init__(self):
        self.connection = "the parent's"
        {register}

    def forget(self):
        self.connection = "none"

owner = Owner()
if (child := os.fork()) == 0:
    os.write(1, f"child: {{owner.connection}}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
os.write(1, f"parent: {{owner.connection}}\\n".encode())
"""


def connections(*, register: str) -> list[str]:
    program = PROGRAM.format(register=register)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()


def test_a_registered_method_is_called_in_the_child_alone() -> None:
    """The child forgets what belongs to the parent, which keeps it."""
    assert connections(register="call_in_child(self.forget)") == ["child: none", "parent: the parent's"]


def test_without_a_hook_the_child_has_the_connection_of_its_parent() -> None:
    """The control: this is what the hooks prevent."""
    assert connections(register="pass") == ["child: the parent's", "parent: the parent's"]


class Owner:
    """Has a method to register."""

    def forget(self) -> None:
        """Stand for a method that forgets connections."""


def test_a_hook_keeps_its_object_no_longer_than_the_program_does() -> None:
    """What the program drops is freed, and its hook is removed."""
    before = len(call_methods_after_fork._hooks)
    owner = Owner()
    alive = weakref.ref(owner)
    call_in_child(owner.forget)
    assert len(call_methods_after_fork._hooks) == before + 1
    del owner
    gc.collect()
    assert alive() is None
    assert len(call_methods_after_fork._hooks) <= before
