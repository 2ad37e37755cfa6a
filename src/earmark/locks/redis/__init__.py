"""Leases in Redis: the script and its calls, their batching, the queue of waiters, and the topologies."""
