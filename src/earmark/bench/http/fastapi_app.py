"""The usual hand-written server: a FastAPI endpoint that holds seats with `SELECT … FOR UPDATE` for each request.

    python -m granian --interface asgi --factory earmark.bench.http.fastapi_app:create

It is well written: validation by Pydantic, a bearer key, an idempotency key in the booking's own transaction, a pool of
prepared connections, rows locked in one order. It writes the same rows as Earmark, by `strategies/for_update.py`, and
answers with the booking.
"""

from __future__ import annotations

import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID  # noqa: TC003 (FastAPI reads the annotations when it runs)

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field

from earmark.bench.booking.strategies import STRATEGIES
from earmark.bench.booking.strategy_protocol import StrategySettings, Want

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DATABASE, TOKEN, CONNECTIONS = "BENCH_DATABASE", "BENCH_TOKEN", "BENCH_CONNECTIONS"
TTL_SECONDS = 600


class FastapiHoldBody(BaseModel):
    """The body of a hold."""

    event_id: str = Field(min_length=1, max_length=64)
    buyer: str = Field(min_length=1, max_length=128)
    seats: list[str] = Field(min_length=1, max_length=100)


class FastapiHoldAnswer(BaseModel):
    """The booking that was made."""

    id: UUID
    event_id: str
    buyer: str
    state: str
    seats: list[str]
    expires_in: int


def check(authorization: Annotated[str, Header()] = "") -> None:
    """Accept the shop's key and no other."""
    if not secrets.compare_digest(authorization, f"Bearer {os.environ[TOKEN]}"):
        raise HTTPException(status_code=401)


def create() -> FastAPI:
    """The application, with a pool of connections until it stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        settings = StrategySettings(database=os.environ[DATABASE], connections=int(os.environ[CONNECTIONS]))
        app.state.strategy = await STRATEGIES["for_update"].open(settings)
        yield
        await app.state.strategy.close()

    app = FastAPI(lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/bookings", status_code=201, dependencies=[Depends(check)])
    async def hold(
        body: FastapiHoldBody, request: Request, idempotency_key: Annotated[str, Header()]
    ) -> FastapiHoldAnswer:
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
        return FastapiHoldAnswer(
            id=booking_id,
            event_id=body.event_id,
            buyer=body.buyer,
            state="held",
            seats=body.seats,
            expires_in=TTL_SECONDS,
        )

    return app
