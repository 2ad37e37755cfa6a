"""Lock names: one constructor for each thing that is commonly locked, and a check of every name that is given.

A good name is `domain:id`: it says what is locked, and every caller that changes that thing makes the same name.

    event_seat("opera", "A1")   ->  event:{opera}:seat:A1
                                          ─────
                                          the hash tag: what is locked together shares it

On Redis Cluster only keys of one slot can be locked in one step, and the part in braces decides the slot. The tag is
therefore the thing that a caller's keys have in common: the event of several seats, the order of a payment and its
refund. Without the braces it is a name that people can read; no two different things are given the same one.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn
from uuid import UUID

from earmark.locks.errors import KeyRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

Part = str | int | UUID
"""What identifies one thing. The number 42 and the text "42" are the same thing."""

KEY_BYTES_MAX = 512
PART_CHARACTERS_MAX = 128
CHECKED_MAX = 8192
"""How many accepted names are remembered; a name beyond that is checked again, which costs about a microsecond."""

# These say that something is locked or identified, but not what: no domain begins with them.
EMPTY_WORDS = frozenset({"guid", "id", "ids", "key", "lock", "locks", "mutex", "semaphore", "urn", "uuid"})
# What programs print where there was no id; every caller without one would share the lock.
ABSENT_WORDS = frozenset({"None", "null", "undefined"})
# Patterns find locks (`holdings(match=…)`), braces make the tag, and a bar parts names in lists.
RESERVED = frozenset("{}*?[]\\|")
ISO_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# Matches the names of nearly all locks, at a third of what checking rule by rule costs.
PLAIN = re.compile(
    rf"(?!(?:{'|'.join(sorted(EMPTY_WORDS | ABSENT_WORDS))}):)[a-z]{{2,20}}"
    rf"(?::\{{[\w.-]+\}}(?::[\w.-]+)*|(?::(?!(?:{'|'.join(sorted(ABSENT_WORDS))})(?::|$))[\w.-]+)+)",
    re.ASCII,
)
HEX_UUID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE)


def event_seat(event: Part, seat: Part) -> str:
    """One seat of an event. Seats of one event can be locked together."""
    return check(f"event:{{{_part('event', event)}}}:seat:{_part('seat', seat)}")


def show_seat(show: Part, seat: Part) -> str:
    """One seat at one showing in a cinema. Seats of one showing can be locked together."""
    return check(f"cinema:show:{{{_part('show', show)}}}:seat:{_part('seat', seat)}")


def flight_seat(flight: Part, date: date | str, seat: Part) -> str:
    """One seat of a flight on its day of departure. Seats of one departure can be locked together."""
    return check(f"flight:{{{_part('flight', flight)}:date:{_day(date)}}}:seat:{_part('seat', seat)}")


def seat(seat: Part) -> str:
    """A seat whose id is its own across all events. Seats of one event cannot be locked together by this name."""
    return check(f"seat:{{{_part('seat', seat)}}}")


def inventory(sku: Part) -> str:
    """The stock of one article, wherever it lies."""
    return check(f"inventory:{{{_part('sku', sku)}}}")


def product_in_warehouse(product: Part, warehouse: Part) -> str:
    """The stock of a product in one warehouse; with the product's other warehouses it can be locked together."""
    return check(
        f"inventory:product:{{{_part('product', product)}}}:warehouse:{_part('warehouse', warehouse)}",
    )


def stock_reservation(sku: Part) -> str:
    """Reserving from the stock of one article. A caller that changes the stock itself locks `inventory` as well."""
    return check(f"inventory:reserve:{{{_part('sku', sku)}}}")


def order(order: Part) -> str:
    """One order. With its payment and its refund it can be locked together."""
    return check(f"order:{{{_part('order', order)}}}")


def order_processing(order: Part) -> str:
    """Processing one order. A caller that changes the order itself locks `order` as well."""
    return check(f"order:process:{{{_part('order', order)}}}")


