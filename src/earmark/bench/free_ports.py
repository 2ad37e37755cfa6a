"""Finds ports on loopback on which no process listens, for the servers that a bench starts."""

from __future__ import annotations

import contextlib
import socket

from earmark.bench.server_command_host_and_key import HOST


def free_ports(count: int) -> list[int]:
    """Different ports on loopback on which no process listens."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def free_port() -> int:
    """A port on loopback on which no process listens."""
    return free_ports(1)[0]
