"""What people write: a FastAPI endpoint that holds seats with `SELECT … FOR UPDATE`, request by request.

    python -m granian --interface asgi --factory earmark.bench.http.fastapi_peer:create

As a good engineer writes it: validated by Pydantic, a bearer key, an idempotency key in the booking's own transaction,
a pool of prepared connections, rows locked in one order. It writes the rows that Earmark writes, by
`strategies/for_update.py`, and answers with the booking.
"""

from __future__ import annotations

import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID  # noqa: TC003 (FastAPI reads the annotations when it runs)

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field

from earmark.bench.booking.ports import Place, Want
from earmark.bench.booking.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DATABASE, TOKEN, CONNECTIONS = "BENCH_DATABASE", "BENCH_TOKEN", "BENCH_CONNECTIONS"
TTL_SECONDS = 600


class HoldBody(BaseModel):
    """What is asked."""

    event_id: str = Field(min_length=1, max_length=64)
    buyer: str = Field(min_length=1, max_length=128)
    seats: list[str] = Field(min_length=1, max_length=100)


class HoldAnswer(BaseModel):
    """What was granted."""

    id: UUID
    event_id: str
    buyer: str
    state: str
    seats: list[str]
    expires_in: int


def check(authorization: Annotated[str, Header()] = "") -> None:
    """The shop's own key, and nobody else's."""
    if not secrets.compare_digest(authorization, f"Bearer {os.environ[TOKEN]}"):
        raise HTTPException(status_code=401)


def create() -> FastAPI:
    """The application, with a pool of connections for as long as it lives."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        place = Place(database=os.environ[DATABASE], connections=int(os.environ[CONNECTIONS]))
        app.state.strategy = await STRATEGIES["for_update"].open(place)
        yield
        await app.state.strategy.close()

    app = FastAPI(lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/bookings", status_code=201, dependencies=[Depends(check)])
    async def hold(body: HoldBody, request: Request, idempotency_key: Annotated[str, Header()]) -> HoldAnswer:
        want = Want(
            event_id=body.event_id,
            buyer=body.buyer,
            seats=tuple(body.seats),
            key=idempotency_key,
            ttl_seconds=TTL_SECONDS,
        )
        strategy: Any = request.app.state.strategy
        booking_id = await strategy.hold(want)
        if booking_id is None:
            raise HTTPException(status_code=409, detail="These seats are taken.")
        return HoldAnswer(
            id=booking_id,
            event_id=body.event_id,
            buyer=body.buyer,
            state="held",
            seats=body.seats,
            expires_in=TTL_SECONDS,
        )

    return app
