"""Incidents under load: what clients hear while a row, a server or a database is out, and how soon holds flow again."""
