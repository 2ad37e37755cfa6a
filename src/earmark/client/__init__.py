"""The library's verbs over HTTP, for programs that await (`AsyncClient`) and for others (`Client`).

    async with AsyncClient("https://shop.example", key="ek_live_…") as earmark:
        booking = await earmark.hold("concert", buyer="alice", seats=["A1"])

The arguments, the values and the errors are the library's. Every call that changes something carries an idempotency
key, so that it can be sent again after a lost response and has one effect.
"""

try:
    from earmark.client.async_client import AsyncClient
    from earmark.client.sync_client import Client
except ModuleNotFoundError as missing:
    raise ImportError("The client needs an extra: pip install 'earmark[client]'") from missing

__all__ = ["AsyncClient", "Client"]
