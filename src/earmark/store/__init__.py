"""The stores behind the `Store` port: PostgreSQL in production, SQLite embedded, SQLite in memory for tests."""
