"""Earmark: set it aside, pay for it, keep it. Never sold twice."""

from earmark.errors import EarmarkError, Outage, Refusal
from earmark.library import Earmark
from earmark.version import __version__

__all__ = ["Earmark", "EarmarkError", "Outage", "Refusal", "__version__"]
