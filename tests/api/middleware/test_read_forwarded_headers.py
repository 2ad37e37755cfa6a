"""How many proxies are trusted, and which of their headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earmark import config
from earmark.api.middleware.read_forwarded_headers import address_of, is_secure
from earmark.errors import SetupError

PEER = "192.0.2.1"


@pytest.mark.parametrize(
    "entry, counted",
    [
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.7:5678", "203.0.113.7"),
        (' "203.0.113.7:5678" ', "203.0.113.7"),
        ("[2001:db8:1:2::7]:443", "2001:db8:1:2::/64"),
        ('"[2001:db8:1:2::7]:443"', "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::7]", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("[::ffff:203.0.113.7]:443", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_entry_is_one_address_with_a_port_or_without(entry: str, counted: str) -> None:
    """A caller has a new port for each connection: with its port an address would count as a new one each time."""
    assert address_of(PEER, forwarded=f"198.51.100.9, {entry}", hops=1) == counted


@pytest.mark.parametrize(
    "entry",
    ["unknown", "_hidden", "203.0.113", "203.0.113.7:x", "[2001:db8::1", "[2001:db8::1]x", "é", '"', "x" * 9000],
)
def test_what_is_no_address_counts_as_the_nearest_proxy(entry: str) -> None:
    """So a stored name is never longer than an address."""
    assert address_of(PEER, forwarded=entry, hops=1) == PEER


@pytest.mark.parametrize(
    "forwarded, hops, counted",
    [
        ("203.0.113.1, 203.0.113.2, 203.0.113.3", 0, PEER),
        ("203.0.113.1, 203.0.113.2, 203.0.113.3", 1, "203.0.113.3"),
        ("203.0.113.1, 203.0.113.2, 203.0.113.3", 2, "203.0.113.2"),
        ("203.0.113.1, 203.0.113.2, 203.0.113.3", 3, "203.0.113.1"),
        ("203.0.113.2, 203.0.113.3", 3, "203.0.113.2"),
        ("203.0.113.3", 3, "203.0.113.3"),
        ("203.0.113.1, , 203.0.113.2,,", 2, "203.0.113.1"),
        ("", 2, PEER),
        (", ,", 2, PEER),
        (None, 2, PEER),
    ],
)
def test_the_address_is_what_the_outermost_trusted_proxy_saw(forwarded: str | None, hops: int, counted: str) -> None:
    """The n-th entry from the right; where there are fewer, trusted proxies wrote all of them: the left-most."""
    assert address_of(PEER, forwarded=forwarded, hops=hops) == counted


@pytest.mark.parametrize(
    "forwarded, hops, secure",
    [
        ("https", 0, False),
        ("https", 1, True),
        ("https, http", 1, False),
        ("https, http", 2, True),
        ("http, https", 2, False),
        ("https, http, http", 2, False),
        ("https", 2, True),
        ('"HTTPS"', 1, True),
        ("é", 1, False),
        (", ,", 1, False),
        (None, 1, False),
    ],
)
def test_the_same_number_holds_for_the_scheme(forwarded: str | None, hops: int, secure: object) -> None:
    """What the outermost trusted proxy says its caller spoke."""
    assert is_secure("http", forwarded=forwarded, hops=hops) is secure


@given(st.text(st.characters(max_codepoint=255)), st.integers(min_value=-2, max_value=5))
def test_no_header_raises(forwarded: str, hops: int) -> None:
    """Whatever a caller sends is read, and an address is never long."""
    assert len(address_of(PEER, forwarded=forwarded, hops=hops)) < 64
    is_secure("http", forwarded=forwarded, hops=hops)


@pytest.mark.parametrize(
    "text, hops",
    [("0", 0), ("1", 1), ("2", 2), ("on", 1), ("true", 1), ("YES", 1), ("off", 0), ("false", 0), ("no", 0)],
)
def test_the_setting_is_a_number_of_proxies(text: str, hops: int) -> None:
    """On is one of them and off is none, as they were."""
    assert config.read({"EARMARK_TRUST_PROXY": text}).trust_proxy == hops


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "17"])
def test_another_value_is_refused(text: str) -> None:
    """With the values that there are."""
    with pytest.raises(SetupError, match="EARMARK_TRUST_PROXY must be a whole number from 0 to 16"):
        config.read({"EARMARK_TRUST_PROXY": text})
