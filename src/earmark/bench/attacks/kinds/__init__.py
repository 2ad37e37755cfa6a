"""The attacks, grouped by what they use: credentials, holds, payments, connections, malformed requests."""
