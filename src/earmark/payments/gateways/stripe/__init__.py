"""The Stripe gateway: the implementation of the port, the calls of Stripe's SDK, and the translation of values."""
