"""The verbs, one module each: look up the key, read, lock, decide, write."""
