"""Which caller sends a request: API keys, buyer tokens, and the guest's cookie."""
