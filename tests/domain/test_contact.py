"""What may be an e-mail address: what can go into a header and to a mail server, and nothing that ends either."""

from __future__ import annotations

import pytest

from earmark.domain.contact import check_email, check_name, email_flaw, name_flaw
from earmark.errors import InvalidRequest


@pytest.mark.parametrize(
    "email",
    [
        "ann@example.com",
        "ann.lee+tag@mail.example.co.uk",
        "o'hara@example.com",
        "ann@bücher.example",
        "ann@xn--bcher-kva.example",
        "zoë@example.com",
        "x" * 64 + "@example.com",
    ],
)
def test_an_address_that_people_have_is_taken(email: str) -> None:
    """Of any script, with a tag, with an apostrophe."""
    assert email_flaw(email) is None


@pytest.mark.parametrize(
    "email",
    [
        *("", "@", "ann", "ann@", "@example.com", "ann@example", "ann@@example.com", "a@b@example.com"),
        *("ann lee@example.com", "ann@exam ple.com", " ann@example.com", "ann@example.com ", "ann@example.com\n"),
        *("ann\r\nBcc: x@example.com", "ann\n@example.com", "ann\x00@example.com", "ann\x7f@example.com"),
        *("ann\u2028@example.com", "ann\x85@example.com", "ann\ud800@example.com", "ann\xa0@example.com"),
        *("<ann@example.com>", "ann,bob@example.com", 'a"b@example.com', "a:b@example.com", "a;b@example.com"),
        *("a\\b@example.com", "a(b)@example.com", ".ann@example.com", "ann.@example.com", "a..b@example.com"),
        *("ann@-example.com", "ann@example-.com", "ann@example..com", "ann@[127.0.0.1]", "ann@exa_mple.com"),
        *("x" * 65 + "@example.com", "a@" + "b." * 130 + "example", "a@" + "b" * 64 + ".com"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(email: str) -> None:
    """No address in an error, which may be logged; and no line end, bracket or comma in a header."""
    with pytest.raises(InvalidRequest) as refused:
        check_email(email)
    (error,) = refused.value.errors
    assert error["path"] == "email"
    assert not email.strip("@ ") or email not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["Ann Lee", "J.R. Smith", "Dr. www Lee", "\u5f20\u4f1f", "Ann: Lee", "O'Hara-Lee, ann@example.com"]
)
def test_a_name_that_people_have_is_taken(name: str) -> None:
    """Of any script, with the punctuation of names."""
    assert name_flaw(name) is None


@pytest.mark.parametrize(
    "name",
    ["", "  ", "see http://evil.example", "HTTPS://x", "WwW.evil.example", "\uff57\uff57\uff57.evil", "a\uff1a//b"],
)
def test_a_name_with_a_link_is_refused(name: str) -> None:
    """Mails greet by name, and a guest may name any address: else they would carry the guest's link to strangers."""
    with pytest.raises(InvalidRequest) as refused:
        check_name(name)
    assert refused.value.errors[0]["path"] == "name"
