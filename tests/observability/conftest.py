"""The fixtures of the API, for tests of what is observed of it."""

from tests.api.conftest import authenticator, event, services, shop, stranger

__all__ = ["authenticator", "event", "services", "shop", "stranger"]
