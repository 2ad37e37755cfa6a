"""`281.0` is an integer to JSON Schema, so it is one to the API; what is no integer stays refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import jsonschema_rs
import msgspec
import pytest

from earmark.api.middleware.read_and_decode_body import BodyDecoder
from earmark.domain.money import AMOUNT_MAX

if TYPE_CHECKING:
    import httpx2

WHOLE = ["281.0", "281.000", "2.81e2", "28100E-2", "281"]
BROKEN = ["281.5", "281.0000000000000000000001", "1e400", "-1e400", "1e19", "-0.5", "1e-400", '"281"', "true", "NaN"]


class Exact(msgspec.Struct):
    """One integer."""

    amount: int


class Mixed(msgspec.Struct, forbid_unknown_fields=True):
    """Integers beside what is read in another way."""

    amount: int
    at: datetime
    x: float
    y: float
    refund: str | int | None
    units: dict[str, int]


def hold(ttl: str) -> bytes:
    return b'{"event_id": "concert", "buyer": "alice", "seats": ["A1"], "ttl_seconds": %s}' % ttl.encode()


async def ask(shop: httpx2.AsyncClient, path: str, body: bytes) -> httpx2.Response:
    return await shop.post(path, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("written", WHOLE)
async def test_a_whole_number_is_an_integer_however_it_is_written(
    shop: httpx2.AsyncClient, event: str, written: str
) -> None:
    """Clients whose language has one kind of number write 281.0, and the document calls that an integer."""
    assert event == "concert"
    validator = jsonschema_rs.Draft202012Validator({"type": "integer"})
    assert validator.is_valid(float(written)), "the control: JSON Schema agrees"
    answer = await ask(shop, "/v1/bookings", hold(written))
    assert answer.status_code == 201, answer.text
    assert 280 < answer.json()["expires_in"] <= 281


@pytest.mark.parametrize("written", BROKEN)
async def test_what_is_no_integer_is_refused_where_one_belongs(
    shop: httpx2.AsyncClient, event: str, written: str
) -> None:
    """A fraction is not rounded, a text is not read, and a number beyond all bounds is no error of ours."""
    assert event == "concert"
    answer = await ask(shop, "/v1/bookings", hold(written))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text


def test_no_digit_is_lost_above_what_a_float_can_represent() -> None:
    """2**53 + 1 read as a float would be 2**53: the digits are read, and not the float."""
    exact = 2**53 + 1
    assert float(exact) != exact
    for written in (b"%d.0", b"%d00e-2", b"%d"):
        assert BodyDecoder(Exact).decode(b'{"amount": ' + written % exact + b"}").amount == exact


def test_a_field_of_any_number_takes_both() -> None:
    """A body is read the second way as a whole, its true fractions and its moments too."""
    body = b'{"amount": 2.0, "at": "2030-01-01T18:00:00Z", "x": 1.5, "y": 3.0, "refund": 7.0, "units": {"GA": 2e0}}'
    read = BodyDecoder(Mixed).decode(body)
    assert (read.amount, read.x, read.y, read.refund, read.units) == (2, 1.5, 3.0, 7, {"GA": 2})
    assert read.at == datetime(2030, 1, 1, 18, tzinfo=UTC)
    assert [type(value) for value in (read.amount, read.refund, read.units["GA"])] == [int, int, int]


def test_the_decoder_alone_refuses_what_the_schema_calls_an_integer() -> None:
    """The control: this is why bodies are read a second time."""
    with pytest.raises(msgspec.ValidationError, match="got `float`"):
        msgspec.json.decode(b'{"amount": 281.0}', type=Exact)


async def test_bounds_hold_for_integers_that_are_written_as_fractions(shop: httpx2.AsyncClient, event: str) -> None:
    """The message names the field, as for every other number."""
    assert event == "concert"
    answer = await ask(shop, "/v1/bookings", hold("0.0"))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "ttl_seconds"
    body = b'{"id": "dear", "name": "N", "currency": "EUR", "pools": [{"id": "P", "capacity": 1.0, "price": %d.0}]}'
    assert (await ask(shop, "/v1/events", body % (AMOUNT_MAX + 1))).status_code == 422
    assert (await ask(shop, "/v1/events", body % AMOUNT_MAX)).status_code == 201
