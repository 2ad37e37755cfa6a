"""Which addresses a webhook may have: those on the public internet, and none in our own network.

The client that creates a webhook chooses an address that this process then calls. So the name is resolved here, every
address that it has is checked, and the call goes to a checked address: the name is not resolved a second time, when it
could give another answer. `private` turns the check off, for tests and closed networks.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import httpx2
import msgspec

RESOLVERS = 16
"""Threads of their own: a name server that hangs delays nothing else."""
URL_LENGTH_MAX = 2_000
HTTPS = 443
PORT_MIN, PORT_MAX = 1024, 65535

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]

_ORDINARY = ip_network("2000::/3")
_TRANSLATED = ip_network("64:ff9b::/96")
_SPECIAL = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this host
            "100.64.0.0/10",  # carrier-grade NAT
            "192.0.0.0/24",  # protocol assignments
            "192.88.99.0/24",  # 6to4 relays
            "198.18.0.0/15",  # benchmarks
            "2001::/23",  # protocol assignments, Teredo among them
            "2002::/16",  # 6to4: an IPv4 address inside
            "3fff::/20",  # documentation
        ),
    )
)


class TargetRefused(Exception):
    """A webhook may not have this URL; the message says why."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A URL as it was given, and its checked addresses."""

    url: httpx2.URL
    addresses: tuple[Address, ...]

    @property
    def host(self) -> str:
        """The host as certificates name it."""
        return self.url.raw_host.decode("ascii").rstrip(".")

    def pinned(self, address: Address) -> httpx2.URL:
        """The URL with one of its addresses as host: nothing is left to resolve."""
        return self.url.copy_with(host=str(address))


class Targets:
    """Checks URLs, and resolves and checks their hosts."""

    def __init__(self, *, private: bool = False, resolve: Resolve | None = None) -> None:
        self._private = private
        self._resolve = resolve or self._ask_system
        self._threads: ThreadPoolExecutor | None = None

    def read(self, text: str) -> httpx2.URL:
        """Parse and check a URL, with the parser of the client that will call it."""
        try:
            url = httpx2.URL(text)
        except (httpx2.InvalidURL, ValueError) as wrong:
            raise TargetRefused("is not a URL") from wrong
        schemes = {"https", "http"} if self._private else {"https"}
        if len(text) > URL_LENGTH_MAX:
            raise TargetRefused(f"is longer than {URL_LENGTH_MAX} characters")
        if url.scheme not in schemes:
            raise TargetRefused(f"must begin with {' or '.join(f'{scheme}://' for scheme in sorted(schemes))}")
        if not url.raw_host:
            raise TargetRefused("names no host")
        if url.userinfo or url.fragment:
            raise TargetRefused("must have no user name, password or fragment")
        least = 1 if self._private else PORT_MIN
        if url.port not in {None, HTTPS} and not least <= (url.port or 0) <= PORT_MAX:
            raise TargetRefused(f"has a port that is neither {HTTPS} nor from {least} to {PORT_MAX}")
        return url

    async def find(self, text: str) -> Target:
        """Resolve the host; refuse unless every address may be called."""
        url = self.read(text)
        host = url.raw_host.decode("ascii")
        try:
            named = await self._resolve(host, url.port or HTTPS)
            addresses = tuple(dict.fromkeys(ip_address(name) for name in named))
        except (OSError, UnicodeError, ValueError) as unknown:
            raise TargetRefused(f"its host {host} cannot be resolved") from unknown
        if not addresses:
            raise TargetRefused(f"its host {host} has no address")
        if not self._private and not all(map(is_public, addresses)):
            raise TargetRefused(f"its host {host} is not on the public internet")
        return Target(url=url, addresses=addresses)

    def close(self) -> None:
        """Stop the resolver threads without waiting for them."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _ask_system(self, host: str, port: int) -> list[str]:
        """Resolve as this machine does, in a thread."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="earmark-resolver")
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._threads, _look_up, host, port)


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet, and contains no other address that is not."""
    if isinstance(address, IPv6Address):
        if address in _TRANSLATED:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _ORDINARY:
            return False
    special = any(address in network for network in _SPECIAL if network.version == address.version)
    return address.is_global and not (special or address.is_multicast or address.is_reserved)


def _look_up(host: str, port: int) -> list[str]:
    return [str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
