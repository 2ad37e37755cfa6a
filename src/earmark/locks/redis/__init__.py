"""Leases in Redis: the script, the calls that travel together, the line of waiters, and the topologies."""
