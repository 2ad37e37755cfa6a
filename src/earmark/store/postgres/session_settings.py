"""The settings of the store's sessions: how statements are planned, and how long locks and idle clients may last."""

from __future__ import annotations

RESTRAINED = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "enable_material")
"""What a plan on the way of a booking does without."""
# A statement that reads whole tables may be planned in any way.
ANY_PLAN = "; ".join(
    [*(f"SET LOCAL {name} = on" for name in RESTRAINED), "SET LOCAL max_parallel_workers_per_gather = 2"]
)

SETTINGS = {
    "application_name": "earmark",
    "default_transaction_isolation": "read committed",
    # Array statements were planned anew at each call; the generic plan is the right one for all of them.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # Every statement on the way of a booking finds its rows by key, one after the other: not as they lie, by a bitmap,
    # nor by reading tables whole for ever after, because they were small when the plan was made.
    **dict.fromkeys(RESTRAINED, "off"),
    # No parallel workers: above about 8 MB of seats, PostgreSQL would start up to two for each page it reads.
    "max_parallel_workers_per_gather": "0",
    # Every statement has a deadline here; a shorter one of the role would make an outage of a row that is locked.
    "statement_timeout": "0",
    # A paused client frees its row locks, and no transaction waits for one for ever.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "5s",
}

SET_LOCAL = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items() if name != "application_name")
"""The same for one transaction, where a pooler keeps no session."""
