"""The truth: the stores behind the `Store` port. PostgreSQL in production, SQLite embedded, memory for tests."""
