"""The fixtures of the API, for tests of the server in front of it."""

from tests.api.conftest import authenticator, event, services, shop, stranger

__all__ = ["authenticator", "event", "services", "shop", "stranger"]
