"""Incidents under load: the answers while a row, a server or a database is blocked, and when holds succeed again."""
