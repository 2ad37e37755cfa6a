"""Lock names: what the constructors write, and which names are refused and why."""

from __future__ import annotations

import hashlib
import unicodedata
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from earmark.locks import keys
from earmark.locks.errors import KeyRefused

if TYPE_CHECKING:
    from collections.abc import Callable

AN_ID = "550e8400-e29b-41d4-a716-446655440000"
DAY = date(2026, 5, 1)

WRITTEN = [
    (keys.event_seat, ("opera", "A1"), "event:{opera}:seat:A1"),
    (keys.show_seat, ("matinee", "A1"), "cinema:show:{matinee}:seat:A1"),
    (keys.flight_seat, ("LH400", DAY, "12A"), "flight:{LH400:date:2026-05-01}:seat:12A"),
    (keys.seat, ("A1",), "seat:{A1}"),
    (keys.inventory, ("SKU-9",), "inventory:{SKU-9}"),
    (keys.product_in_warehouse, ("SKU-9", "north"), "inventory:product:{SKU-9}:warehouse:north"),
    (keys.stock_reservation, ("SKU-9",), "inventory:reserve:{SKU-9}"),
    (keys.order, (42,), "order:{42}"),
    (keys.order_processing, (42,), "order:process:{42}"),
    (keys.payment, (42,), "payment:order:{42}"),
    (keys.refund, (42,), "payment:refund:{42}"),
    (keys.callback, ("pi_3Nx",), "payment:callback:{pi_3Nx}"),
    (keys.transaction, ("pi_3Nx",), "payment:transaction:{pi_3Nx}"),
    (keys.payer, ("alice",), "payment:account:{alice}"),
    (keys.confirmation, ("key-1",), "confirm:{key-1}"),
    (keys.invoice_processing, (42,), "process:invoice:{42}"),
    (keys.invoice_check, ("acme", 42, "paper-ltd"), "invoice_check:{acme}:42:paper-ltd"),
    (keys.account, (UUID(AN_ID),), f"account:{{{AN_ID}}}"),
    (keys.counter, ("visitors",), "counter:{visitors}"),
    (keys.job, ("nightly-report",), "job:{nightly-report}"),
    (keys.processing, ("acme", "9f86d081"), "processing:{acme}:9f86d081"),
]

TOGETHER = [
    (keys.event_seat("opera", "A1"), keys.event_seat("opera", "A2")),
    (keys.show_seat("matinee", "A1"), keys.show_seat("matinee", "B7")),
    (keys.flight_seat("LH400", DAY, "12A"), keys.flight_seat("LH400", "2026-05-01", "12B")),
    (keys.product_in_warehouse("SKU-9", "north"), keys.product_in_warehouse("SKU-9", "south")),
    (keys.product_in_warehouse("SKU-9", "north"), keys.inventory("SKU-9")),
    (keys.order(42), keys.payment(42)),
    (keys.payment(42), keys.refund(42)),
    (keys.processing("acme", "one"), keys.account("acme")),
    (keys.stock_reservation("SKU-9"), keys.inventory("SKU-9")),
    (keys.order_processing(42), keys.order(42)),
    (keys.transaction("pi_3Nx"), keys.callback("pi_3Nx")),
    (keys.payer("alice"), keys.account("alice")),
    (keys.invoice_check("acme", 42, "paper-ltd"), keys.invoice_check("acme", 43, "ink-ltd")),
]

ONE_PART: list[Callable[[Any], str]] = [
    keys.inventory,
    keys.order,
    keys.payment,
    keys.refund,
    keys.callback,
    keys.account,
    keys.counter,
    keys.job,
    keys.seat,
    keys.stock_reservation,
    keys.order_processing,
    keys.transaction,
    keys.payer,
    keys.confirmation,
    keys.invoice_processing,
]
TWO_PARTS: list[Callable[[Any, Any], str]] = [
    keys.event_seat,
    keys.show_seat,
    keys.product_in_warehouse,
    keys.processing,
]
THREE_PARTS: list[Callable[..., str]] = [keys.flight_seat, keys.invoice_check]

