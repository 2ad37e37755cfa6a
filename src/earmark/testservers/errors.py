"""How a server for tests fails: it cannot be had, or it runs and refuses a statement. Only the first excuses a skip."""


class ServerUnavailable(Exception):
    """A real server was asked for and cannot be had; the message says why and what to do."""


class StatementRefused(Exception):
    """A set-up statement reached the server, which refused it; the message is the server's own."""
