"""What a payment is charged to, as it is kept and as it is shown.

A method is a word of its gateway. The code of an account is a secret: every buyer who has it can pay with it. So a
payment keeps a reference to the account in its place; answers and the journal show at most its last four characters.
Tokens of card gateways are no use without the shop's own key; they are shown by their prefix and their last four
characters. What the sandbox charges are public names, and stay readable.
"""

from __future__ import annotations

import re

BALANCE = "balance"
SANDBOX = "sandbox"
STRIPE = "stripe"

CODE_LENGTH_MIN = 16
"""Of a code that an operator chose."""
TOKEN_LENGTH_MIN = 12
"""A shorter token would be shown by its greater part."""
SHOWN_LENGTH = 4
HIDDEN = "…"
NO_ACCOUNT = "00000000-0000-0000-0000-000000000000"
"""Stands for the account of a code that opens none."""

_REFERENCE = re.compile(
    rf"(?P<account>[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})/(?P<shown>{HIDDEN}.{{0,4}})"
)
_PREFIX = re.compile(r"[a-z]{1,8}_", re.ASCII)


def mask_code(code: str) -> str:
    """A code as its buyer recognises it. By its text alone: it says nothing about which codes there are."""
    return HIDDEN + (code[-SHOWN_LENGTH:] if len(code) >= CODE_LENGTH_MIN else "")


def refer(account_id: str, code: str) -> str:
    """What a payment from an account keeps in place of the code."""
    return f"{account_id}/{mask_code(code)}"


def account_of(method: str) -> str | None:
    """The account that a payment refers to; None for a code, as older releases kept it."""
    found = _REFERENCE.fullmatch(method)
    return found["account"] if found else None


def show(gateway: str, method: str) -> str:
    """A payment's method for answers, journal and logs."""
    if gateway == SANDBOX:
        return method
    if gateway == BALANCE:
        found = _REFERENCE.fullmatch(method)
        return found["shown"] if found else mask_code(method)
    prefix = _PREFIX.match(method)
    end = method[-SHOWN_LENGTH:] if len(method) >= TOKEN_LENGTH_MIN else ""
    return (prefix[0] if prefix else "") + HIDDEN + end
