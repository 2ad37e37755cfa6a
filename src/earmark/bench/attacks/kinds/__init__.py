"""The attacks, grouped by what they use: malformed requests, payments, holds, connections, keys, pages, webhooks."""
