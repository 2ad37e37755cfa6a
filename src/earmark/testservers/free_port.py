"""Free TCP ports on the loopback address."""

import secrets
import socket

from earmark.testservers.errors import ServerUnavailable

# A node of a Valkey cluster also listens on its port plus this.
CLUSTER_BUS_OFFSET = 10_000

# Below 32768 on both counts: the kernel assigns ports above that to outgoing connections, and one of those
# could use a server's port between its crash and its restart.
_FIRST = 10_240
_COUNT = 12_288
_ATTEMPTS_MAX = 200


def free_port() -> int:
    """A port that is free now, and whose cluster bus port is free.

    Another process may take it before the server does, so the caller must try again with another one.
    """
    for _ in range(_ATTEMPTS_MAX):
        port = _FIRST + secrets.randbelow(_COUNT)
        if _is_free(port) and _is_free(port + CLUSTER_BUS_OFFSET):
            return port
    raise ServerUnavailable(f"No free port between {_FIRST} and {_FIRST + _COUNT} after {_ATTEMPTS_MAX} attempts.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
