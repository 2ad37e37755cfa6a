"""What PostgreSQL and SQLite do alike, each with its own named statements."""
