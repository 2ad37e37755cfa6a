"""The HTTP API: decode a request, call one verb, encode the response."""
