"""Errors of the test servers: a server is unavailable, or it refuses a statement. Only the first justifies a skip."""


class ServerUnavailable(Exception):
    """A server cannot be found, started or reached; the message says why and what to do."""


class StatementRefused(Exception):
    """The server refused a set-up statement; the message is the server's own."""