def payment(order: Part) -> str:
    """The payment of one order.

    A payment, its refund and its callback have three names and write one row: a caller that changes that row locks
    the `order` as well, or lets the row's own guard decide.
    """
    return check(f"payment:order:{{{_part('order', order)}}}")


def refund(order: Part) -> str:
    """The refund of one order."""
    return check(f"payment:refund:{{{_part('order', order)}}}")


def callback(transaction: Part) -> str:
    """What a payment provider reports about one transaction, perhaps more than once."""
    return check(f"payment:callback:{{{_part('transaction', transaction)}}}")


def transaction(transaction: Part) -> str:
    """One transaction at a payment provider. With its callback it can be locked together."""
    return check(f"payment:transaction:{{{_part('transaction', transaction)}}}")


def payer(account: Part) -> str:
    """The payments of one account. With the `account` it can be locked together."""
    return check(f"payment:account:{{{_part('account', account)}}}")


def confirmation(idempotency_key: Part) -> str:
    """Confirming under one idempotency key. Two requests with different keys do not meet here."""
    return check(f"confirm:{{{_part('idempotency_key', idempotency_key)}}}")


def invoice_processing(invoice: Part) -> str:
    """Processing one invoice, so that two workers do not process it at once."""
    return check(f"process:invoice:{{{_part('invoice', invoice)}}}")


def invoice_check(account: Part, invoice: Part, vendor: Part) -> str:
    """Whether an account has had this invoice of a vendor before. Those of one account can be locked together."""
    return check(
        f"invoice_check:{{{_part('account', account)}}}:{_part('invoice', invoice)}:{_part('vendor', vendor)}",
    )


def account(account: Part) -> str:
    """One account, for instance its balance."""
    return check(f"account:{{{_part('account', account)}}}")


def counter(name: Part) -> str:
    """One counter, so that no increment is lost."""
    return check(f"counter:{{{_part('name', name)}}}")


def job(name: Part) -> str:
    """One scheduled job that may run once at a time, whatever starts it."""
    return check(f"job:{{{_part('name', name)}}}")


def processing(account: Part, fingerprint: Part) -> str:
    """A marker's name: this account's request of this fingerprint is being worked on."""
    return check(f"processing:{{{_part('account', account)}}}:{_part('fingerprint', fingerprint)}")


@lru_cache(maxsize=CHECKED_MAX)
def check(key: str) -> str:
    """The same name, if it is one to lock by; else `KeyRefused` with everything that is wrong with it."""
    if not _plain(key) and (found := problems(key)):
        raise KeyRefused(key=str(key)[:KEY_BYTES_MAX], problem=" ".join(found))
    return key


def problems(key: str) -> list[str]:
    """All that is wrong with a name, in sentences that say what to do; nothing, if it is good."""
    return list(_findings(key))


def tag_of(key: str) -> str:
    """What decides the slot of a name on Redis Cluster: its hash tag, or the whole of it when it has none."""
    _, opening, after = key.partition("{")
    tag, closing, _ = after.partition("}")
    return tag if opening and closing and tag else key


def _part(name: str, value: object) -> str:
    """One part as it is written in a key, with its colons escaped, for colons separate the parts."""
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        _refuse(value, f"The {name} is {type(value).__name__}: give text, a whole number or a UUID.")
    text = str(value)
    if text.isascii() and text.isalnum() and len(text) <= PART_CHARACTERS_MAX:
        return text
    # One spelling of an accented letter, or two callers would lock two names for one thing.
    text = unicodedata.normalize("NFC", text)
    if not text:
        _refuse(value, f"The {name} is empty: all callers without one would share the lock.")
    if len(text) > PART_CHARACTERS_MAX:
        _refuse(value, f"The {name} has over {PART_CHARACTERS_MAX} characters: lock by an id or by a digest of it.")
    if not text.isprintable() or " " in text:
        _refuse(value, f"The {name} has white space or unprintable characters: lock by an id without them.")
    if reserved := sorted(RESERVED.intersection(text)):
        _refuse(value, f"The {name} has {' '.join(reserved)} in it: use urllib.parse.quote on it first.")
    return text.replace("%", "%25").replace(":", "%3A")


