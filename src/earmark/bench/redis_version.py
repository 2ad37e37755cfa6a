"""Which Redis a URL leads to."""

from __future__ import annotations

import redis

from earmark.errors import SetupError

CONNECT_SECONDS = 10.0


def redis_product(url: str) -> str:
    """The server's name and version; a SetupError if it does not answer."""
    try:
        with redis.Redis.from_url(url, socket_timeout=CONNECT_SECONDS) as client:
            about = client.info("server")
    except (redis.RedisError, ValueError) as error:
        raise SetupError(problem=f"The Redis to measure on does not answer: {error}") from error
    return f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"