# Few characters, and those that join, escape and resemble what the constructors write, so that a clash is soon found.
tricky = st.text(alphabet=":%3A25seat-", min_size=1, max_size=5)
any_part = st.text(min_size=1, max_size=30).filter(
    lambda text: text.isprintable() and not set(text) & {" ", *keys.RESERVED},
)


def named(constructors: list[Any], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.sampled_from(constructors), *parts)


def named_with(part: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    return (
        named(ONE_PART, part)
        | named(TWO_PARTS, part, part)
        | named([keys.invoice_check], part, part, part)
        | named([keys.flight_seat], part, st.dates(min_value=date(2026, 1, 1), max_value=date(2026, 1, 3)), part)
    )


@pytest.mark.parametrize("constructor, parts, key", WRITTEN)
def test_a_convention_has_one_spelling(constructor: Callable[..., str], parts: tuple[Any, ...], key: str) -> None:
    """Programs of different teams lock the same thing only if they write its name alike."""
    assert constructor(*parts) == key
    assert keys.check(key) == key


def test_every_convention_that_names_a_lock_has_a_constructor() -> None:
    """The names that shops commonly lock by, without braces. A reference, a cache entry or a job id is no lock."""
    conventions = {
        "event:opera:seat:A1",
        "inventory:product:SKU-9:warehouse:north",
        "confirm:key-1",
        "process:invoice:42",
        "invoice_check:acme:42:paper-ltd",
        "processing:acme:9f86d081",
        "inventory:reserve:SKU-9",
        "inventory:SKU-9",
        "order:process:42",
        "order:42",
        "cinema:show:matinee:seat:A1",
        "flight:LH400:date:2026-05-01:seat:12A",
        "payment:order:42",
        "payment:refund:42",
        "payment:callback:pi_3Nx",
        "payment:transaction:pi_3Nx",
        "payment:account:alice",
        "seat:A1",
    }
    assert conventions <= {key.translate({123: None, 125: None}) for _, _, key in WRITTEN}


def test_every_constructor_is_shown_above() -> None:
    """A convention without an expected spelling could change unseen."""
    public = {
        name for name, it in vars(keys).items() if getattr(it, "__module__", "") == keys.__name__ and callable(it)
    }
    helpers = {"check", "problems", "tag_of"}
    assert {name for name in public if not name.startswith("_")} - helpers == {it.__name__ for it, _, _ in WRITTEN}
    assert {it.__name__ for it in (*ONE_PART, *TWO_PARTS, *THREE_PARTS)} == {it.__name__ for it, _, _ in WRITTEN}


@pytest.mark.parametrize("one, other", TOGETHER)
def test_what_is_locked_together_shares_a_slot(one: str, other: str) -> None:
    """Redis Cluster locks several keys in one step only within a slot."""
    assert one != other
    assert key_slot(one.encode()) == key_slot(other.encode())


def test_without_the_tag_the_slots_are_apart() -> None:
    """The control: it is the tag that brings the names together, not chance."""
    bare = [(one.translate({123: None, 125: None}), other.translate({123: None, 125: None})) for one, other in TOGETHER]
    assert all(key_slot(one.encode()) != key_slot(other.encode()) for one, other in bare)


@given(st.text(alphabet="ab{}:", max_size=12))
def test_the_tag_is_the_one_that_redis_sees(key: str) -> None:
    """Keys are sorted into slots here and checked there; a difference would be an error in production only."""
    assert key_slot(keys.tag_of(key).encode()) == key_slot(key.encode())


@pytest.mark.parametrize(
    "key, tag",
    [
        ("event:{opera}:seat:A1", "opera"),
        ("invoice:42", "invoice:42"),
        ("invoice:{}42", "invoice:{}42"),
        ("a}{b", "a}{b"),
        ("a{b}{c}", "b"),
    ],
)
def test_a_name_without_a_tag_is_its_own(key: str, tag: str) -> None:
    """What decides the slot is the first pair of braces with something in it, or the name."""
    assert keys.tag_of(key) == tag


@given(st.lists(named_with(tricky), unique=True, max_size=40))
def test_different_things_have_different_names(calls: list[tuple[Any, ...]]) -> None:
    """Two things under one name would wait for each other; a colon in an id must not lead there."""
    assert len({constructor(*parts) for constructor, *parts in calls}) == len(calls)


def test_joining_by_hand_gives_two_things_one_name() -> None:
    """The control: without tag and escape these two requests are one."""

    def joined(account: str, fingerprint: str) -> str:
        return f"processing:{account}:{fingerprint}"

    assert joined("acme:eu", "1") == joined("acme", "eu:1")
    assert keys.processing("acme:eu", "1") != keys.processing("acme", "eu:1")


def test_an_escape_cannot_be_forged() -> None:
    """An id that looks like an escaped one is another id."""
    assert keys.event_seat("a:b", "1") == "event:{a%3Ab}:seat:1"
    assert keys.event_seat("a%3Ab", "1") == "event:{a%253Ab}:seat:1"


@given(named_with(any_part))
def test_what_a_constructor_writes_is_a_name_to_lock_by(call: tuple[Any, ...]) -> None:
    """The check at the lock must not refuse what this module wrote itself."""
    constructor, *parts = call
    assert keys.problems(constructor(*parts)) == []


def test_one_letter_has_one_spelling() -> None:
    """Two callers that spell an umlaut differently mean the same seat."""
    composed, apart = unicodedata.normalize("NFC", "Tür"), unicodedata.normalize("NFD", "Tür")
    assert composed != apart
    assert keys.event_seat("opera", composed) == keys.event_seat("opera", apart)


@pytest.mark.parametrize(
    "part, word",
    [
        ("", "empty"),
        ("A 1", "white space"),
        ("A\t1", "white space"),
        ("A\u00a01", "white space"),
        ("A\u200b1", "unprintable"),
        ("A\x001", "unprintable"),
        ("A\ud8001", "unprintable"),
        ("{A1", "quote"),
        ("A1}", "quote"),
        ("A*", "quote"),
        ("A?", "quote"),
        ("[A1]", "quote"),
        ("A\\1", "quote"),
        ("A|1", "quote"),
        ("A" * 129, "digest"),
        (None, "NoneType"),
        (True, "bool"),
        (1.0, "float"),
        (b"A1", "bytes"),
    ],
)
def test_a_part_that_cannot_be_an_id_is_refused(part: Any, word: str) -> None:
    """A name is built once and matched, printed and typed often; and None is no id."""
    with pytest.raises(KeyRefused) as refused:
        keys.event_seat("opera", part)
    assert "seat" in refused.value.problem
    assert word in refused.value.problem


def test_what_is_refused_is_shortened_in_the_message() -> None:
    """An id may be user input; a megabyte of it in an error would fill every log."""
    with pytest.raises(KeyRefused) as part_refused:
        keys.order("x" * 1_000_000)
    with pytest.raises(KeyRefused) as key_refused:
        keys.check("x" * 1_000_000)
    assert max(len(str(part_refused.value)), len(str(key_refused.value))) < 2_000


@pytest.mark.parametrize(
    "day", ["", "tomorrow", "20260501", "2026-W18-5", "2026-5-1", "2026-02-30", datetime(2026, 5, 1, tzinfo=UTC), None]
)
def test_a_flight_leaves_on_a_day_of_the_calendar(day: Any) -> None:
    """A second spelling of a day, or a moment that is on two days, would be a second lock for one seat."""
    with pytest.raises(KeyRefused, match="date"):
        keys.flight_seat("LH400", day, "12A")


@pytest.mark.parametrize(
    "key",
    [
        "invoice:42",
        "event:{opera}:seat:A1",
        f"order:{AN_ID}",
        "lock:event:{opera}:seat:A1",
        "Invoice:42",
        "3d-model:7",
        "event:{null}:seat:None",
        "straße:{münchen}:7",
        "page:https://example.org/?a=1",
        "xy:" + "z" * 509,
    ],
)
def test_a_domain_and_an_id_make_a_name(key: str) -> None:
    """A name that says what is locked and which one is accepted as it stands."""
    assert keys.check(key) == key
    assert keys.problems(key) == []


@pytest.mark.parametrize(
    "key, word",
    [
        ("", "empty"),
        ("inventory", "too broad"),
        ("lock", "too broad"),
        ("lock:id", "too broad"),
        ("lock:inventory", "too broad"),
        ("lock:42", "no domain"),
        ("lock:{42}", "no domain"),
        ("LOCK:42", "no domain"),
        ("id:42", "no domain"),
        ("42", "no domain"),
        ("42:7", "no domain"),
        ("invoice-42", "no domain"),
        (f"{AN_ID}:7", "no domain"),
        (AN_ID, "UUID"),
        (AN_ID.replace("-", "").upper(), "UUID"),
        (f"{{{AN_ID}}}", "UUID"),
        ("{invoice:42}", "whole name"),
        (f"lock:{AN_ID}", "UUID"),
        (f"urn:uuid:{AN_ID}", "UUID"),
        ("invoice:", "empty part"),
        (":42", "empty part"),
        ("invoice::42", "empty part"),
        ("invoice:None", "None"),
        ("invoice:null:7", "null"),
        ("inventory:*", "pattern"),
        ("invoice: 42", "white space"),
        ("invoice:42\n", "white space"),
        ("invoice:\x0042", "unprintable"),
        ("invoice:\ud800", "unprintable"),
        ("xy:" + "z" * 510, "512 bytes"),
        ("x:" + "ü" * 256, "512 bytes"),
        ("tür:" + unicodedata.normalize("NFD", "ü"), "spelling"),
        ("event:{opera}:seat:{A1}", "more than one"),
        ("event:{{opera}}:seat:A1", "more than one"),
        ("event:{}:seat:A1", "empty hash tag"),
        ("event:{opera:seat:A1", "counterpart"),
        ("event:{opera}}:seat:A1", "counterpart"),
        ("event:{{opera}:seat:A1", "counterpart"),
        ("event:opera}:seat:A1", "counterpart"),
        ("event:}opera{:seat:A1", "counterpart"),
        (None, "NoneType"),
        (b"invoice:42", "bytes"),
    ],
)
def test_a_name_that_covers_everything_or_nothing_is_refused(key: Any, word: str) -> None:
    """A lock under such a name makes unrelated callers wait, or none at all; the refusal says what to write."""
    with pytest.raises(KeyRefused) as refused:
        keys.check(key)
    assert word in refused.value.problem
    assert keys.problems(key) == [refused.value.problem]


def test_all_that_is_wrong_is_said_at_once() -> None:
    """A program that checks names gets all findings at once, and not one at a time."""
    found = keys.problems("lock: " + "4" * 600)
    assert len(found) == 3
    assert all(sentence.endswith(".") for sentence in found)


@given(st.from_regex(keys.PLAIN, fullmatch=True))
def test_the_short_way_accepts_nothing_that_a_rule_refuses(key: str) -> None:
    """The one pattern that most names pass by must not be a hole in the rules."""
    assert keys.problems(key) == [] or len(key) > keys.KEY_BYTES_MAX


@given(
    st.lists(st.sampled_from(["lock", "id", "order", "None", "null", "42", "*", "{", "}", AN_ID, ""]), max_size=5).map(
        ":".join
    )
)
def test_the_short_way_and_the_rules_agree(key: str) -> None:
    """A name is refused exactly if something can be said against it."""
    if keys.problems(key):
        with pytest.raises(KeyRefused):
            keys.check(key)
    else:
        assert keys.check(key) == key


def test_a_name_is_checked_once() -> None:
    """The names of hot locks come by thousands of times in a second; and the memory of them has an end."""
    key = f"invoice:{hashlib.sha256(b'a name that no other test uses').hexdigest()}"
    before = keys.check.cache_info()
    assert keys.check(key) == keys.check(key)
    after = keys.check.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)
    assert after.maxsize == keys.CHECKED_MAX