def _day(value: object) -> str:
    """A calendar day in its one spelling."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    # A moment is on two days at once, depending on the zone: the caller knows which one is printed on the ticket.
    if not isinstance(value, str) or not ISO_DAY.fullmatch(value):
        _refuse(value, "The date is no day: give a datetime.date, or text like 2026-05-01.")
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        _refuse(value, "The date is not in the calendar: give a datetime.date, or text like 2026-05-01.")


def _refuse(value: object, problem: str) -> NoReturn:
    # What was given may have come from anywhere and be of any length; a log line should not be.
    raise KeyRefused(key=str(value)[:KEY_BYTES_MAX], problem=problem)


def _plain(key: object) -> bool:
    return isinstance(key, str) and len(key) <= KEY_BYTES_MAX and PLAIN.fullmatch(key) is not None


def _findings(key: object) -> Iterator[str]:
    if not isinstance(key, str):
        yield f"A name is text, not {type(key).__name__}: write it as domain:id, like invoice:42."
    elif not key:
        yield "The name is empty: write it as domain:id, like invoice:42."
    else:
        yield from _unreadable(key)
        braces = tuple(_ill_tagged(key))
        yield from braces or _ill_chosen(key)


def _unreadable(key: str) -> Iterator[str]:
    if not key.isprintable() or " " in key:
        yield "The name has white space or unprintable characters: build it from ids without them."
    if len(key.encode(errors="replace")) > KEY_BYTES_MAX:
        yield f"The name is longer than {KEY_BYTES_MAX} bytes: use an id, or a digest of what identifies the thing."
    if not unicodedata.is_normalized("NFC", key):
        yield "The name has letters of more than one spelling: use unicodedata.normalize('NFC', name) on it first."


def _ill_tagged(key: str) -> Iterator[str]:
    opened, closed = key.count("{"), key.count("}")
    if opened == closed > 1:
        yield "The name has more than one hash tag: put braces around the one thing that is locked together."
    elif opened != closed or key.find("}") < key.find("{"):
        yield "The name has a brace without its counterpart: leave it out, or close the hash tag."
    elif opened and tag_of(key) == key:
        yield "The name has an empty hash tag {}: put the id that belongs there between the braces."


def _ill_chosen(key: str) -> Iterator[str]:
    """A name with a domain and an id can protect a thing; without one of them it covers everything or nothing."""
    parts = key.replace("{", "").replace("}", "").split(":")
    if "" in parts:
        yield "The name has an empty part: an id is missing, and all callers without one would share the lock."
        return
    if "*" in parts:
        yield "The name has * for an id: a lock covers its own name only, not what a pattern matches."
    # The constructors refuse None itself, so that a seat may be called "null" where they wrote the name.
    if "{" not in key and (absent := ABSENT_WORDS.intersection(parts)):
        yield f"The name says {min(absent)} for an id: all callers without one would share the lock."
    while parts and parts[0].lower() in EMPTY_WORDS:
        parts = parts[1:]
    first = parts[0] if parts else ""
    if len(parts) == 1 and HEX_UUID.fullmatch(first):
        yield "The name is a UUID alone: made for one call it protects nothing; write whose it is, like order:UUID."
    elif not parts or (len(parts) == 1 and not any(map(str.isdigit, first))):
        yield "The name is too broad: add the id of the one thing that is locked, like invoice:42."
    elif len(parts) == 1 or HEX_UUID.fullmatch(first) or not any(map(str.isalpha, first)):
        yield "The name has no domain: say what the id belongs to, like invoice:42."
    elif len(tag_of(key)) == len(key) - len("{}"):
        yield "The hash tag is the whole name: leave the braces out, or tag the part that several names share."
