"""A gateway of our own that misbehaves on request: for tests, demos and trials, never for money."""
