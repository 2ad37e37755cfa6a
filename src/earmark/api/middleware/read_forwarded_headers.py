"""The client's address, and whether it used TLS, behind trusted proxies.

A proxy appends its peer's address at the right of `X-Forwarded-For`, so only as many entries can be trusted as there
are proxies that an operator trusts (`hops`). The client's address is what the outermost of them saw: the n-th entry
from the right. Where there are fewer entries than trusted proxies, a proxy wrote each of them, and the left-most is the
farthest address that one of them saw. A request without any entry bypassed the proxies: its peer's address counts.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

IPV6_HOUSEHOLD = 64
"""Bits that all addresses of one household have in common."""


def address_at(scope: Scope, *, hops: int) -> str:
    """The address that a request is counted under; see `address_of`."""
    client = scope.get("client")
    return address_of(client[0] if client else None, forwarded=_all_lines(scope, b"x-forwarded-for"), hops=hops)


def is_secure_at(scope: Scope, *, hops: int) -> bool:
    """Whether the client used TLS; see `is_secure`."""
    return is_secure(scope.get("scheme", "http"), forwarded=_all_lines(scope, b"x-forwarded-proto"), hops=hops)


def address_of(peer: str | None, *, forwarded: str | None, hops: int) -> str:
    """The client's address as it is counted: without its port, and for IPv6 its network of 64 bits.

    A household has such a network of its own, with more addresses than there are guesses: they count as one. An entry
    that is not an address counts as the peer, so that no caller fills the memory with long names.
    """
    entry = _entry(forwarded, hops)
    return (_counted(_without_port(entry)) if entry else None) or _counted(peer or "") or peer or ""


def is_secure(scheme: str, *, forwarded: str | None, hops: int) -> bool:
    """Whether it was TLS, here or at the outermost trusted proxy."""
    entry = _entry(forwarded, hops)
    return (entry or scheme).lower() == "https"


def _entry(forwarded: str | None, hops: int) -> str | None:
    """The entry of the outermost trusted proxy; None where none is trusted, or none wrote one."""
    if hops < 1 or not forwarded:
        return None
    entries = [entry for part in forwarded.split(",") if (entry := part.strip(' \t"'))]
    return entries[-min(hops, len(entries))] if entries else None


def _without_port(entry: str) -> str:
    """The address in `1.2.3.4:5678` and `[2001:db8::1]:443`; any other text is returned as it is."""
    address, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and (":" not in address or address.endswith("]")):
        entry = address
    return entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry


def _counted(text: str) -> str | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Network((found.packed[:8] + bytes(8), IPV6_HOUSEHOLD)))
    return str(found)


def _all_lines(scope: Scope, name: bytes) -> str | None:
    """A header that is a list: a proxy may add to its last line, or add a line of its own below the caller's."""
    lines = [value.decode("latin-1") for other, value in scope["headers"] if other == name]
    return ", ".join(lines) if lines else None
