"""Runs the verbs: commands, group commit and idempotency, written against the ports in `engine/ports`."""
