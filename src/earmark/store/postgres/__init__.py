"""PostgreSQL: the store that decides in production."""

from earmark.store.postgres.migrate import migrate
from earmark.store.postgres.store import PostgresStore

__all__ = ["PostgresStore", "migrate"]
