"""Background workers, started by `earmark worker` or inside a server. Any number of each may run."""
