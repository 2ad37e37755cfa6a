"""Earmark: set it aside, pay for it, keep it. Never sold twice."""

__version__ = "0.1.0"
