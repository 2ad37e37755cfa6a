"""The thresholds at which `earmark doctor` and the ops console report a problem. Both use these and no others."""

from __future__ import annotations

LATE_SECONDS = 60.0
"""Work that has been due for longer than this was not done in time: holds, journal entries, webhook deliveries."""
OPEN_PAYMENT_SECONDS = 3600.0
"""A payment that is open for longer than this is reported; so does the alert `EarmarkPaymentsOpenTooLong`."""
FAILING_WEBHOOK_SECONDS = 300.0
"""A webhook that fails for less than this is only retried: its receiver may be restarting."""
