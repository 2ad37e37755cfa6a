"""Locks on the configured Redis: list the holders, and break a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from earmark.api.auth.keys_and_tokens import Scope
from earmark.api.endpoint_declaration import Endpoint
from earmark.api.pagination import read_limit
from earmark.api.problem_response import LockUnknown
from earmark.api.response import ApiResponse, json_response
from earmark.errors import InvalidRequest, StoreUnavailable
from earmark.locks.errors import LocksUnavailable
from earmark.observability import logs

if TYPE_CHECKING:
    from earmark.api.request_context_for_handlers import RequestContext
    from earmark.locks import Holding

MATCH_LENGTH_MAX = 512

log = logs.get()


class LocksSilent(StoreUnavailable):
    """The Redis of the locks cannot be reached."""


class LockAnswer(Struct, kw_only=True):
    """A lock that is held: its holder, its age, its remaining time, and the waiters."""

    key: str
    holder: str
    fence: int | None
    age_seconds: float
    ttl_seconds: float
    waiters: list[str]


class LocksAnswer(Struct, kw_only=True):
    """The locks that are held, by key; empty where no Redis is set up."""

    locks: list[LockAnswer]


async def list_(context: RequestContext) -> ApiResponse:
    """The locks that are held, with holders and waiters."""
    query = context.request.query_params
    limit, match, opened = read_limit(query), query.get("match", "*"), context.services.locks
    if not 1 <= len(match) <= MATCH_LENGTH_MAX:
        raise InvalidRequest.at("match", f"must have 1 to {MATCH_LENGTH_MAX} characters")
    if opened is None:
        return json_response(LocksAnswer(locks=[]))
    try:
        found = await opened.holdings(match=match, limit=limit)
    except LocksUnavailable as silent:
        raise LocksSilent(because=silent.because) from silent
    return json_response(LocksAnswer(locks=[_answer(holding) for holding in found]))


async def break_(context: RequestContext) -> ApiResponse:
    """Take a lock away from its holder; the first waiter gets it. An operator's last resort, and it is logged."""
    key, opened = context.request.path_params["key"], context.services.locks
    if opened is None:
        raise LockUnknown(key=key)
    try:
        found = await opened.find(key)
        broken = found is not None and await opened.evict(key)
    except LocksUnavailable as silent:
        raise LocksSilent(because=silent.because) from silent
    if found is None or not broken:
        raise LockUnknown(key=key)
    log.warning("break_lock", outcome="ok", key=key, holder=found.holder, actor=context.principal.actor.name)
    return json_response(_answer(found))


def _answer(holding: Holding) -> LockAnswer:
    return LockAnswer(
        key=holding.key,
        holder=holding.holder,
        fence=holding.fence,
        age_seconds=round(holding.age_seconds, 3),
        ttl_seconds=round(holding.ttl_seconds, 3),
        waiters=list(holding.waiters),
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/locks",
        name="list_locks",
        summary="List the locks that are held",
        handler=list_,
        answer=LocksAnswer,
        scope=Scope.OPS,
        query=(("match", "only keys like this; `*` stands for anything"), ("limit", "how many, at most 200")),
        group="operations",
    ),
    Endpoint(
        method="DELETE",
        path="/v1/locks/{key}",
        name="break_lock",
        summary="Take a lock away from its holder",
        handler=break_,
        answer=LockAnswer,
        scope=Scope.OPS,
        refusals=("lock_unknown",),
        group="operations",
    ),
)
