"""One shape for every refusal: a machine can distinguish them, an engineer and a buyer can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .support import Caller, Json, Service, answered, become_guest, calling, refused, unique

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx2

    Provocation = Callable[[Caller, Caller], Awaitable[httpx2.Response]]

GA: Json = {"id": "GA", "capacity": 2, "price": 2500}


async def no_key(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.http.get("/v1/bookings", headers={"Authorization": ""})


async def wrong_key(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.http.get("/v1/bookings", headers={"Authorization": "Bearer ek_test_wrong"})


async def not_allowed(_: Caller, guest: Caller) -> httpx2.Response:
    return await guest.http.post("/v1/events", json={"name": "Mine", "currency": "EUR"})


async def no_such_path(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.http.get("/v1/nonsense")


async def no_such_event(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.http.get(f"/v1/events/{unique('evt')}")


async def no_such_event_to_hold(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold(unique("evt"), seats=["A1"])


async def no_such_seat(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold(await shop.theatre(), seats=["Z99"])


async def not_ones_own_booking(shop: Caller, guest: Caller) -> httpx2.Response:
    booking = await shop.held(await shop.theatre(), seats=["A1"])
    return await guest.http.get(f"/v1/bookings/{booking['id']}")


async def wrong_method(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.http.put("/v1/bookings", json={})


async def held_by_another(shop: Caller, _: Caller) -> httpx2.Response:
    event = await shop.theatre()
    await shop.held(event, buyer="bob", seats=["A1"])
    return await shop.hold(event, seats=["A1"])


async def sold_to_another(shop: Caller, _: Caller) -> httpx2.Response:
    event = await shop.theatre()
    await shop.sold(event, buyer="bob", seats=["A1"])
    return await shop.hold(event, seats=["A1"])


async def off_sale(shop: Caller, _: Caller) -> httpx2.Response:
    event = await shop.theatre()
    answered(await shop.patch(event, seats=[{"id": "A1", "blocked": True}]), 200)
    return await shop.hold(event, seats=["A1"])


async def block_of_a_held_seat(shop: Caller, _: Caller) -> httpx2.Response:
    event = await shop.theatre()
    await shop.held(event, seats=["A1"])
    return await shop.patch(event, seats=[{"id": "A1", "blocked": True}])


async def nothing_left(shop: Caller, _: Caller) -> httpx2.Response:
    event = await shop.theatre(pools=[GA])
    await shop.held(event, buyer="bob", pools={"GA": 2})
    return await shop.hold(event, pools={"GA": 1})


async def smaller_than_what_is_taken(shop: Caller, _: Caller) -> httpx2.Response:
    event = await shop.theatre(pools=[GA])
    await shop.held(event, buyer="bob", pools={"GA": 2})
    return await shop.patch(event, pools=[{"id": "GA", "capacity": 1}])


async def more_than_allowed(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold(await shop.theatre(per_buyer_max=1), seats=["A1", "A2"])


async def sale_over(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold(await shop.theatre(sale_closes_at="2020-01-01T00:00:00Z"), seats=["A1"])


async def no_more_time(shop: Caller, _: Caller) -> httpx2.Response:
    booking = (await shop.held(await shop.theatre(), seats=["A1"]))["id"]
    for _times in range(300):
        response = await shop.extend(booking, seconds=600)
        if response.status_code != 200:
            break
    return response


async def already_over(shop: Caller, _: Caller) -> httpx2.Response:
    booking = (await shop.held(await shop.theatre(), seats=["A1"]))["id"]
    answered(await shop.release(booking), 200)
    return await shop.confirm(booking)


async def not_yet_sold(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.cancel((await shop.held(await shop.theatre(), seats=["A1"]))["id"])


async def too_late(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.confirm((await shop.lapsed(await shop.theatre(), seats=["A1"]))["id"])


async def money_already_used(shop: Caller, _: Caller) -> httpx2.Response:
    event, payment = await shop.theatre(), unique("pay")
    first, second = [await shop.held(event, seats=[seat]) for seat in ("A1", "A2")]
    answered(await shop.confirm(first["id"], payment_id=payment), 200)
    return await shop.confirm(second["id"], payment_id=payment)


async def too_large(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold("any", buyer="b" * 70_000, seats=["A1"])


async def key_of_another_request(shop: Caller, _: Caller) -> httpx2.Response:
    event, key = await shop.theatre(), unique("key")
    answered(await shop.hold(event, seats=["A1"], idempotency_key=key), 201)
    return await shop.hold(event, seats=["A2"], idempotency_key=key)


async def key_too_long(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold(await shop.theatre(), seats=["A1"], idempotency_key="k" * 256)


async def not_json(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.http.post("/v1/bookings", content=b"{", headers={"Content-Type": "application/json"})


async def invalid_time(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold(await shop.theatre(), seats=["A1"], ttl_seconds=-1)


async def same_seat_twice(shop: Caller, _: Caller) -> httpx2.Response:
    return await shop.hold(await shop.theatre(), seats=["A1", "A1"])


PROVOCATIONS: list[tuple[Provocation, int, str | None]] = [
    (no_key, 401, None),
    (wrong_key, 401, None),
    (not_allowed, 403, None),
    (no_such_path, 404, None),
    (no_such_event, 404, "event_unknown"),
    (no_such_event_to_hold, 404, "event_unknown"),
    (no_such_seat, 404, "seat_unknown"),
    (not_ones_own_booking, 404, "booking_unknown"),
    (wrong_method, 405, None),
    (held_by_another, 409, "seats_taken"),
    (sold_to_another, 409, "seats_taken"),
    (off_sale, 409, "seats_taken"),
    (block_of_a_held_seat, 409, "seats_taken"),
    (nothing_left, 409, "pool_exhausted"),
    (smaller_than_what_is_taken, 409, "capacity_in_use"),
    (more_than_allowed, 409, "limit_exceeded"),
    (sale_over, 409, "sale_closed"),
    (no_more_time, 409, "extension_refused"),
    (already_over, 409, "booking_resolved"),
    (not_yet_sold, 409, "booking_not_confirmed"),
    (money_already_used, 409, "payment_used"),
    (too_late, 410, "booking_expired"),
    (too_large, 413, None),
    (key_of_another_request, 422, "idempotency_mismatch"),
    (key_too_long, 422, "invalid_request"),
    (not_json, 422, "invalid_request"),
    (invalid_time, 422, "invalid_request"),
    (same_seat_twice, 422, "invalid_request"),
]


@pytest.mark.parametrize("provoke, status, code", [pytest.param(*row, id=row[0].__name__) for row in PROVOCATIONS])
async def test_every_refusal_has_the_same_shape(
    service: Service, shop: Caller, provoke: Provocation, status: int, code: str | None
) -> None:
    """Type, title, status, detail, code, transient; the detail is a sentence of its own, for a buyer."""
    async with calling(service, token="") as anonymous:
        _, token = await become_guest(anonymous)
    async with calling(service, token=token) as guest:
        problem = refused(await provoke(shop, guest), status, code)
    assert {"type", "title", "status", "detail", "code", "transient"} <= set(problem)
    assert isinstance(problem["type"], str)
    assert problem["type"]
    assert isinstance(problem["transient"], bool)
    assert not (status == 422 and problem["transient"]), "the same senseless request cannot succeed later"
    title, detail = problem["title"], problem["detail"]
    assert title
    assert detail != title
    assert detail[0].isupper(), detail
    assert detail.endswith((".", "!", "?")), detail
    assert len(detail.split()) >= 2, detail
    assert problem["code"] not in detail, "a code is not for a buyer"
