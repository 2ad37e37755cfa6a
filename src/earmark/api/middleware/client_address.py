"""Proxies in front of this server: from where a request came, and whether by TLS.

A proxy adds what it saw of its caller at the right of `X-Forwarded-For`, so of the entries only as many can be believed
as there are proxies that an operator trusts (`hops`). The address is what the outermost of them saw: the n-th entry
from the right. Where there are fewer entries than trusted proxies, each of them was written by one, and the left-most
is the farthest that one of them saw. A request without any entry came past the proxies: its own address counts.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

IPV6_HOUSEHOLD = 64
"""Bits that all addresses of one household have in common."""


def address_at(scope: Scope, *, hops: int) -> str:
    """From where a request comes."""
    client = scope.get("client")
    return address_of(client[0] if client else None, forwarded=_all_lines(scope, b"x-forwarded-for"), hops=hops)


def is_secure_at(scope: Scope, *, hops: int) -> bool:
    """Whether a request came through TLS."""
    return is_secure(scope.get("scheme", "http"), forwarded=_all_lines(scope, b"x-forwarded-proto"), hops=hops)


def address_of(peer: str | None, *, forwarded: str | None, hops: int) -> str:
    """Whose address it is, as it is counted: without its port, and of IPv6 the network of 64 bits.

    A household has such a network of its own, with more addresses than there are guesses: they count as one. An entry
    that is no address counts as the proxy that this server sees, so that no caller fills the memory with long names.
    """
    entry = _entry(forwarded, hops)
    return (_counted(_without_port(entry)) if entry else None) or _counted(peer or "") or peer or ""


def is_secure(scheme: str, *, forwarded: str | None, hops: int) -> bool:
    """Whether it was TLS, here or at the outermost trusted proxy."""
    entry = _entry(forwarded, hops)
    return (entry or scheme).lower() == "https"


def _entry(forwarded: str | None, hops: int) -> str | None:
    """What the outermost trusted proxy said; None where none is trusted, or none said anything."""
    if hops < 1 or not forwarded:
        return None
    entries = [entry for part in forwarded.split(",") if (entry := part.strip(' \t"'))]
    return entries[-min(hops, len(entries))] if entries else None


def _without_port(entry: str) -> str:
    """Of `1.2.3.4:5678` and `[2001:db8::1]:443` the address; what is written in another way stays as it is."""
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
    lines = [said.decode("latin-1") for other, said in scope["headers"] if other == name]
    return ", ".join(lines) if lines else None
