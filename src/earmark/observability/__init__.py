"""Logs, redaction, traces and metrics."""
