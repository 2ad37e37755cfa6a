"""What every batched verb is given beside its transaction and its commands."""

from __future__ import annotations

import msgspec

from earmark.domain.default_limits_for_all_events import Policy
from earmark.engine.ports.store import Ids


class VerbContext(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of this installation, and new ids for what a verb creates by itself."""

    policy: Policy
    ids: Ids
